"""A second writer, straight from the specification: a tree in, the files of a checkpoint out, in memory.

It checks nothing. What it has planned stays open to change in a `Draft` until `seal` derives headers,
digests and offsets again, so that a case can break one rule and leave all others whole.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blake3 import blake3

from .trees import JSON, TreeDigests, encoded_key, key_text, u64
from .trees import field as framed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CHUNK", "Draft", "Files", "Row", "Tensor", "as_form", "bits_of", "canonical", "draft", "sealed"]

CHUNK = 4 << 20
PAGE = 4096
BITS = {"bool": 8, "bf16": 16, "c64": 64, "c128": 128, "f4_e2m1fn": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}
SAFETENSORS = {"f8_e4m3fn": "F8_E4M3", "f8_e5m2": "F8_E5M2", "bf16": "BF16", "bool": "BOOL"}
for _width in (8, 16, 32, 64):
    for _kind in ("i", "u", "f") if _width > 8 else ("i", "u"):
        BITS[f"{_kind}{_width}"] = _width
        SAFETENSORS[f"{_kind}{_width}"] = f"{_kind}{_width}".upper()

Files = dict[str, bytes]
"""A checkpoint in memory: the bytes of each file by name."""


def bits_of(kind: str) -> int:
    """Return the size of an element in bits."""
    if kind.startswith("f8_"):
        return 8
    return BITS[kind] if kind in BITS else 8 * int(kind[1:])


def canonical(value: JSON) -> bytes:
    """Section 5.1."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def sealed(body: bytes) -> bytes:
    """Return a document from its canonical text: section 5.2."""
    return body[:-1] + b',"self":"' + blake3(body[:-1]).hexdigest().encode() + b'"}'


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a tree; the same object twice is a tie."""

    kind: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def chunks(self) -> list[bytes]:
        """Section 3."""
        return [self.data[begin : begin + CHUNK] for begin in range(0, len(self.data), CHUNK)]

    def digest(self) -> bytes:
        """Section 4.3."""
        dimensions = b"".join(map(u64, self.shape))
        chunks = b"".join(blake3(chunk).digest() for chunk in self.chunks)
        data = framed(self.kind.encode()) + framed(dimensions) + chunks
        return blake3(data, derive_key_context="ckptfmt 1 tensor").digest()


@dataclass
class Row:
    """A row that is still open: what lies in the shard and in chunks.bin, and the row of the table."""

    form: list[JSON]
    original: bytes
    stored: list[bytes]
    digests: list[bytes]

    @property
    def coded(self) -> bool:
        """Whether it is of a coded shard."""
        return len(self.form) == 11

    def table(self) -> bytes:
        """Section 10."""
        if len(self.stored) <= 1:
            return b""
        own = [blake3(piece).digest() for piece in self.stored]
        return b"".join(
            self.digests + (own + [u64(len(piece)) for piece in self.stored] if self.coded else [])
        )


@dataclass
class Draft:
    """A planned checkpoint, open to change until `seal`."""

    tree: JSON
    rows: list[Row]
    shards: list[str]
    step: JSON = None
    minor: int = 0
    extra: JSON = field(default_factory=dict)
    extra_files: dict[str, bytes] = field(default_factory=dict)
    root: str | None = None
    provenance: bytes = canonical({"writer": "ckptfmt vectors"})

    def header(self, shard: int, root: str) -> bytes:
        """Section 9.1."""
        number = f"{shard + 1}/{len(self.shards)}"
        members: dict[str, JSON] = {
            "__metadata__": {"ckptfmt.root": root, "ckptfmt.shard": number, "format": "pt"}
        }
        for row in self.rows:
            _, name, kind, shape, _, inside, offset, *_ = row.form
            if inside == shard and not row.coded:
                size = len(b"".join(row.stored))
                members[str(name)] = {
                    "dtype": SAFETENSORS.get(str(kind), "U8"),
                    "shape": shape if kind in SAFETENSORS else [size],
                    "data_offsets": [offset, offset + size],  # type: ignore[operator]
                }
        text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % PAGE)
        return u64(len(text)) + text

    def seal(
        self,
        patch: Callable[[dict[str, JSON]], object] | None = None,
        text: Callable[[bytes], bytes] | None = None,
    ) -> Files:
        """Return the files; `patch` changes the manifest's members, `text` its text without `self`."""
        digests = TreeDigests(self.tree, [bytes.fromhex(str(row.form[4])) for row in self.rows])
        root = self.root or digests.root()
        files, shards = dict(self.extra_files), []
        for index, name in enumerate(self.shards):
            header = self.header(index, root)
            files[name] = header + b"".join(b"".join(row.stored) for row in self.rows if row.form[5] == index)
            shards.append([name, len(files[name]), blake3(header).hexdigest()])
        if table := b"".join(row.table() for row in self.rows):
            files["chunks.bin"] = table
        members: dict[str, JSON] = {
            "bag": digests.bag(),
            "extra": self.extra,
            "extra_files": [
                [name, len(data), blake3(data).hexdigest()] for name, data in sorted(self.extra_files.items())
            ],
            "format": [1, self.minor],
            "requires": ["coded"] if any(name.endswith(".ckz") for name in self.shards) else [],
            "root": root,
            "shards": shards,  # type: ignore[dict-item]
            "step": self.step,
            "tensors": [row.form for row in self.rows],
            "tree": self.tree,
        }
        if patch:
            patch(members)
        body = canonical(members)
        files["manifest.json"] = sealed(text(body) if text else body)
        files["provenance.json"] = sealed(self.provenance)
        return files


