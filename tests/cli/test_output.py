"""What is drawn on a terminal, and what is plain where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.output import Result, Table, show

if TYPE_CHECKING:
    from pathlib import Path

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    ckptfmt.save({"w[0]": np.zeros((512, 512)), "n": 1}, tmp_path / "step")
    return tmp_path / "step"


def on_a_terminal(stream: str, *arguments: str, **environment: str) -> str:
    """What a command prints on one stream that is a terminal, the other being none."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "ckptfmt.cli", *arguments],
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs if stream == "stdout" else subprocess.DEVNULL,
        stderr=theirs if stream == "stderr" else subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # the other side is closed
            pass
        assert process.wait(60) == 0, shown.decode(errors="replace")
    os.close(ours)
    return shown.decode()


def test_a_table_is_drawn_on_a_terminal_and_plain_in_a_pipe(step: Path) -> None:
    drawn = on_a_terminal("stdout", "info", str(step))
    assert "───" in drawn
    assert "w[0]" in drawn  # not taken for markup
    command = [sys.executable, "-m", "ckptfmt.cli", "info", str(step)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stdout.isascii()
    assert piped.stderr == ""
    assert "w[0]    f64   [512, 512]  2.00 MiB" in piped.stdout


def test_progress_is_shown_on_a_terminal_only(step: Path, tmp_path: Path) -> None:
    assert "converting" in on_a_terminal("stderr", "convert", str(step), str(tmp_path / "a.npz"))
    assert "converting" not in on_a_terminal("stdout", "convert", str(step), str(tmp_path / "b.npz"))


def test_no_color_is_respected(step: Path, tmp_path: Path) -> None:
    color = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    arguments = ("convert", str(step), str(tmp_path / "a.npz"))
    assert color.search(on_a_terminal("stderr", *arguments))
    arguments = ("convert", str(step), str(tmp_path / "b.npz"))
    assert not color.search(on_a_terminal("stderr", *arguments, NO_COLOR="1"))


def test_columns_are_aligned_and_empty_tables_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(("name", "size"), [("a", "1"), ("long one", "1000")], frozenset({"size"}), "Title:")
    show(Result(None, ("first", table, Table(("x",), [])), notes=("a note",)), as_json=False)
    shown = capsys.readouterr()
    assert shown.out == "first\n\nTitle:\nname      size\na            1\nlong one  1000\n"
    assert shown.err == "a note\n"


def test_json_is_all_that_is_printed_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result({"a": "é"}, ("text",), notes=("a note",)), as_json=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ('{\n  "a": "\\u00e9"\n}\n', "")
