"""The program as a process: exit codes, streams, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.app import invoke
from ckptfmt.errors import LossyError, MissingExtraError
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = [sys.executable, "-m", "ckptfmt.cli"]


def run(*arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], check=False, text=True, stdout=stdout, stderr=subprocess.PIPE
    )


@pytest.fixture
def step(tmp_path: Path) -> Path:
    ckptfmt.save({"w": np.arange(4.0), "n": 3}, tmp_path / "step", step=5)
    return tmp_path / "step"


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_each_code_by_a_command(step: Path, tmp_path: Path) -> None:
    (tmp_path / "page.pt").write_bytes(b"<html>")
    (tmp_path / "other").mkdir()
    ckptfmt.save({"w": np.arange(4.0), "n": 4}, tmp_path / "b")
    assert run("verify", str(step)).returncode == 0
    assert run("diff", str(step), str(tmp_path / "b")).returncode == 1
    assert run("verify", str(tmp_path / "page.pt")).returncode == 1
    assert run("convert", str(step)).returncode == 2
    ckptfmt.save({"w": np.ones(2, ml_dtypes.int4)}, tmp_path / "narrow")
    assert run("convert", str(tmp_path / "narrow"), str(tmp_path / "x.pt"), "--strict").returncode == 3
    assert run().returncode == 2
    assert run("info", str(tmp_path / "page.pt")).returncode == 4
    assert run("info", str(tmp_path / "none")).returncode == 5


def test_one_bad_file_does_not_hide_the_digests_of_others(
    step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.pt").write_bytes(b"<html>")
    assert invoke(["digest", str(tmp_path / "none"), str(step), str(tmp_path / "page.pt")]) == 5
    shown = capsys.readouterr()
    assert shown.out == f"{ckptfmt.digest({'w': np.arange(4.0), 'n': 3}).root.hex()}  {step}\n"
    assert [line.split(": ")[1] for line in shown.err.splitlines()] == [
        str(tmp_path / "none"),
        str(tmp_path / "page.pt"),
    ]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (LossyError("x", (Finding("k", "p", Severity.LOSS, "gone"),)), 3, "lossy"),
        (MissingExtraError("torch", "this"), 6, "missing-extra"),
        (ZeroDivisionError("x"), 70, "bug"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["lossy", "extra", "bug", "interrupt"],
)
def test_an_error_is_told_with_its_code_as_text_and_as_json(
    error: BaseException,
    code: int,
    kind: str,
    step: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("ckptfmt.conversion.convert", raising(error))
    arguments = ["convert", str(step), f"{step}.npz"]
    assert invoke(arguments) == code
    text = capsys.readouterr()
    assert text.out == ""
    assert text.err.lstrip().startswith("ckptfmt: ")
    assert invoke([*arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == code
    assert document["error"]["kind"] == kind


def test_a_bug_asks_to_be_reported_and_shows_its_trace_under_debug(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ckptfmt.conversion.read", raising(ZeroDivisionError("oh")))
    assert invoke(["info", str(step)]) == 70
    quiet = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in quiet
    assert "Please report" in quiet
    assert "Traceback" not in quiet
    assert invoke(["--debug", "info", str(step)]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_gone_ends_the_program_quietly(step: Path) -> None:
    receiving, sending = os.pipe()
    os.close(receiving)
    done = run("info", str(step), stdout=sending)
    os.close(sending)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_output_is_an_error_of_storage(step: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = run("info", str(step), stdout=full)
    assert done.returncode == 5
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_changes_no_code(step: Path) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "verify", str(step)]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Let children be interrupted: a shell makes its background jobs ignore Ctrl-C, and they inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_ends_with_130_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, 96 << 20, np.uint8)  # takes seconds to deflate
    ckptfmt.save({"w": noise}, tmp_path / "big")
    before = {path.name for path in tmp_path.iterdir()}
    process = subprocess.Popen(
        [*PROGRAM, "convert", "big", "x.npz", "--codec", "deflate"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 30
    while {path.name for path in tmp_path.iterdir()} == before and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "nothing is half written" in told
    assert {path.name for path in tmp_path.iterdir()} == before


def test_version_and_help_are_for_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"ckptfmt {ckptfmt.__version__}\n"
    for command in ("info", "extract", "convert", "verify", "digest", "diff", "slots", "recover", "formats"):
        assert invoke([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_help_loads_neither_numpy_nor_a_reader() -> None:
    code = (
        "import sys; from ckptfmt.cli.app import invoke; invoke(['--help']);"
        "print([m for m in ('numpy', 'torch', 'ckptfmt.loading') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_shell_completion_is_there() -> None:
    asked = {"_CKPTFMT_COMPLETE": "complete_bash", "COMP_WORDS": "ckptfmt ver", "COMP_CWORD": "1"}
    environment = os.environ | asked
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=False)
    assert "verify" in done.stdout.split()


def test_a_name_in_a_file_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "w\x1b[2J\x9b31m\u202e[bold]x"
    ckptfmt.write({name: np.ones(2)}, tmp_path / "x.npz")
    ckptfmt.save({name: np.ones(2), "text": name}, tmp_path / "step")
    monkeypatch.chdir(tmp_path)
    commands = (
        ["info", "x.npz"],
        ["info", "step"],
        ["digest", "--tensors", "x.npz"],
        ["diff", "x.npz", "step"],
        ["extract", "x.npz", name + "y"],
        ["info", name],
    )
    for command in commands:
        invoke(command)
        shown = capsys.readouterr()
        assert all(mark.isprintable() or mark == "\n" for mark in shown.out + shown.err), command
    invoke(["info", "step"])
    assert "[bold]" in capsys.readouterr().out
