"""A V1 checkpoint, read: the lists of tensors at once, data when it is asked for.

A checkpoint is one table, or a set of them called ``<name>-?????-of-?????``; a tensor may lie in slices in
any of them, which are joined when they are read. Source: ``tensorflow/core/util/tensor_slice_reader.cc``.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, final

import numpy as np

from ckptfmt.containers.bundle.entries import BundleEntry
from ckptfmt.containers.bundle.keys import Slice, box_of
from ckptfmt.containers.bundle.kinds import STRING, base_number, dtype_of_number, tag_of_number
from ckptfmt.containers.bundle.names import VERSION
from ckptfmt.containers.checkpoint_v1.table import SliceSource, TableFile
from ckptfmt.containers.checkpoint_v1.values import LISTS, decode_text
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import FormatError, LimitError, MissingFileError, NotFoundError, UnsupportedVersionError
from ckptfmt.storage.pool import open_files
from ckptfmt.tree.nodes import Strings
from ckptfmt.tree.pieces import JoinedSource
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from ckptfmt.tree.box import Box

__all__ = ["CheckpointV1", "files_of", "read_checkpoint_v1"]

_MOST_JOINED = 32
_SHARD = re.compile(r"(.+)-([0-9]{5}|\?{5})-of-([0-9]{5})")


@final
class CheckpointV1:
    """An open checkpoint.

    Attributes
    ----------
    files : tuple of str
    entries : mapping of str to BundleEntry
        Ascending by name.
    """

    def __init__(self, files: Iterable[str], entries: Mapping[str, BundleEntry], stack: ExitStack) -> None:
        self.files = tuple(files)
        self.entries = MappingProxyType(dict(entries))
        self._stack = stack

    def close(self) -> None:
        """Close the files. Mapped bytes that were handed out stay valid until they are dropped."""
        self._stack.close()

    def __enter__(self) -> CheckpointV1:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def files_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the files of a checkpoint: it is told by the file, one of a set, or what a set has in common.

    Raises
    ------
    NotFoundError
        There is neither a file nor a set of that name.
    FormatError
        There are several sets of that name.
    """
    target = Path(path)
    found = _SHARD.fullmatch(target.name)
    if found is not None:
        return _set(target.parent / found[1], int(found[3]))
    if target.is_file() or not target.parent.is_dir():
        return (os.fspath(path),)
    names = (_SHARD.fullmatch(other.name) for other in target.parent.iterdir())
    counts = sorted({int(name[3]) for name in names if name is not None and name[1] == target.name})
    if not counts:
        raise NotFoundError("no such file, and no set of files of that name", file=os.fspath(path))
    if len(counts) > 1:
        raise FormatError(f"there are several sets, of {counts} files: name one file", file=os.fspath(path))
    return _set(target, counts[0])


def _set(stem: Path, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}-{shard:05d}-of-{count:05d}" for shard in range(count))


def read_checkpoint_v1(path: str | os.PathLike[str]) -> CheckpointV1:
    """Open a V1 checkpoint.

    Parameters
    ----------
    path : str or os.PathLike
        The file; or one of a set, or what the names of a set have in common.

    Raises
    ------
    NotFoundError
        There is neither a file nor a set of that name.
    MissingFileError
        A file of the set is not there; the error names it.
    TruncatedError, ChecksumError, FormatError
        A file is not what was written, or files do not fit each other.
    UnsupportedVersionError
        It was written for newer readers, or a type is unknown.
    """
    names = files_of(path)
    with ExitStack() as stack:
        try:
            readers = open_files({name: Path(name) for name in names}, stack)
        except NotFoundError as error:
            if len(names) == 1:
                raise
            raise MissingFileError("a file of the set is not there", file=error.file) from None
        files = [TableFile(readers[name]) for name in names]
        return CheckpointV1(names, _entries(files), stack.pop_all())