def draft(
    tree: object,
    *,
    target: int = 4 << 30,
    groups: Sequence[Callable[[str], bool]] = (),
    codec: str = "raw",
    coder: Callable[[bytes, str], bytes] | None = None,
) -> Draft:
    """Plan a checkpoint: sections 8.3 to 8.5.

    Parameters
    ----------
    tree : object
        A tree in the forms of section 5.3, with a `Tensor` in place of each ``["tensor", ordinal]``.
    target : int
        The size of data at which a shard is closed.
    groups : sequence of callable
        Predicates of header names that stand for the `separate` patterns.
    codec : str
    coder : callable, optional
        Returns the stored form of a chunk of an element type.
    """
    tensors: list[Tensor] = []
    form = as_form(tree, tensors)
    first = TreeDigests(form, [b""] * len(tensors)).first_paths()
    order = sorted(first, key=lambda index: _order(tensors[index], first[index]))
    places = {old: new for new, old in enumerate(order)}
    names = _names([first[index] for index in order])
    rows = []
    offset = 0
    for ordinal, index in enumerate(order):
        rows.append(_row(tensors[index], list(first[index]), names[ordinal], codec, coder))
        rows[-1].form[8] = offset if len(rows[-1].stored) > 1 else None
        offset += len(rows[-1].table())
    sizes = [len(tensors[index].data) for index in order]
    count = _fill(rows, sizes, target, groups)
    ending = "safetensors" if codec == "raw" else "ckz"
    shards = [f"data-{number + 1:05}-of-{count:05}.{ending}" for number in range(count)]
    return Draft(_renumbered(form, places), rows, shards)


def as_form(tree: object, tensors: list[Tensor]) -> JSON:
    """Return a tree as a form, its tensors put into `tensors` and numbered as they are met."""
    if isinstance(tree, Tensor):
        if tree not in tensors:
            tensors.append(tree)
        return ["tensor", tensors.index(tree)]
    if isinstance(tree, list):
        return [as_form(item, tensors) for item in tree]
    return tree  # type: ignore[return-value]


def _renumbered(form: JSON, places: dict[int, int]) -> JSON:
    match form:
        case ["tensor", int(ordinal)] if not isinstance(ordinal, bool):
            return ["tensor", places[ordinal]]
        case [*items]:
            return [_renumbered(item, places) for item in items]
    return form


def _order(tensor: Tensor, path: tuple[JSON, ...]) -> tuple[int, list[bytes]]:
    size = len(tensor.data)
    zeros = 0
    while zeros < 12 and size % 2 ** (zeros + 1) == 0:
        zeros += 1
    return -zeros, [encoded_key(key) for key in path]


def _names(paths: list[tuple[JSON, ...]]) -> list[str]:
    names = ["__metadata__"]
    for ordinal, path in enumerate(paths):
        name = ".".join(map(key_text, path))
        while name in names:
            name += f"#{ordinal}"
        names.append(name)
    return names[1:]


def _row(
    tensor: Tensor, path: list[JSON], name: str, codec: str, coder: Callable[[bytes, str], bytes] | None
) -> Row:
    if math.prod(tensor.shape) * bits_of(tensor.kind) > 8 * len(tensor.data):
        message = f"{name}: too few bytes"
        raise ValueError(message)
    chunks = tensor.chunks
    form: list[JSON] = [path, name, tensor.kind, list(tensor.shape), tensor.digest().hex(), 0, 0, codec, None]
    digests = [blake3(chunk).digest() for chunk in chunks]
    if coder is None:
        return Row(form, tensor.data, chunks, digests)
    stored = [coder(chunk, tensor.kind) for chunk in chunks]
    own = blake3(stored[0]).hexdigest() if len(stored) == 1 else None
    return Row([*form, len(b"".join(stored)), own], tensor.data, stored, digests)


def _fill(rows: list[Row], sizes: list[int], target: int, groups: Sequence[Callable[[str], bool]]) -> int:
    """Assign rows to shards; return the number of shards."""
    chosen: list[list[int]] = [[] for _ in range(len(groups) + 1)]
    for ordinal, row in enumerate(rows):
        index = next((i for i, group in enumerate(groups, 1) if group(str(row.form[1]))), 0)
        chosen[index].append(ordinal)
    shard = -1
    for ordinals in chosen:
        filled, offset, empty = 0, 0, True
        for ordinal in ordinals:
            if empty or filled + sizes[ordinal] > target:
                shard, filled, offset = shard + 1, 0, 0
            rows[ordinal].form[5:7] = [shard, offset]
            filled, empty = filled + sizes[ordinal], False
            offset += len(b"".join(rows[ordinal].stored))
    return shard + 1
