"""Each transcript shows what a person types and sees; here it is typed again, and must be seen again.

A block of kind ``console`` has commands after ``$``, the output (both streams), and where it is not 0 the
exit code. ``...`` stands for whatever may differ.
"""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckptfmt.cli.app import invoke

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)


def commands(text: str) -> Iterator[tuple[str, str]]:
    for block in BLOCK.findall(text):
        parts = COMMAND.split(block)
        assert parts[0] == ""
        yield from zip(parts[1::2], parts[2::2], strict=True)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.md")))
def test_a_transcript_is_what_the_program_prints(
    name: str, stage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = list(commands((FOLDER / name).read_text(encoding="utf-8")))
    assert shown
    for command, expected in shown:
        program, *arguments = shlex.split(command)
        assert program == "ckptfmt"
        code = invoke(arguments)
        captured = capsys.readouterr()
        got = captured.out + captured.err + (f"[exit code {code}]\n" if code else "")
        got = got.replace(str(stage), "/place")
        matches = doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS)
        assert matches, f"$ {command}\n{got}"
