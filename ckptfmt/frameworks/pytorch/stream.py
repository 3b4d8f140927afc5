"""Reads the stream of pickles that `torch.save` wrote from 0.1.10 to 1.5, and writes still when asked to.

A magic number, a version, facts about the machine and the object, each a pickle; then the keys of storages,
and the storages in that order (``torch/serialization.py``, `_legacy_load`). Needs no PyTorch, executes
nothing; storages stay in the file until they are asked for. There are no checksums in such files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.arrays import text_of
from ckptfmt.containers.pickle.interpreter import interpret_from
from ckptfmt.containers.pickle.nodes import Global, shown
from ckptfmt.errors import FormatError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.arguments import key_of
from ckptfmt.frameworks.pytorch.opening import opened
from ckptfmt.frameworks.pytorch.ranges import RangeStorages
from ckptfmt.frameworks.pytorch.reader import limits_for, tree_of
from ckptfmt.frameworks.pytorch.rebuild import Tensors
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from ckptfmt.containers.pickle.nodes import PersistentId
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

__all__ = ["MAGIC", "PROTOCOL", "Stream", "read", "read_stream", "sources_dropped"]

MAGIC = 0x1950A86A20F9469CFC6C
"""The number that such a file begins with."""
PROTOCOL = 1001
"""The only version there is."""


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a file of `torch.save` in the form of before PyTorch 1.6.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        Tensors are read from the file when they are asked for; close it when done.

    Raises
    ------
    FormatError
        The file is damaged, hostile or of another kind; names the file, the tensor and the offset.
    TruncatedError
        It ends early.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    return opened(path, "torch-legacy", read_stream)


class Stream:
    """An open stream.

    Parameters
    ----------
    reader : ByteReader
        Which has it from its first byte on.

    Attributes
    ----------
    value : object
        What its pickle describes.
    outside : tuple of PersistentId
        What the pickle refers to: storages, and classes with their source.
    storages : RangeStorages
    end : int
        The offset after the last storage.
    """

    __slots__ = ("end", "outside", "storages", "value")

    def __init__(self, reader: ByteReader) -> None:
        limits = limits_for(reader)
        body = interpret_from(reader, start=_header(reader), limits=limits)
        self.value = body.value
        self.outside = body.outside
        listed = interpret_from(reader, start=body.end, limits=limits)
        self.storages = RangeStorages(reader)
        names = _keys(listed.value, reader)
        self.end = _place(self.storages, names, listed.end, _widths(self.outside), reader)


def read_stream(reader: ByteReader) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of a stream, and what was found; errors as `read`."""
    stream = Stream(reader)
    tree, findings = tree_of(stream.value, Tensors(stream.storages), file=reader.name)
    return tree, (*findings, *_notes(stream, reader))


def _header(reader: ByteReader) -> int:
    """Return where the object's pickle begins."""
    magic = interpret_from(reader)
    if magic.value != MAGIC:
        raise FormatError("not a stream of torch.save: it begins otherwise", file=reader.name, offset=0)
    version = interpret_from(reader, start=magic.end)
    if version.value != PROTOCOL:
        message = f"version {shown(version.value)} of the stream; {PROTOCOL} is read"
        raise UnsupportedVersionError(message, file=reader.name, offset=magic.end)
    machine = interpret_from(reader, start=version.end)
    if not isinstance(machine.value, dict):
        message = "no facts about the machine where they must be"
        raise FormatError(message, file=reader.name, offset=version.end)
    return machine.end


def _keys(value: object, reader: ByteReader) -> list[str]:
    """Return the keys of storages in the order in which they follow."""
    if not isinstance(value, list):
        raise FormatError("no list of storages where it must be", file=reader.name)
    names = [key_of(key) for key in value]
    found = [name for name in names if name is not None]
    if len(found) != len(names):
        raise FormatError("a storage whose key is no string", file=reader.name)
    return found


def _place(
    storages: RangeStorages, names: Iterable[str], at: int, widths: dict[str, int], reader: ByteReader
) -> int:
    """Find each storage, and return the offset after the last."""
    for name in names:
        width = widths.get(name)
        if width is None:
            raise FormatError(f"a storage {name[:80]!r} that nothing refers to", file=reader.name, offset=at)
        at = storages.add(name, at, width)
    return at


def _widths(outside: Iterable[PersistentId]) -> dict[str, int]:
    """Return the width of each storage's elements; the first reference counts, as it does in PyTorch."""
    widths: dict[str, int] = {}
    for node in outside:
        value = node.value
        if not isinstance(value, tuple) or len(value) < 5 or text_of(value[0]) != "storage":
            continue  # whatever it is, it is refused where it is used
        name = key_of(value[2])
        if name is not None and name not in widths:
            element = keys.storage_element(value[1]) if isinstance(value[1], Global) else None
            widths[name] = element.width if element else 1
    return widths


def _notes(stream: Stream, reader: ByteReader) -> tuple[Finding, ...]:
    """Return what is in the file and not in its tree."""
    found = []
    if stream.end != reader.size:
        message = f"{reader.size - stream.end} bytes follow the last storage; they are not read"
        found.append(Finding("trailing-bytes", "", Severity.INFO, message, offset=stream.end))
    return (*found, *sources_dropped(stream.outside))


def sources_dropped(outside: Iterable[PersistentId]) -> tuple[Finding, ...]:
    """Return what to tell of classes that come with the text that they were made from."""
    sources = sum(_has_source(node) for node in outside)
    if not sources:
        return ()
    message = f"the source text of {sources} classes is not kept"
    return (Finding("source-dropped", "", Severity.INFO, message),)


def _has_source(node: PersistentId) -> bool:
    """Whether a reference ends in a class, its file and its source, where all of these are known."""
    value = node.value
    if not isinstance(value, tuple) or not 3 <= len(value) <= 4 or not isinstance(value[-3], Global):
        return False
    return bool(text_of(value[-1]))
