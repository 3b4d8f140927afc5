"""Run every check and test, in every environment, and say at the end what was not run and why.

Linters, types, import contracts and sizes; the whole suite with all frameworks; the base tests (those
not marked `framework`) on the oldest Python with the lowest allowed versions and on the newest. A stage
that fails does not stop the others. Standard library only; makes its environments itself.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tools.environments import ENVIRONMENTS, find_python, make, pythons

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".cache" / "results"
LINTED = ("ckptfmt", "tests", "tools", "examples", "spec/reference")


@dataclass
class Outcome:
    """What a stage came to.

    Attributes
    ----------
    name : str
    ok : bool
    passed, failed : int
        Tests; linters have none.
    skipped : Counter of str
        How many tests were skipped for each reason.
    seconds : float
    """

    name: str
    ok: bool
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def run(name: str, command: list[str]) -> Outcome:
    """Run a command that passes if it exits with 0."""
    print(f"\n== {name}\n  $ {' '.join(part.removeprefix(f'{ROOT}/') for part in command)}", flush=True)
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    return Outcome(name, done.returncode == 0, seconds=time.monotonic() - start)


def lint() -> list[Outcome]:
    """Run everything that reads the code and does not run it."""
    tools = make("test").python.parent
    present = [folder for folder in LINTED if (ROOT / folder).is_dir()]
    return [
        run("ruff check", [f"{tools}/ruff", "check", "."]),
        run("ruff format", [f"{tools}/ruff", "format", "--check", "."]),
        run("mypy", [f"{tools}/mypy", *present]),
        run("import contracts", [f"{tools}/lint-imports"]),
        run("sizes", [f"{tools}/python", "tools/check_size.py"]),
    ]


def tests(name: str, environment: str, *arguments: str) -> Outcome:
    """Run pytest in an environment and count what it did."""
    results = RESULTS / f"{environment}.xml"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    pytest = ENVIRONMENTS[environment].python.parent / "pytest"
    outcome = run(name, [str(pytest), "-q", f"--junitxml={results}", *arguments])
    if not results.is_file():
        outcome.ok = False
        return outcome
    for case in ET.parse(results).getroot().iter("testcase"):  # noqa: S314 - our pytest's
        skips = [_reason(skip) for skip in case.iter("skipped")]
        bad = case.find("failure") is not None or case.find("error") is not None
        outcome.skipped.update(skips)
        outcome.failed += bad
        outcome.passed += not bad and not skips
    return outcome


def _reason(skip: ET.Element) -> str:
    """Return why a test was skipped; of a whole module, pytest writes it into the text."""
    message = skip.get("message") or "no reason given"
    if message != "collection skipped":
        return message
    _, _, reason = ast.literal_eval(skip.text or "('', 0, '')")
    return str(reason).removeprefix("Skipped: ")


def whole_suite(arguments: list[str]) -> list[Outcome]:
    """Run all tests where all frameworks are."""
    make("safetensors-0.4.1")
    python = make("test").python
    print("\n== weights of published packages", flush=True)  # what cannot be had is skipped, and said so
    subprocess.run([python, "tools/fetch_real_files.py"], cwd=ROOT, check=False)
    (major, minor), _ = find_python("test")
    return [tests(f"all tests, Python {major}.{minor}", "test", *arguments)]


def base_tests(arguments: list[str]) -> list[Outcome]:
    """Run the tests that need no framework on the oldest and the newest Python."""
    outcomes = []
    for environment in ("oldest", "newest"):
        make(environment)
        (major, minor), _ = find_python(environment)
        name = f"base tests, Python {major}.{minor} ({environment} here)"
        outcomes.append(tests(name, environment, "-m", "not framework", *arguments))
    return outcomes


def report(outcomes: list[Outcome]) -> bool:
    """Print every stage, every reason for a skip and the sums; return whether all is well."""
    print("\n== Summary")
    for outcome in outcomes:
        ran = outcome.passed + outcome.failed + outcome.skipped.total()
        counts = f"  {outcome.passed} passed, {outcome.failed} failed, {outcome.skipped.total()} skipped"
        verdict = "ok    " if outcome.ok else "FAILED"
        print(f"{verdict} {outcome.name} ({outcome.seconds:.0f} s){counts if ran else ''}")
    missing = [f"{major}.{minor}" for major, minor in ((3, 10), (3, 13)) if (major, minor) not in pythons()]
    if missing:
        print(f"Not at hand, so not tested on: Python {', '.join(missing)}")
    for outcome in outcomes:
        for reason, count in sorted(outcome.skipped.items()):
            print(f"skipped {count} in {outcome.name}: {reason}")
    skipped = sum(outcome.skipped.total() for outcome in outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed, {skipped} skipped")
    return all(outcome.ok for outcome in outcomes)


def main() -> None:
    """Run the stages that are asked for, all by default."""
    parser = argparse.ArgumentParser(description="run every check and test")
    parser.add_argument("--only", choices=("lint", "suite", "base"), help="one stage only")
    parser.add_argument("arguments", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    if options.only in (None, "lint"):
        outcomes += lint()
    if options.only in (None, "suite"):
        outcomes += whole_suite(options.arguments)
    if options.only in (None, "base"):
        outcomes += base_tests(options.arguments)
    sys.exit(0 if report(outcomes) else 1)


if __name__ == "__main__":
    main()
