"""Targets of fuzzing for DCP directories: the metadata, the items, and offsets of parts in safetensors files.

Metadata is changed as a pickle, or row by row: well-formed sizes, chunks, places and paths that are wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.containers.safetensors import Entry, encode_header
from ckptfmt.errors import CkptError
from ckptfmt.frameworks.pytorch.dcp.emit import encode_metadata
from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, Place, decode_metadata
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.box import Box
from tools.fuzz.mutation import mutate
from tools.fuzz.oracles import reads_alike
from tools.fuzz.structure import mutate_pickle
from tools.fuzz.target import ROOT, Target, as_json, fresh, state

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["DCP"]

_GOLDEN = ROOT / "tests" / "golden" / "dcp" / "2.13.0"
_ITEMS = "__0_0.distcp"
_EXTENTS = (0, 1, 2, 3, 4, 5, 6, 64, 2**31, 2**40, 2**53, 2**62)


def _folder(place: Path) -> Path:
    """Return a directory of chunked and whole tensors and of values, made once."""
    folder = place / "dcp"
    if not folder.exists():
        tree = {**state(), "pair": (np.ones(2), 1), "rows": [np.arange(3), {"a": np.zeros(1)}]}
        del tree[1]
        ckptfmt.write(tree, folder, to="dcp")
    return folder


def _metadata_seeds(place: Path) -> list[bytes]:
    ours = (_folder(place) / ".metadata").read_bytes()
    return [ours, *((_GOLDEN / name / ".metadata").read_bytes() for name in ("plain-1", "grid-4", "items-2"))]


def _metadata(data: bytes, place: Path) -> None:
    folder = _folder(place)
    (folder / ".metadata").write_bytes(data)
    reads_alike(lambda: ckptfmt.read(folder, format="dcp"), place, data)


def _mutate_metadata(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return changed metadata: well-formed rows that are wrong, or a changed pickle."""
    if rng.random() < 0.5:
        return mutate_pickle(data, rng, others)
    try:
        metadata = decode_metadata(MemoryReader(data))
        for _ in range(rng.choice((1, 1, 2, 5))):
            _change(metadata, rng)
        return encode_metadata(metadata)
    except (CkptError, ValueError, OverflowError, IndexError):
        return mutate_pickle(data, rng, others)


def _change(metadata: Metadata, rng: random.Random) -> None:
    rng.choice((_change_row, _change_chunks, _change_place, _change_place, _change_path))(metadata, rng)


def _change_row(metadata: Metadata, rng: random.Random) -> None:
    name, other = rng.choice(list(metadata.rows)), rng.choice(list(metadata.rows))
    row, source = metadata.rows[name], metadata.rows[other]
    if row is None or source is None or rng.random() < 0.3:
        metadata.rows[name] = source
    elif rng.random() < 0.5:
        metadata.rows[name] = replace(row, element=source.element)
    else:
        metadata.rows[name] = replace(row, shape=tuple(rng.choice(_EXTENTS) for _ in row.shape))


def _change_chunks(metadata: Metadata, rng: random.Random) -> None:
    name = rng.choice(list(metadata.rows))
    row = metadata.rows[name]
    if row is None or not row.shape:
        return
    axis = rng.randrange(len(row.shape))
    cut = rng.randrange(row.shape[axis] + 1) if row.shape[axis] < 2**31 else 1
    boxes = []
    for start, stop in ((0, cut + rng.choice((0, 0, 0, 1))), (cut, row.shape[axis])):
        offset, shape = [0] * len(row.shape), list(row.shape)
        offset[axis], shape[axis] = start, max(0, stop - start)
        boxes.append(Box(tuple(offset), tuple(shape)))
        places = list(metadata.places.values())
        metadata.places.setdefault((name, tuple(offset)), rng.choice(places))
    metadata.rows[name] = replace(row, chunks=tuple(boxes))


def _change_place(metadata: Metadata, rng: random.Random) -> None:
    key, other = rng.choice(list(metadata.places)), rng.choice(list(metadata.places.values()))
    place = metadata.places[key]
    metadata.places[key] = rng.choice(
        (
            other,
            Place(place.file, other.offset, other.length),
            Place(place.file, place.offset + rng.choice((-64, -1, 1, 64, 2**40)), place.length),
            Place(place.file, place.offset, rng.choice((0, 1, place.length - 1, place.length + 64, 2**62))),
            Place(rng.choice(("../x", "__1_0.distcp", "", ".metadata")), place.offset, place.length),
        )
    )
    if rng.random() < 0.1:
        del metadata.places[key]


def _change_path(metadata: Metadata, rng: random.Random) -> None:
    name, other = rng.choice(list(metadata.paths)), rng.choice(list(metadata.paths.values()))
    more: tuple[str | int, ...] = rng.choice(((), ("x",), (0,), (3,), (2**24,), ("",) * 70, (*other,)))
    metadata.paths[name] = (*rng.choice((other, other[:-1], ("new",))), *more)


def _items_seeds(place: Path) -> list[bytes]:
    return [(_folder(place) / _ITEMS).read_bytes()]


def _items(data: bytes, place: Path) -> None:
    folder = _folder(place)
    (folder / _ITEMS).write_bytes(data)
    reads_alike(lambda: ckptfmt.read(folder, format="dcp"), place, data)


def _parts_seeds(_: Path) -> list[bytes]:
    told = {"w": {"saved_offsets": [0, 0]}, "v": {"saved_offsets": [3]}}
    return [json.dumps(told).encode(), json.dumps({"w": {"saved_offsets": [2, 0]}}).encode()]


def _parts(data: bytes, place: Path) -> None:
    """Offsets of one file, beside another that has the rest."""
    folder = fresh(place / "parts")
    entries = [Entry("w", "U8", (2, 3), 0, 6), Entry("v", "F32", (2,), 6, 14)]
    rest = '{"w": {"saved_offsets": [2, 0]}, "v": {"saved_offsets": [0]}}'
    others = [Entry("w", "U8", (1, 3), 0, 3), Entry("v", "F32", (3,), 3, 15)]
    for number, (held, text) in enumerate(((entries, data.decode(errors="replace")), (others, rest))):
        head = encode_header(held, {"DCP_SHARDING_INFO": text}, align=8)
        path = folder / f"shard-{number:05d}-model-00001-of-00001.safetensors"
        path.write_bytes(head + bytes(held[-1].end))
    reads_alike(lambda: ckptfmt.read(folder, format="safetensors"), place, data)


DCP = (
    Target("dcp-metadata", _metadata_seeds, _metadata, _mutate_metadata),
    Target("dcp-items", _items_seeds, _items, mutate),
    Target("safetensors-parts", _parts_seeds, _parts, as_json(b"")),
)
