"""Reads DCP directories: needs no PyTorch and no process group, executes nothing, joins shards when asked.

Opening reads the `.metadata` and the small items that are no tensors. Every file that the metadata names must
be there, every item must lie inside its file, and no item may overlap another. Two tensors that are one and
the same range of a file are tied: PyTorch never writes that, our writer does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.names import check_component, contained_path
from ckptfmt.errors import FormatError, LimitError, MissingFileError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.dcp.flattening import unflatten
from ckptfmt.frameworks.pytorch.dcp.items import ChunkSource, read_object, read_tensor_like
from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, Place, TensorRow, decode_metadata
from ckptfmt.frameworks.pytorch.dcp.noting import NOTE, with_note
from ckptfmt.frameworks.pytorch.rebuild import FREE_BYTES, MAX_EXPANSION
from ckptfmt.storage.pool import open_files
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.slices import SliceReader
from ckptfmt.tree.box import Box
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Tag
from ckptfmt.tree.paths import display
from ckptfmt.tree.pieces import JoinedSource
from ckptfmt.tree.source import BytesSource
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterable, Mapping

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree

__all__ = ["METADATA", "read"]

METADATA = ".metadata"
"""The file that makes a directory a DCP checkpoint."""

_SHOWN = 5


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a DCP directory, or one by a metadata file in it.

    Parameters
    ----------
    path : str or os.PathLike
        The directory; or its `.metadata`, or that of one rank (``__0.metadata``), as ranks write that save
        without each other.

    Returns
    -------
    Checkpoint
        The nested state dict that was saved. Tensors are joined from their chunks when they are asked for;
        close it when done.

    Raises
    ------
    FormatError, TruncatedError, LimitError
        The metadata or an item is malformed or hostile; names the file and the tensor.
    MissingFileError
        Files that the metadata names are missing; names them and how many items are in each.
    UnsupportedVersionError
        Something of it is of a kind or version that this release does not know.
    NotFoundError, StorageError
        Something is not there, or cannot be read.
    """
    given = Path(path)
    directory = given if given.is_dir() else given.parent
    where = contained_path(directory, METADATA, file=str(given)) if given.is_dir() else given
    if given.is_dir() and not where.exists():
        raise MissingFileError("there is no .metadata: the checkpoint is not complete", file=str(given))
    with ExitStack() as stack, collector_paused():
        with FileReader(where) as reader:
            metadata = decode_metadata(reader)
        items = _Items(directory, metadata, where, stack)
        tree, findings = items.tree()
        strays = items.strays()
        closing = stack.pop_all()
    return Checkpoint(tree, format="dcp", findings=(*findings, *strays), close=closing.close)


