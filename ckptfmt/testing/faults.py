"""A `System` that does one thing wrong at a chosen call, and remembers every call that was made.

Count the calls of a run without a fault, then repeat it with a fault at each of them: that is how "at every
write-type system call" is tested. A fault is an error instead of the call, an error after it (as network file
systems may answer), a short write, or the death of the process before, or in the middle of, the call.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from ckptfmt.storage.system import System

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.storage.directory import Directory

__all__ = ["FOREVER", "Call", "Fault", "FaultySystem"]

_Result = TypeVar("_Result")

FOREVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong.

    Parameters
    ----------
    kind : {"error", "error-after", "short", "kill", "kill-midway"}
        Fail instead of the call; make the call, then fail; write half; die before the call; write half, then
        die (before any call that is not a write).
    at : int
        At which call, counted from 1.
    number : int
        The error number of an error.
    times : int
        For how many calls from there on.
    name : str, optional
        Count only calls of this method.
    """

    kind: Literal["error", "error-after", "short", "kill", "kill-midway"]
    at: int
    number: int = errno.EIO
    times: int = 1
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was made: the method's name, and the entry or descriptor it was about."""

    name: str
    subject: str


class FaultySystem(System):
    """A system with one fault.

    Parameters
    ----------
    fault : Fault, optional
        None only records.
    refuse_direct : {"open", "write"}, optional
        Refuse O_DIRECT when a file is opened (after creating it, as some kernels do) or at its first write.
    preallocation, exchange, positioned, descriptors : bool
        As for `System`.

    Attributes
    ----------
    calls : list of Call
        Every call so far, the failed ones too.
    pauses : list of float
        How long retries would have waited, in seconds; they do not wait.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        *,
        refuse_direct: Literal["open", "write"] | None = None,
        preallocation: bool = True,
        exchange: bool = True,
        positioned: bool = True,
        descriptors: bool = True,
    ) -> None:
        super().__init__(
            preallocation=preallocation, exchange=exchange, positioned=positioned, descriptors=descriptors
        )
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self._fault = fault
        self._refuse_direct = refuse_direct
        self._directs: set[int] = set()
        self._names: dict[int, str] = {}
        self._counted = 0
        self._lock = threading.Lock()

    def _due(self, name: str, subject: str) -> Fault | None:
        """Record a call; return the fault if it strikes now."""
        with self._lock:
            self.calls.append(Call(name, subject))
            fault = self._fault
            if fault is None or fault.name not in {None, name}:
                return None
            self._counted += 1
            return fault if fault.at <= self._counted < fault.at + fault.times else None

    def _call(self, name: str, subject: str, call: Callable[[], _Result]) -> _Result:
        fault = self._due(name, subject)
        if fault is None or fault.kind == "short":
            return call()
        if fault.kind.startswith("kill"):
            _die()
        if fault.kind == "error-after":
            call()
        raise OSError(fault.number, os.strerror(fault.number))

    def create(self, place: Directory, name: str, *, direct: bool = False) -> int:
        """Create a file, or not."""
        refused = direct and self._refuse_direct == "open"

        def call() -> int:
            fd = System.create(self, place, name, direct=direct and self._refuse_direct is None)
            self._names[fd] = name
            if direct:
                self._directs.add(fd)
            if refused:
                os.close(fd)
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return fd

        return self._call("create", name, call)

    def make_buffered(self, fd: int) -> None:
        """Take O_DIRECT away; not counted."""
        self._directs.discard(fd)
        super().make_buffered(fd)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Write, or less, or not."""
        fault = self._due("write", self._names.get(fd, ""))
        refused = self._refuse_direct == "write" and fd in self._directs
        if fault is not None and (fault.kind == "kill" or (refused and fault.kind == "kill-midway")):
            _die()
        if refused:
            number = fault.number if fault is not None and fault.kind.startswith("error") else errno.EINVAL
            raise OSError(number, os.strerror(number))
        if fault is None:
            return super().write(fd, data, offset)
        if fault.kind != "error":
            self._write_half(fd, data, offset)
        if fault.kind == "kill-midway":
            _die()
        if fault.kind == "short":
            return max(1, len(data) // 2)
        raise OSError(fault.number, os.strerror(fault.number))

    def _write_half(self, fd: int, data: memoryview, offset: int) -> None:
        half = bytes(data[: max(1, len(data) // 2)])
        direct = fd in self._directs
        if direct:
            super().make_buffered(fd)  # half a page cannot be written directly
        super().write(fd, memoryview(half), offset)

    def allocate(self, fd: int, size: int) -> bool:
        """Reserve space, or not."""
        return self._call("allocate", self._names.get(fd, ""), lambda: System.allocate(self, fd, size))

    def truncate(self, fd: int, size: int) -> None:
        """Set a size, or not."""
        self._call("truncate", self._names.get(fd, ""), lambda: System.truncate(self, fd, size))

    def sync(self, fd: int) -> None:
        """Sync a file, or not."""
        self._call("sync", self._names.get(fd, ""), lambda: System.sync(self, fd))

    def sync_directory(self, place: Directory) -> None:
        """Sync a directory, or not."""
        self._call("sync_directory", place.path, lambda: System.sync_directory(self, place))

    def close(self, fd: int) -> None:
        """Close a file; with an error it is closed all the same, as on Linux."""
        name = self._names.get(fd, "")
        self._directs.discard(fd)
        fault = self._due("close", name)
        if fault is not None and fault.kind.startswith("kill"):
            _die()
        super().close(fd)
        if fault is not None and fault.kind.startswith("error"):
            raise OSError(fault.number, os.strerror(fault.number))

    def make_directory(self, place: Directory, name: str) -> None:
        """Make a directory, or not."""
        self._call("make_directory", name, lambda: System.make_directory(self, place, name))

    def rename(self, place: Directory, source: str, target: str) -> None:
        """Rename a directory, or not."""
        self._call("rename", f"{source} -> {target}", lambda: System.rename(self, place, source, target))

    def replace(self, place: Directory, source: str, target: str) -> None:
        """Rename a file over another, or not."""
        self._call("replace", f"{source} -> {target}", lambda: System.replace(self, place, source, target))

    def rename_new(self, place: Directory, source: str, target: str) -> None:
        """Rename a file to a new name, or not."""
        subject = f"{source} -> {target}"
        self._call("rename_new", subject, lambda: System.rename_new(self, place, source, target))

    def exchange(self, place: Directory, first: str, second: str) -> None:
        """Exchange two entries, or not."""
        self._call("exchange", f"{first} <-> {second}", lambda: System.exchange(self, place, first, second))

    def link(self, place: Directory, source: str, target: str) -> None:
        """Link a file, or not."""
        self._call("link", f"{source} -> {target}", lambda: System.link(self, place, source, target))

    def unlink(self, place: Directory, name: str) -> None:
        """Remove a name, or not."""
        self._call("unlink", name, lambda: System.unlink(self, place, name))

    def remove_directory(self, place: Directory, name: str) -> None:
        """Remove a directory, or not."""
        self._call("remove_directory", name, lambda: System.remove_directory(self, place, name))

    def pause(self, seconds: float) -> None:
        """Remember that a retry would have waited."""
        self.pauses.append(seconds)


def _die() -> None:
    """End this process as a power cut of the job would: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
