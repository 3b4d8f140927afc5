"""Make the conformance vectors: ``python -m tools.make_vectors`` compares, ``--accept`` writes.

A test run never writes them. Those whose frames a real compressor made are compared by what they hold:
another release of the compressor makes other bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from . import invalid_files, invalid_manifest, invalid_tables, invalid_trees, valid
from .cases import INVALID, VALID, Invalid, Valid
from .store import stored_case

__all__ = ["VECTORS", "all_cases", "case_folder", "differences", "main", "rendered"]

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors"
FILLED = (invalid_files, invalid_manifest, invalid_tables, invalid_trees, valid)


def all_cases() -> list[Valid | Invalid]:
    """Return every case; no two have one name."""
    cases: list[Valid | Invalid] = [*VALID, *INVALID]
    folders = [case_folder(case) for case in cases]
    if len(set(folders)) != len(folders):
        message = f"names that are there twice: {sorted({str(f) for f in folders if folders.count(f) > 1})}"
        raise ValueError(message)
    return cases


def case_folder(case: Valid | Invalid) -> Path:
    """Return where a case is stored."""
    return VECTORS / ("invalid" if isinstance(case, Invalid) else "valid") / case.name


def rendered(case: Valid | Invalid) -> dict[str, bytes]:
    """Return the files of a case as they are stored, by path below its folder."""
    files, told = stored_case(case)
    text = json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return {f"checkpoint/{name}": data for name, data in files.items()} | {"case.json": text.encode()}


def differences(case: Valid | Invalid) -> list[str]:
    """Return the paths of a case whose stored bytes are not those that are made."""
    made, folder = rendered(case), case_folder(case)
    there = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if isinstance(case, Valid) and case.coded:
        made, there = ({"case.json": files.get("case.json", b"")} for files in (made, there))
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    """Compare or write all cases; return the exit status."""
    accept, cases = "--accept" in arguments, all_cases()
    changed = [case for case in cases if differences(case)]
    for case in changed if accept else ():
        shutil.rmtree(case_folder(case), ignore_errors=True)
        for name, data in rendered(case).items():
            path = case_folder(case) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    print(f"{len(VALID)} valid and {len(INVALID)} invalid cases; {len(changed)} differ", end="")
    print(", written" if accept else f": {[case.name for case in changed]}")
    known = {case_folder(case) for case in cases}
    stray = sorted(str(p.parent) for p in VECTORS.rglob("case.json") if p.parent not in known)
    print("\n".join(f"no case of today: {path}" for path in stray))
    return 0 if accept or not (changed or stray) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
