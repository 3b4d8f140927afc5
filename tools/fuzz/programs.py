"""Targets of fuzzing for PyTorch's programs, and for the pickles of ranks.

Archives are changed as archives. The pickle of one rank is changed and joined with the unchanged files of the
others.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from ckptfmt.frameworks.pytorch.ranks.reader import read
from ckptfmt.registry import read_foreign
from tools.fuzz.oracles import reads_alike
from tools.fuzz.structure import mutate_pickle, mutate_zip
from tools.fuzz.target import ROOT, Target, archive, as_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROGRAMS"]

_GOLDEN = ROOT / "tests" / "golden" / "torch" / "2.13.0-special"
_SETS = {"grid-4": "rank_{}.pt", "fsdp1-2": "shard-{}-of-2.pt"}
_CONFIG = "program/data/weights/model_weights_config.json"


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def _small(path: Path) -> bytes:
    """Return an archive without what is not read."""
    return archive(
        {
            name: b"" if "/code/" in name or "/models/" in name or "sample_inputs" in name else data
            for name, data in _members(path).items()
        }
    )


def _script_seeds(_: Path) -> list[bytes]:
    return [_small(_GOLDEN / name) for name in ("script.pt", "trace.pt", "frozen.pt")]


def _script(data: bytes, place: Path) -> None:
    path = place / "input.pt"
    path.write_bytes(data)
    reads_alike(lambda: read_foreign(path, "torchscript"), place, data)


def _export_seeds(_: Path) -> list[bytes]:
    old = {name: data for name, data in _members(_GOLDEN / "old.pt2").items() if not name.endswith(".json")}
    return [_small(_GOLDEN / "program.pt2"), archive({**old, "serialized_exported_program.json": b""})]


def _export(data: bytes, place: Path) -> None:
    path = place / "input.pt2"
    path.write_bytes(data)
    reads_alike(lambda: read_foreign(path, "torch-export"), place, data)


def _config_seeds(_: Path) -> list[bytes]:
    return [_members(_GOLDEN / "program.pt2")[_CONFIG]]


def _config(data: bytes, place: Path) -> None:
    _export(archive({**_members(_GOLDEN / "program.pt2"), _CONFIG: data}), place)


def _rank_seeds(_: Path) -> list[bytes]:
    made = []
    for name, form in _SETS.items():
        path = _GOLDEN / name / form.format(1)
        made.append(_members(path)[f"{path.stem}/data.pkl"])
    return made


def _rank(data: bytes, place: Path) -> None:
    """Join a changed rank 1 with the others."""
    name = "fsdp1-2" if b"sharded_tensor" in data else "grid-4"
    form, folder = _SETS[name], place / name
    path = folder / form.format(1)
    if not folder.exists():
        folder.mkdir()
        for source in (_GOLDEN / name).iterdir():
            (folder / source.name).write_bytes(source.read_bytes())
    members = _members(_GOLDEN / name / path.name)
    path.write_bytes(archive({**members, f"{path.stem}/data.pkl": data}))
    reads_alike(lambda: read(folder), place, data)


PROGRAMS = (
    Target("torchscript", _script_seeds, _script, mutate_zip),
    Target("torch-export", _export_seeds, _export, mutate_zip),
    Target("torch-export-config", _config_seeds, _config, as_json(b"")),
    Target("torch-ranks", _rank_seeds, _rank, mutate_pickle),
)
