"""The README's tour runs as it stands, and its tables say what the program says."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.cli.exits import Exit

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def tour() -> list[tuple[str, str]]:
    """The blocks of the tour in order, each with its language."""
    section = README.split("## A tour")[1].split("\n## ")[0]
    return [
        (language, text) for language, text in BLOCK.findall(section) if language in {"console", "python"}
    ]


def transcript(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def execute(command: str, folder: Path) -> str:
    """Run one line of the tour: a ckptfmt command, or `echo $?` for the last one's exit code."""
    arguments = shlex.split(command)
    assert arguments[0] == "ckptfmt"
    arguments[0] = str(Path(sys.executable).parent / "ckptfmt")
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    return shown + (f"[exit code {done.returncode}]\n" if done.returncode else "")


def test_the_tour_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("training.pt", "snapshot_iter_3"):
        shutil.copy(ROOT / "examples" / "data" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = tour()
    assert {language for language, _ in blocks} == {"console", "python"}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, "<the tour>", "exec"), names)  # noqa: S102 - our own README
            continue
        for command, expected in transcript(text):
            got = execute(command, tmp_path)
            assert doctest.OutputChecker().check_output(expected, got, FLAGS), f"$ {command}\n{got}"


def test_the_format_table_is_what_the_program_prints() -> None:
    command = [str(Path(sys.executable).parent / "ckptfmt"), "formats"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    )
    assert done.stdout.strip()
    table = README.split("<!-- formats -->")[1].split("<!-- /formats -->")[0]
    assert done.stdout.split() == re.sub(r"```\w*", "", table).split()


def test_the_exit_codes_are_those_of_the_program() -> None:
    section = README.split("## Exit codes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    told = {int(code) for row in rows for code in row.split(",")}
    assert told == {int(code) for code in Exit}


def test_every_file_that_the_documents_point_at_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "spec/decisions/README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
        assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
