"""What safetensors files hold, entry by entry; tensors that lie in parts in several files, joined.

Parts are told by the files themselves. They must be of one type and number of dimensions, cover the whole and
not overlap. Nothing is read before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.safetensors import DTYPES
from ckptfmt.containers.safetensors_parts import part_boxes, whole_shape
from ckptfmt.errors import FormatError
from ckptfmt.storage.reader import RangeSource
from ckptfmt.tree.box import Box
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.nodes import Composite
from ckptfmt.tree.pieces import JoinedSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.containers.safetensors import Header
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree

    Part = tuple[Box, Entry]

__all__ = ["joined_entries", "several_parts"]


def joined_entries(files: Sequence[tuple[ByteReader, Header]]) -> list[Entry]:
    """Return the entries of all files, those in parts joined, in the order in which they are met.

    Raises
    ------
    FormatError
        Parts contradict each other, or some are not there; names the tensor.
    """
    told = [part_boxes(header, file=reader.name) for reader, header in files]
    entries = [_entries(reader, header) for reader, header in files]
    parts: dict[str, list[Part]] = {}
    if not any(told):
        listed = [entry for found in entries for entry in found]
        if len(files) > 1:
            _check_once(listed, files[0][0].name)
        return listed
    for boxes, found in zip(told, entries, strict=True):
        for entry in found:
            box = boxes[entry.name] if boxes else Box.whole(entry.shape)
            parts.setdefault(entry.name, []).append((box, entry))
    return [_joined(name, found, files[0][0].name) for name, found in parts.items()]


def _check_once(entries: Sequence[Entry], file: str) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise FormatError("is in several files, whole", file=file, tensor=entry.name[:200])
        seen.add(entry.name)


def several_parts(files: Sequence[tuple[ByteReader, Header]]) -> frozenset[str]:
    """Return the names of the tensors that several files say to have parts of."""
    seen: set[str] = set()
    again: set[str] = set()
    for reader, header in files:
        for name in part_boxes(header, file=reader.name) or ():
            (again if name in seen else seen).add(name)
    return frozenset(again)


def _entries(reader: ByteReader, header: Header) -> list[Entry]:
    made = []
    for entry in header.entries:
        length = entry.end - entry.begin
        source = RangeSource(reader, header.data_start + entry.begin, length)
        ours = DTYPES.get(entry.dtype)
        node: Tree
        if ours is None:  # the 6-bit types
            parts: dict = {"bytes": Tensor(dtype("u8"), (length,), source)}
            node = Composite(f"safetensors.{entry.dtype}", {"shape": tuple(entry.shape)}, parts)
        else:
            node = Tensor(dtype(ours), entry.shape, source)
        made.append(Entry(entry.name, entry.dtype, entry.shape, node))
    return made


def _joined(name: str, parts: Sequence[Part], file: str) -> Entry:
    """Return the entry that parts make up; one that is the whole stays what it is."""
    box, first = parts[0]
    if len(parts) == 1 and not any(box.offset):
        return first
    for other, entry in parts:
        if entry.kind != first.kind or len(other.shape) != len(box.shape):
            message = f"its parts are {first.kind} of {len(box.shape)} dimensions, and {entry.kind} of"
            raise FormatError(f"{message} {len(other.shape)}", file=file, tensor=name[:200])
    shape = whole_shape([box for box, _ in parts])
    pieces = [(box, entry.node) for box, entry in parts if isinstance(entry.node, Tensor)]
    if len(pieces) != len(parts):
        raise FormatError(f"{first.kind} cannot be joined from parts", file=file, tensor=name[:200])
    kind = pieces[0][1].dtype
    try:
        source = JoinedSource(kind, shape, pieces)
    except FormatError as error:
        raise error.located(file=file, tensor=name[:200]) from None
    return Entry(name, first.kind, shape, Tensor(kind, shape, source))
