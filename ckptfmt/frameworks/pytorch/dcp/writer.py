"""Writes a tree as a DCP directory, whose bytes depend on nothing but the tree.

Needs no PyTorch. ``FileSystemReader`` and ``dcp_to_torch_save`` of 2.13 read what is written, without a
process group. Each item is a file of `torch.save`, placed so that the bytes of its tensors stand at multiples
of 64. The directory is there whole, or not at all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from ckptfmt.containers.noted.note import NOTE
from ckptfmt.errors import ExistsError, TreeError
from ckptfmt.frameworks.pytorch.carried import carry
from ckptfmt.frameworks.pytorch.dcp.emit import encode_metadata
from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, Place, TensorRow
from ckptfmt.frameworks.pytorch.dcp.planning import plan
from ckptfmt.frameworks.pytorch.dcp.reader import METADATA
from ckptfmt.frameworks.pytorch.writer import write_to
from ckptfmt.storage.commit import Staging
from ckptfmt.tree.box import Box
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ckptfmt.frameworks.pytorch.dcp.flattening import Item
    from ckptfmt.frameworks.pytorch.dcp.planning import Planned
    from ckptfmt.storage.files import DataFile
    from ckptfmt.tree.nodes import Tree

__all__ = ["write"]

_SUFFIX = ".distcp"
_ALIGNMENT = 64
_BUFFER = 1 << 20


def write(
    tree: Tree,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    shard_size: int | None = None,
) -> tuple[Finding, ...]:
    """Write a tree to a directory, all of it or none.

    Mappings are entered and so are lists that hold mappings or tensors, as DCP does it; every tensor is an
    item of one chunk, everything else an item that PyTorch unpickles. Tied tensors are one item of several
    names. A structure note, the item ``ckptfmt.tree``, is added where that does not give the tree back.

    Parameters
    ----------
    tree : Tree
        One that is no mapping is written as ``{"root": tree}``.
    target : str or os.PathLike
    overwrite : bool
        Whether a directory that holds a DCP checkpoint and nothing else is replaced.
    shard_size : int, optional
        Bytes at which a file is closed; all items lie in one by default. An item is never split.

    Returns
    -------
    tuple of Finding
        ``structure-note`` and what goes with it for what only our reader brings back.

    Raises
    ------
    ConversionError
        Two paths would have one name, which DCP refuses.
    TreeError, LimitError
        The tree cannot be kept.
    ExistsError, UnsupportedError, NoSpaceError, StorageError
        It could not be written; the target is as it was.
    """
    planned = plan(tree)
    if overwrite:
        _check_replaceable(Path(target))
    with Staging(target, overwrite="exchange" if overwrite else "no", record=METADATA) as staging:
        files = _Files(staging, shard_size)
        findings = files.write(planned)
        staging.write_bytes(METADATA, _encoded(files.metadata))
        staging.commit()
    return findings


def _encoded(metadata: Metadata) -> bytes:
    try:
        return encode_metadata(metadata)
    except UnicodeEncodeError as error:
        raise TreeError(f"a key is not valid Unicode: {error.object[:80]!r}") from None


def _check_replaceable(directory: Path) -> None:
    """Raise ExistsError if a directory that is there holds anything but a DCP checkpoint."""
    if not (directory / METADATA).is_file():
        return  # free, or refused by `Staging`
    names = sorted(path.name for path in directory.iterdir())
    other = next((name for name in names if name != METADATA and not name.endswith(_SUFFIX)), None)
    if other is not None:
        message = f"holds {other!r}, which is no part of a DCP checkpoint: it is not overwritten"
        raise ExistsError(message, file=os.fspath(directory))


class _Files:
    """The files of items of one directory, one after the other."""

    def __init__(self, staging: Staging, shard_size: int | None) -> None:
        self.metadata = Metadata({}, {}, {})
        self._staging = staging
        self._shard_size = shard_size
        self._count = 0
        self._stream: _Stream | None = None
        self._places: dict[Hashable, Place] = {}
        self._nodes: list[Tree] = []  # kept, so that no later node has the id of one of them

    def write(self, planned: Planned) -> tuple[Finding, ...]:
        """Write all items, and the note if there must be one; return what there is to tell."""
        found: list[Finding] = [*planned.stored_raw]
        for item in planned.items:
            found += self._item(item)
        findings = planned.findings
        if not planned.plain or found:
            self._place_object(NOTE, (NOTE,), planned.note())
            message = "the structure note, an item of the name ckptfmt.tree, keeps what DCP does not"
            structure = Finding("structure-note", "", Severity.INFO, message)
            found = [replace(finding, severity=Severity.INFO) for finding in found]
            findings = (*findings, *found, structure)
        if self._stream is not None:
            self._stream.close()
        return findings

    def _item(self, item: Item) -> list[Finding]:
        if isinstance(item.node, Tensor):
            self._place_tensor(item, item.node)
            return []
        findings = self._place_object(item.name, item.path, item.node)
        return [
            replace(finding, path="/".join(filter(None, (display(item.origin), finding.path))))
            for finding in findings
        ]

    def _place_tensor(self, item: Item, tensor: Tensor) -> None:
        carried = carry(tensor)
        grad = tensor.tag is not None and tensor.tag.attributes.get("requires_grad") is True
        chunk = Box.whole(carried.shape)
        row = TensorRow(carried.element, "strided", grad, carried.shape, (chunk,))
        bare = Tensor(tensor.dtype, tensor.shape, tensor.source)
        place, _ = self._written((tensor.identity, row.element, row.shape), bare)
        self.metadata.rows[item.name] = row
        self.metadata.places[item.name, chunk.offset] = place
        self.metadata.paths[item.name] = item.path

    def _place_object(self, name: str, path: tuple[str | int, ...], node: Tree) -> tuple[Finding, ...]:
        shared = id(node) if any(tensors(node)) else name  # what is equal is not one and the same
        place, findings = self._written(("node", shared), node)
        self._nodes.append(node)
        self.metadata.rows[name] = None
        self.metadata.places[name, None] = place
        self.metadata.paths[name] = path
        return findings

    def _written(self, key: Hashable, node: Tree) -> tuple[Place, tuple[Finding, ...]]:
        """Return where a node lies, written now unless it was before, and what there is to tell."""
        known = self._places.get(key)
        if known is not None:
            return known, ()
        stream = self._room_for(sum(tensor.nbytes for _, tensor in tensors(node)))
        stream.align()
        start = stream.at
        findings = write_to(node, cast("BinaryIO", stream))
        place = self._places[key] = Place(stream.name, start, stream.at - start)
        return place, findings

    def _room_for(self, nbytes: int) -> _Stream:
        """Return the file that an item of so many bytes goes to."""
        stream = self._stream
        full = stream is not None and self._shard_size is not None and stream.at + nbytes > self._shard_size
        if stream is None or (full and stream.at > 0):
            if stream is not None:
                stream.close()
            name = f"__0_{self._count}{_SUFFIX}"
            self._count += 1
            stream = self._stream = _Stream(self._staging.create(name), name)
        return stream


class _Stream:
    """A file that grows: small writes are gathered."""

    def __init__(self, file: DataFile, name: str) -> None:
        self.name = name
        self.at = 0
        self._file = file
        self._pending = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes."""
        length = len(data)
        if len(self._pending) + length > _BUFFER:
            self._flush()
        if length > _BUFFER:
            self._file.write_at(self.at, data)
        else:
            self._pending += data
        self.at += length
        return length

    def align(self) -> None:
        """Append zeros up to the next multiple of the alignment."""
        self.write(bytes(-self.at % _ALIGNMENT))

    def _flush(self) -> None:
        if self._pending:
            self._file.write_at(self.at - len(self._pending), bytes(self._pending))
            self._pending.clear()

    def close(self) -> None:
        """Write what is pending; the file is synced and closed by the commit."""
        self._flush()
        self._file.sync()
        self._file.close()