class _Items:
    """The items of one directory, by what the metadata says of them."""

    def __init__(self, directory: Path, metadata: Metadata, where: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._metadata = metadata
        self._name = str(where)
        self._token = object()
        self._files = self._opened(stack)
        _check_apart(metadata.places.values(), self._files)
        self._objects: dict[Place, tuple[Tree, tuple[Finding, ...]]] = {}
        self._claimed = self._stored = 0

    def _opened(self, stack: ExitStack) -> Mapping[str, ByteReader]:
        held: dict[str, list[str]] = {}
        for (name, _), place in self._metadata.places.items():
            held.setdefault(place.file, []).append(name)
        paths = {}
        for file in sorted(held):
            check_component(file, file=self._name)
            paths[file] = contained_path(self._directory, file, file=self._name)
        missing = [file for file, found in paths.items() if not found.is_file()]
        if missing:
            shown = ", ".join(f"{file} ({_counted(held[file])})" for file in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise MissingFileError(f"missing files: {shown}{more}", file=self._name)
        return open_files(paths, stack)

    def strays(self) -> tuple[Finding, ...]:
        """Return a finding for each file of items that the metadata does not know."""
        message = "the metadata does not know this file: it is not read"
        names = sorted(path.name for path in self._directory.iterdir() if path.name.endswith(".distcp"))
        return tuple(
            Finding("stray-shard", "", Severity.INFO, message, file=name)
            for name in names
            if name not in self._files
        )

    def tree(self) -> tuple[Tree, tuple[Finding, ...]]:
        """Return the tree, and what was found."""
        values: dict[str, Tree] = {}
        findings: list[Finding] = []
        for name, row in self._metadata.rows.items():
            if row is not None:
                values[name] = self._tensor(name, row)
                continue
            values[name], found = self._object(name)
            at = display(self._metadata.paths.get(name, (name,)))
            findings += [replace(finding, path=finding.path or at) for finding in found]
        note = values.pop(NOTE, None) if isinstance(values.get(NOTE), str) else None
        try:
            tree, gaps = unflatten(values, self._metadata.paths)
            survey(tree)  # how deep it is, and how much it expands to
        except FormatError as error:
            raise error.located(file=self._name) from None
        if isinstance(note, str):
            return with_note(tree, note, (*findings, *gaps), file=self._name)
        return tree, (*findings, *gaps)

    # --- items ----------------------------------------------------------------------------------

    def _reader(self, name: str, offset: tuple[int, ...] | None) -> tuple[Place, SliceReader]:
        place = self._metadata.places.get((name, offset))
        if place is None:
            what = "it" if offset is None else f"its chunk at {list(offset)}"
            raise MissingFileError(f"no file is told to hold {what}", file=self._name, tensor=name[:200])
        file = self._files[place.file]
        shown = f"{file.name}: item {name[:80]} at {place.offset}"
        return place, SliceReader(file, place.offset, place.length, name=shown)

    def _object(self, name: str) -> tuple[Tree, tuple[Finding, ...]]:
        place, reader = self._reader(name, None)
        known = self._objects.get(place)
        if known is None:
            known = self._objects[place] = read_object(reader, name)
            self._stored += place.length
            self._claimed += sum({id(t.source): t.nbytes for _, t, _ in survey(known[0])}.values())
            if self._claimed > FREE_BYTES + MAX_EXPANSION * self._stored:
                message = f"items claim {self._claimed} bytes of tensors, and have {self._stored}"
                raise LimitError(message, file=self._name, tensor=name[:200])
        return known

    def _tensor(self, name: str, row: TensorRow) -> Tree:
        element = row.element
        if row.layout != "strided" or element.role not in ("plain", "packed"):
            if len(row.chunks) != 1 or row.chunks[0].shape != row.shape:
                message = f"a tensor of {element.name}, layout {row.layout}, in several chunks"
                raise UnsupportedVersionError(message, file=self._name, tensor=name[:200])
            return read_tensor_like(self._reader(name, row.chunks[0].offset)[1], name)
        found = self._joined(name, row)
        if row.requires_grad:
            found.tag = Tag(keys.TENSOR, {"requires_grad": True})
        return found

    def _joined(self, name: str, row: TensorRow) -> Tensor:
        """Return a dense tensor over its chunks; empty ones may lie anywhere, several in one place."""
        kind = dtype(row.element.dtype)
        shape = _in_elements(row.shape, row)
        if 0 in shape:
            return Tensor(kind, shape, BytesSource(memoryview(b"")))
        pieces: list[tuple[Box, Tensor]] = []
        identity: list[Hashable] = [self._token, kind, shape]
        for chunk in row.chunks:
            if chunk.size == 0:
                continue
            place, reader = self._reader(name, chunk.offset)
            box = Box(_in_elements(chunk.offset, row), _in_elements(chunk.shape, row))
            if kind.nbytes(box.shape) > place.length:
                message = f"a chunk of {list(box.shape)} in an item of {place.length} bytes"
                raise FormatError(message, file=reader.name, tensor=name[:200])
            pieces.append((box, Tensor(kind, box.shape, ChunkSource(reader, kind, box.shape, name))))
            identity += [box, place]
        try:
            whole = len(pieces) == 1 and pieces[0][0].shape == shape
            source = pieces[0][1].source if whole else JoinedSource(kind, shape, pieces)
        except FormatError as error:
            raise error.located(file=self._name, tensor=name[:200]) from None
        return Tensor(kind, shape, source, identity=tuple(identity))


def _in_elements(shape: tuple[int, ...], row: TensorRow) -> tuple[int, ...]:
    """Return a size or an offset as the tree counts it: PyTorch counts pairs of packed elements."""
    if row.element.role != "packed" or not shape:
        return shape
    return (*shape[:-1], 2 * shape[-1])


def _check_apart(places: Iterable[Place], files: Mapping[str, ByteReader]) -> None:
    """Check that items lie inside their files and that no two overlap, unless they are one and the same."""
    end, last = 0, ""
    for place in sorted(set(places), key=lambda place: (place.file, place.offset, place.length)):
        if place.file != last:
            end, last = 0, place.file
        file = files[place.file]
        SliceReader(file, place.offset, place.length)  # within the file, or TruncatedError
        if place.offset < end:
            raise FormatError("two items overlap", file=file.name, offset=place.offset)
        end = place.offset + place.length


def _counted(names: list[str]) -> str:
    return f"{names[0][:80]}" if len(names) == 1 else f"{len(names)} items, {names[0][:80]} among them"