class _Found:
    """A tensor while its slices are gathered from the files."""

    def __init__(self, name: bytes, dtype: int, shape: tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.pieces: dict[Slice, TableFile] = {}

    def fail(self, message: str, file: str, kind: type[FormatError] = FormatError) -> NoReturn:
        shown = self.name[:200].decode(errors="backslashreplace")
        raise kind(message, file=file, tensor=shown)


def _entries(files: Sequence[TableFile]) -> dict[str, BundleEntry]:
    found: dict[bytes, _Found] = {}
    for file in files:
        versions = file.meta.versions
        if versions.min_consumer > VERSION or VERSION in versions.bad_consumers:
            message = f"a checkpoint for readers of version {versions.min_consumer}; this one is {VERSION}"
            raise UnsupportedVersionError(message, file=file.name)
        for meta in file.meta.tensors:
            one = found.setdefault(meta.name, _Found(meta.name, meta.dtype, meta.shape))
            if (one.dtype, one.shape) != (meta.dtype, meta.shape):
                one.fail("of another type or shape in another file", file.name)
            for piece in meta.slices:
                if piece in one.pieces:
                    one.fail(f"the slice {list(piece)} is there twice", file.name)
                one.pieces[piece] = file
    made = (_entry(one, files[0].name) for _, one in sorted(found.items()))
    return {entry.name: entry for entry in made}


def _entry(one: _Found, file: str) -> BundleEntry:
    try:
        name = one.name.decode()
    except UnicodeDecodeError:
        one.fail("a name that is not UTF-8", file)
    number = base_number(one.dtype)
    if number not in LISTS:
        one.fail(f"elements of type {one.dtype}, of which there are none", file, UnsupportedVersionError)
    checked_count(one.shape, file=file, tensor=name)
    try:
        boxes = [(box_of(piece, one.shape), piece) for piece in one.pieces]
    except FormatError as error:
        one.fail(error.message, file)
    if number == STRING:
        return BundleEntry(name, one.dtype, one.shape, lambda: _strings(one, boxes, name))
    try:
        tensor = _tensor(one, boxes, number)
    except FormatError as error:
        raise error.located(file=file, tensor=name) from None
    return BundleEntry(name, one.dtype, one.shape, lambda: tensor)


def _tensor(one: _Found, boxes: Sequence[tuple[Box, Slice]], number: int) -> Tensor:
    dtype = dtype_of_number(number)
    if dtype is None:
        raise AssertionError(number)
    made = []
    for box, piece in boxes:
        source = SliceSource(one.pieces[piece], one.name, piece, number, dtype, box.size)
        made.append((box, Tensor(dtype, box.shape, source)))
    tag = tag_of_number(number)
    if len(made) == 1 and made[0][0].shape == one.shape:
        return Tensor(dtype, one.shape, made[0][1].source, tag=tag)
    return Tensor(dtype, one.shape, JoinedSource(dtype, one.shape, made), tag=tag)


def _strings(one: _Found, boxes: Sequence[tuple[Box, Slice]], name: str) -> Strings:
    """Read strings, from however many slices; no more is allocated than there are strings."""
    found = []
    for box, piece in boxes:
        file = one.pieces[piece]
        try:
            values = decode_text(file.tensor(one.name, piece)[2])
        except FormatError as error:
            raise error.located(file=file.name, tensor=name) from None
        if len(values) != box.size:
            one.fail(f"{len(values)} strings in a slice of {box.size}", file.name)
        found.append((box, values))
    count = checked_count(one.shape, file=name)
    if sum(box.size for box, _ in found) != count:
        one.fail("slices are missing, or overlap", name)
    if len(found) == 1:
        return Strings(one.shape, found[0][1])
    if len(one.shape) > _MOST_JOINED:
        one.fail(f"strings in slices, of more than {_MOST_JOINED} dimensions", name, LimitError)
    whole = np.full(one.shape, None, object)
    for box, values in found:
        place = tuple(slice(at, at + n) for at, n in zip(box.offset, box.shape, strict=True))
        part = np.empty(box.size, object)
        part[:] = values
        whole[place] = part.reshape(box.shape)
    joined = tuple(whole.reshape(-1).tolist())
    if None in joined:
        one.fail("slices are missing, or overlap", name)
    return Strings(one.shape, joined)
