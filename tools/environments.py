"""Make the virtual environments that the Makefile's targets run in; standard library only.

Each environment is a list of pip commands. It is made again when its recipe or pyproject.toml changes,
and the package itself is installed afresh every time where it is not editable. Runs on any Python 3.10
or newer; finds other Pythons on PATH and among those of pyenv.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

__all__ = ["ENVIRONMENTS", "Environment", "find_python", "make", "minimum_versions", "pythons"]

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13))
LAST_PYTHON_OF_CHAINER = (3, 11)

Version = tuple[int, int]


@dataclass(frozen=True)
class Environment:
    """A virtual environment and how it is filled.

    Attributes
    ----------
    name : str
        What the command line calls it.
    folder : str
        Where it lies, relative to the repository.
    why : str
        What it is for.
    installs : tuple of tuple of str
        Arguments of successive ``pip install`` commands.
    package : tuple of str
        Arguments of the ``pip install`` that brings ckptfmt itself, run every time.
    """

    name: str
    folder: str
    why: str
    installs: tuple[tuple[str, ...], ...] = ()
    package: tuple[str, ...] = field(default=())

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return ROOT / self.folder / "bin" / "python"


def minimum_versions() -> tuple[str, ...]:
    """Return the base dependencies, each pinned to the lowest version that pyproject.toml allows."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    if match is None:
        sys.exit("pyproject.toml has no dependencies")
    return tuple(f"{name}=={version}" for name, version in re.findall(r'"(\w+)>=([\d.]+)"', match[1]))


FRESH = ("--no-deps", "--force-reinstall", ".")

ENVIRONMENTS = {
    entry.name: entry
    for entry in (
        Environment("base", ".venv", "the base install, as a user gets it", ((".",),), FRESH),
        Environment(
            "test",
            ".venv-test",
            "everything that the tests compare with",
            (
                ("wheel", "torch==2.13.0"),
                ("-e", ".[dev,hdf5,checksums]", "safetensors", "transformers", "tensorflow-cpu==2.21.0"),
                ("--no-deps", "tf-keras==2.21.0"),  # it asks for the tensorflow that has GPU code
            ),
            ("--no-deps", "-e", "."),
        ),
        Environment(
            "safetensors-0.4.1",
            ".venv-safetensors-0.4.1",
            "the oldest safetensors that must open our shards",
            (("safetensors==0.4.1", "numpy"),),
        ),
        Environment(
            "oldest",
            ".venv-oldest",
            "the oldest Python here, with the lowest versions that we allow",
            ((*minimum_versions(), ".[test]"),),
            FRESH,
        ),
        Environment("newest", ".venv-newest", "the newest Python here", ((".[test]",),), FRESH),
    )
}

CHAINER = (
    ("setuptools<81",),  # Chainer needs its pkg_resources, to build and to run; torch brings a newer one
    ("--no-build-isolation", "chainer==7.8.1"),
)


def version_of(python: Path | str) -> Version | None:
    """Return the version of an interpreter that can make virtual environments, or None."""
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def _pyenv_homes() -> list[Path]:
    """Return where pyenv may keep its versions: the user's, and the one this interpreter is of."""
    own = [home for home in Path(sys.executable).resolve().parents if (home / "versions").is_dir()]
    return [*own, Path.home() / ".pyenv"]


@lru_cache(maxsize=1)
def pythons() -> dict[Version, Path]:
    """Return the interpreters that are here, by version: the supported ones, and the one this runs on."""
    candidates = [Path(sys.executable)]
    for major, minor in SUPPORTED:
        for home in _pyenv_homes():
            candidates += sorted(home.glob(f"versions/{major}.{minor}.*/bin/python"))
        on_path = shutil.which(f"python{major}.{minor}")
        candidates += [Path(on_path)] if on_path else []
    found: dict[Version, Path] = {}
    for candidate in candidates:
        version = version_of(candidate)
        if version is not None and version >= SUPPORTED[0]:
            found.setdefault(version, candidate)
    if not found:
        sys.exit("no Python 3.10 or newer with the venv module was found")
    return dict(sorted(found.items()))


def find_python(name: str) -> tuple[Version, Path]:
    """Return the version and path of the interpreter for an environment."""
    here = pythons()
    versions = list(here)
    if name == "oldest":
        chosen = versions[0]
    elif name == "newest":
        chosen = versions[-1]
    elif name == "base" and sys.version_info[:2] in here:
        chosen = sys.version_info[:2]
    else:
        chosen = (3, 11) if (3, 11) in here else versions[-1]
    return chosen, here[chosen]


def make(name: str) -> Environment:
    """Make an environment, or bring it up to date; exits with pip's words where that fails."""
    entry = ENVIRONMENTS[name]
    version, python = find_python(name)
    installs = entry.installs
    if name == "test" and version <= LAST_PYTHON_OF_CHAINER:
        installs += CHAINER
    stamp = ROOT / entry.folder / "recipe.sha256"
    recipe = _fingerprint(python, installs)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != recipe:
        print(f"== {entry.folder}: {entry.why} (Python {version[0]}.{version[1]})", flush=True)
        _run([str(python), "-m", "venv", "--clear", str(ROOT / entry.folder)])
        for arguments in installs:
            _pip(entry, arguments)
        stamp.write_text(recipe, encoding="utf-8")
    elif entry.package:
        _pip(entry, entry.package)
    return entry


def _fingerprint(python: Path, installs: tuple[tuple[str, ...], ...]) -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = project.split("[tool.ruff]")[0]  # what follows concerns linters and tests only
    return hashlib.sha256(repr((str(python), installs, wanted)).encode()).hexdigest()


def _pip(entry: Environment, arguments: tuple[str, ...]) -> None:
    _run([str(entry.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> None:
    shown = [part.removeprefix(f"{ROOT}/") for part in command]
    print("  $", *shown, flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(shown)}")


def main() -> None:
    """Make the environments that are named on the command line."""
    parser = argparse.ArgumentParser(description="make the virtual environments that the Makefile uses")
    parser.add_argument("names", nargs="+", choices=sorted(ENVIRONMENTS))
    for name in parser.parse_args().names:
        make(name)


if __name__ == "__main__":
    main()
