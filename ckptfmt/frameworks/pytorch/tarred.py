"""Reads the tar archives of `torch.save` before 0.1.10.

The members ``storages`` and ``tensors`` list what their names say, each entry a pickle with numbers after it;
``pickle`` holds the object, which refers to both by key (``torch/serialization.py``, `legacy_load`). Needs no
PyTorch, executes nothing; storages stay in the archive until they are asked for.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.arrays import text_of
from ckptfmt.containers.pickle.interpreter import Limits, interpret_from
from ckptfmt.containers.pickle.nodes import Call, Global, PersistentId, shown
from ckptfmt.containers.tar import read_tar
from ckptfmt.errors import FormatError, MissingFileError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.arguments import is_count, key_of
from ckptfmt.frameworks.pytorch.keys import torch_function
from ckptfmt.frameworks.pytorch.opening import opened
from ckptfmt.frameworks.pytorch.ranges import RangeStorages
from ckptfmt.frameworks.pytorch.reader import limits_for, tree_of
from ckptfmt.frameworks.pytorch.rebuild import Tensors
from ckptfmt.frameworks.pytorch.stream import sources_dropped

if TYPE_CHECKING:
    import os

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["read", "read_archive"]

_MEMBERS = ("storages", "tensors", "pickle")
_MAX_NDIM = 64
_KEY = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_SMALL = Limits(opcodes=1000, memo=1000, marks=16, objects=1000)


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a tar archive of `torch.save`.

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
        The file is damaged, hostile or of another kind; names the file, the member and the offset in it.
    TruncatedError
        It ends early.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    return opened(path, "torch-tar", read_archive)


def read_archive(reader: ByteReader) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of an archive, and what was found; errors as `read`."""
    members = read_tar(reader)
    for name in _MEMBERS:
        if name not in members:
            message = f"not an archive of torch.save: there is no member {name!r}"
            raise MissingFileError(message, file=reader.name)
    listed, described, pickled = (members[name].open(reader) for name in _MEMBERS)
    objects = _Objects(listed)
    objects.add_tensors(described)
    body = interpret_from(pickled, limits=limits_for(reader))
    makes = Tensors(objects.storages, refer=objects.find)
    tree, findings = tree_of(body.value, makes, file=pickled.name)
    return tree, (*findings, *sources_dropped(body.outside))


class _Objects:
    """What the object of an archive refers to, by key."""

    def __init__(self, reader: ByteReader) -> None:
        self.storages = RangeStorages(reader)
        self._elements: dict[int, ElementType] = {}
        self._nodes: dict[int, object] = {}
        at, count = _count(reader)
        for _ in range(count):
            at = self._add_storage(reader, at)
        self._add_views(reader, at)

    def find(self, node: PersistentId) -> object:
        """Return what a reference stands for: nodes that `Tensors` understands."""
        value = node.value
        if isinstance(value, tuple) and value:
            return value[0]  # a class, with its source
        text = text_of(value)
        key = int(text) if text is not None and _KEY.fullmatch(text) else value
        if type(key) is int and key in self._nodes:
            return self._nodes[key]
        raise FormatError(f"a reference to {shown(value)}, which is not in the archive")

    def _add_storage(self, reader: ByteReader, at: int) -> int:
        entry = interpret_from(reader, start=at, limits=_SMALL)
        value = entry.value
        if not isinstance(value, tuple) or len(value) != 3 or not _is_key(value[0]):
            raise FormatError("not a storage's key, place and type", file=reader.name, offset=at)
        element = keys.storage_element(value[2]) if isinstance(value[2], Global) else None
        if element is None:
            message = f"{shown(value[2])} is no storage class"
            raise FormatError(message, file=reader.name, offset=at)
        end = self.storages.add(str(value[0]), entry.end, element.width)
        self._know(value[0], element)
        return end

    def _know(self, key: int, element: ElementType) -> None:
        self._elements[key] = element
        count = (self.storages.size_of(str(key)) or 0) // element.width
        cls = Global("torch", str(element.storage))
        self._nodes[key] = PersistentId(("storage", cls, str(key), "cpu", count))

    def _add_views(self, reader: ByteReader, at: int) -> None:
        """Add storages that are views of others."""
        views = interpret_from(reader, start=at, limits=limits_for(reader)).value
        if not isinstance(views, list):
            raise FormatError("no list of views after the storages", file=reader.name, offset=at)
        for view in views:
            if not isinstance(view, tuple) or len(view) != 4 or not _is_view(view):
                raise FormatError("not a view of a storage", file=reader.name, offset=at)
            target, root, offset, count = view
            element = self._elements.get(root)
            if element is None:
                raise FormatError(
                    f"a view of a storage {root} that is not there", file=reader.name, offset=at
                )
            whole = self.storages.find(str(root), self.storages.size_of(str(root)) or 0)
            self.storages.alias(str(target), whole.part(offset * element.width, count * element.width))
            self._know(target, element)

    def add_tensors(self, reader: ByteReader) -> None:
        """Add what the member ``tensors`` lists."""
        at, count = _count(reader)
        for _ in range(count):
            at = self._add_tensor(reader, at)

    def _add_tensor(self, reader: ByteReader, at: int) -> int:
        entry = interpret_from(reader, start=at, limits=_SMALL)
        value = entry.value
        if not isinstance(value, tuple) or len(value) != 3 or not _is_key(value[0]):
            raise FormatError("not a tensor's key, storage and type", file=reader.name, offset=at)
        key, storage = value[:2]
        if type(storage) is not int or storage not in self._elements:
            raise FormatError(f"a tensor of a storage {shown(storage)} that is not there", file=reader.name)
        if key in self._nodes:
            raise FormatError(f"two objects have the key {key}", file=reader.name, offset=at)
        ndim = int.from_bytes(reader.read(entry.end, 8)[:4], "little", signed=True)
        if not 0 <= ndim <= _MAX_NDIM:
            raise FormatError(f"a tensor of {ndim} dimensions", file=reader.name, offset=entry.end)
        length = 8 * (2 * ndim + 1)
        numbers = struct.unpack(f"<{2 * ndim + 1}q", reader.read(entry.end + 8, length))
        view = (numbers[-1], numbers[:ndim], numbers[ndim:-1])  # offset, size, stride
        self._nodes[key] = Call(torch_function("_rebuild_tensor"), (self._nodes[storage], *view))
        return entry.end + 8 + length


def _is_key(value: object) -> bool:
    return type(value) is int and key_of(value) is not None


def _is_view(view: tuple[object, ...]) -> bool:
    """Whether a tuple of four is two keys, an offset and a length."""
    return _is_key(view[0]) and _is_key(view[1]) and is_count(view[2]) and is_count(view[3])


def _count(reader: ByteReader) -> tuple[int, int]:
    """Return where the entries of a member begin, and their number."""
    first = interpret_from(reader, limits=_SMALL)
    count = first.value
    if type(count) is not int or not 0 <= count <= reader.size:
        raise FormatError(f"not a number of entries: {shown(count)}", file=reader.name, offset=0)
    return first.end, count
