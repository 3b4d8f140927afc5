"""What a user installs: the wheel and the sdist hold what they must and nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ckptfmt.version import __version__

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"torch", "tensorflow", "chainer", "hdf5", "mpi", "all", "dev", "test", "checksums"}


def committed(folder: str) -> set[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git working tree, so there is no list of files to compare with")
    return {line for line in listing.stdout.splitlines() if (ROOT / line).is_file()}


def build(target: str, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.iterdir()
    return built


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licenses = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    assert names == committed("ckptfmt")
    assert "ckptfmt/py.typed" in names
    assert len(licenses) == 1


def test_the_source_distribution_holds_what_the_tests_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    for folder in ("ckptfmt", "tests", "tools", "examples", "spec"):
        assert committed(folder) <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "PKG-INFO"} <= names
    assert not any(name.startswith(".venv") or "__pycache__" in name for name in names)


def test_the_base_install_brings_no_framework() -> None:
    requires = importlib.metadata.requires("ckptfmt") or []
    base = {re.split(r"[^\w-]", line)[0].replace("_", "-") for line in requires if "extra ==" not in line}
    assert base == {"blake3", "ml-dtypes", "numpy", "typer", "zstandard"}


def test_every_promised_extra_exists_and_none_installs_chainer() -> None:
    metadata = importlib.metadata.metadata("ckptfmt")
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS
    requires = importlib.metadata.requires("ckptfmt") or []
    assert not [line for line in requires if re.match(r"chainer\b", line, re.IGNORECASE)]


def test_the_version_is_said_once() -> None:
    assert importlib.metadata.version("ckptfmt") == __version__


def test_the_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert importlib.metadata.metadata("ckptfmt")["License-Expression"] == "Apache-2.0"


def test_the_changelog_has_the_current_version_or_unreleased_changes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert first is not None
    assert first[1] in {"Unreleased", __version__}
