"""Names of work in progress, and the record of the process that does it.

Beside a target ``<name>`` lie, while it is written: ``.<name>.ckptfmt-<id>`` (staging: a directory, or the
file of an export), ``.<name>.ckptfmt-<id>.owner`` (this record) and, in a two-step overwrite,
``.<name>.ckptfmt-<id>.old`` (what was at the target). A process is known to be gone only when the record says
where and when it started and this machine can tell; anything less is "unknown".
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

__all__ = ["Names", "Owner", "State", "new_names", "owner_state", "parse_name", "read_owner", "this_process"]

State = Literal["running", "gone", "other-host", "unknown"]

_NAME = re.compile(r"\.(?P<target>.+)\.ckptfmt-(?P<id>[0-9a-f]{12})(?P<suffix>\.owner|\.old)?", re.DOTALL)
_MAX_RECORD = 1 << 16
_START_FIELD = 19  # of /proc/PID/stat, counted from the state, which follows the name in brackets


@dataclass(frozen=True, slots=True)
class Names:
    """The names that belong to one writer of one target.

    Parameters
    ----------
    target : str
        The name to be published.
    token : str
        12 random hexadecimal digits.
    """

    target: str
    token: str

    @property
    def staging(self) -> str:
        """Where the new is made."""
        return f".{self.target}.ckptfmt-{self.token}"

    @property
    def owner(self) -> str:
        """The owner record."""
        return f"{self.staging}.owner"

    @property
    def aside(self) -> str:
        """Where a two-step overwrite puts the old."""
        return f"{self.staging}.old"


def new_names(target: str) -> Names:
    """Return names that nobody else uses."""
    return Names(target, secrets.token_hex(6))


def parse_name(name: str) -> tuple[Names, str] | None:
    """Return the names and the suffix ("", ".owner" or ".old") that an entry's name stands for, if any."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Names(match["target"], match["id"]), match["suffix"] or ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who is writing.

    Parameters
    ----------
    host : str
    pid : int
    time_ns : int
        When the record was made, in ns since 1970.
    started : int, optional
        When the process started, in clock ticks since the machine did (Linux).
    boot : str, optional
        Which start of the machine that was (Linux).
    namespace : str, optional
        In which set of process numbers (Linux; containers have their own).
    job : str, optional
        What the caller calls its job.
    record : str
        The file that makes a directory of this writer a whole one.
    """

    host: str
    pid: int
    time_ns: int
    started: int | None = None
    boot: str | None = None
    namespace: str | None = None
    job: str | None = None
    record: str = "manifest.json"

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def this_process(job: str | None = None, *, record: str = "manifest.json") -> Owner:
    """Return the record of the calling process."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        pid=pid,
        time_ns=time.time_ns(),
        started=_start_ticks(pid),
        boot=_boot_id(),
        namespace=_namespace(),
        job=job,
        record=record,
    )


def read_owner(data: bytes) -> Owner | None:
    """Return the record that `data` holds, or None where it is none (cut short, or not ours)."""
    try:
        record = json.loads(data) if len(data) <= _MAX_RECORD else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or set(record) != {field.name for field in fields(Owner)}:
        return None
    numbers = [record["pid"], record["time_ns"]] + [record["started"]] * (record["started"] is not None)
    words = [record["host"], record["record"]] + [
        record[key] for key in ("boot", "namespace", "job") if record[key] is not None
    ]
    if not all(type(value) is int for value in numbers) or not all(type(value) is str for value in words):
        return None
    return Owner(**record) if 0 < record["pid"] < 1 << 32 else None


def owner_state(owner: Owner | None) -> State:
    """Return whether the process of a record still runs, as far as this machine can tell."""
    if owner is None:
        return "unknown"
    here = this_process()
    if owner.host != here.host:
        return "other-host"
    if owner.boot != here.boot:  # the machine was started anew, unless many machines go by this name
        known = owner.boot is not None and here.boot is not None and not here.host.startswith("localhost")
        return "gone" if known else "unknown"
    return _state_here(owner) if owner.namespace == here.namespace else "unknown"


def _state_here(owner: Owner) -> State:
    """Return the state of a process of this very machine: a number in use again tells by its start."""
    if os.name == "nt":  # kill(pid, 0) is not a question there
        return "unknown"
    started = _start_ticks(owner.pid)
    if started is not None:
        return "running" if owner.started in {None, started} else "gone"
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return "gone"
    except (OSError, OverflowError):  # there, and not ours to look at
        return "running"
    # There, ours, and yet without a start in /proc: killed and not yet waited for.
    return "gone" if _start_ticks(os.getpid()) is not None else "running"


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, or None where there is no such process or no /proc.

    A process that was killed and not yet waited for holds no file open any more: it is none.
    """
    text = _read_text(f"/proc/{pid}/stat")
    after_name = text.rpartition(")")[2].split() if text else []
    if len(after_name) <= _START_FIELD or after_name[0] in {"Z", "X"}:
        return None
    return int(after_name[_START_FIELD])


def _boot_id() -> str | None:
    text = _read_text("/proc/sys/kernel/random/boot_id")
    return text.strip() if text else None


def _namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except (OSError, AttributeError):
        return None
