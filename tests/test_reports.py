"""Every report in `reports.toml` names tests that exist, or says why it has none."""

from __future__ import annotations

import ast
import re
import sys
from functools import lru_cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|CVE-\d{4}-\d+|GHSA(-\w{4}){3}")

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="reads TOML, which Python does since 3.11")

REPORTS = tomllib.loads((FOLDER / "reports.toml").read_text(encoding="utf-8"))["report"]


@lru_cache
def names_in(file: str) -> frozenset[str]:
    """Return the tests of a file, those of classes with their class; inherited ones too."""
    module = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
    found = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            inherited = kit() if "FormatTests" in bases else frozenset()
            own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            found |= {f"{node.name}::{name}" for name in own | inherited}
    return frozenset(found)


@lru_cache
def kit() -> frozenset[str]:
    """Return the tests that every format inherits."""
    text = (FOLDER.parent / "ckptfmt" / "testing" / "format_tests.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^    def (test_\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["refs"][0])
def test_a_report_has_its_tests_or_a_reason(report: dict[str, str | list[str]]) -> None:
    assert set(report) <= {"about", "refs", "tests", "why"}
    assert all(REFERENCE.fullmatch(reference) for reference in report["refs"])
    assert report.get("tests") or report.get("why")
    for test in report.get("tests", ()):
        file, _, name = test.partition("::")
        assert name in names_in(file), test


def test_no_report_is_listed_twice() -> None:
    every = [reference for report in REPORTS for reference in report["refs"]]
    assert sorted(every) == sorted(set(every))
