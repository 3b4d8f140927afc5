"""The `.metadata` of a directory that we write: the pickle that DCP's own reader expects, of neutral content.

Objects are made as PyTorch 2.13 would pickle them, without the path of who wrote it or random ids, so that
the bytes depend on nothing but the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.emitter import BATCH, Emitter
from ckptfmt.frameworks.pytorch.dcp.metadata import MODULE, STORAGE_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptfmt.frameworks.pytorch.dcp.metadata import Metadata, Place, TensorRow

__all__ = ["encode_metadata"]

_VERSION = "1.0.0"


def encode_metadata(metadata: Metadata) -> bytes:
    """Return the `.metadata` of rows, of one chunk for each tensor.

    Raises
    ------
    UnicodeEncodeError
        A name is not valid Unicode.
    """
    out = _MetadataEmitter()
    out.write(metadata)
    return out.finish()


class _MetadataEmitter(Emitter):
    """A pickle of DCP's classes in the making."""

    def write(self, metadata: Metadata) -> None:
        """Write all of it."""
        self._begin(MODULE, "Metadata")
        self.op(b"}(")
        self.text("state_dict_metadata")
        self._dict(metadata.rows.items(), self.text, self._row)
        self.text("planner_data")
        self._dict(metadata.paths.items(), self.text, self._path)
        self.text("storage_data")
        hints = {name: None if row is None else 0 for name, row in metadata.rows.items()}
        self._dict(metadata.places.items(), lambda key: self._key(key, hints), self._place)
        self.text("storage_meta")
        self._storage_meta()
        self.text("version")
        self.text(_VERSION)
        self.op(b"ub")

    def _begin(self, module: str, name: str) -> None:
        """Write an object that is made without arguments; its state follows, and ``b``."""
        self.name(module, name)
        self.op(b")\x81")

    def _dict(self, pairs: Iterable[tuple], key: Callable[..., None], value: Callable[..., None]) -> None:
        self.op(b"}")
        listed = list(pairs)
        for start in range(0, len(listed), BATCH):
            self.op(b"(")
            for left, right in listed[start : start + BATCH]:
                key(left)
                value(right)
            self.op(b"u")

    def _state(self, entries: Mapping[str, Callable[[], None]]) -> None:
        self.op(b"}(")
        for name, write in entries.items():
            self.text(name)
            write()
        self.op(b"ub")

    def _row(self, row: TensorRow | None) -> None:
        if row is None:
            self._begin(MODULE, "BytesStorageMetadata")
            return
        self._begin(MODULE, "TensorStorageMetadata")
        self._state(
            {
                "properties": lambda: self._properties(row),
                "size": lambda: self._size(row.shape),
                "chunks": lambda: self._chunks(row),
            }
        )

    def _properties(self, row: TensorRow) -> None:
        self._begin(MODULE, "TensorProperties")
        self.op(b"(")
        self.name("torch", row.element.name)
        self.name("torch.serialization", "_get_layout")
        self.text(f"torch.{row.layout}")
        self.call(1)
        self.boolean(row.requires_grad)
        self.name(MODULE, "_MEM_FORMAT_ENCODING")
        self.integer(0)  # contiguous
        self.call(1)
        self.boolean(False)  # noqa: FBT003 - pinned
        self.op(b"tb")

    def _size(self, shape: tuple[int, ...]) -> None:
        self.name("torch", "Size")
        self._tuple(shape)
        self.call(1)

    def _tuple(self, values: tuple[str | int, ...]) -> None:
        self.begin_tuple(len(values))
        for value in values:
            if isinstance(value, int):
                self.integer(value)
            else:
                self.text(value)
        self.end_tuple(len(values))

    def _chunks(self, row: TensorRow) -> None:
        self.op(b"](")
        for chunk in row.chunks:
            self._begin(MODULE, "ChunkStorageMetadata")
            self._state(
                {
                    "offsets": lambda c=chunk: self._size(c.offset),  # type: ignore[misc]
                    "sizes": lambda c=chunk: self._size(c.shape),  # type: ignore[misc]
                }
            )
        self.op(b"e")

    def _path(self, path: tuple[str | int, ...]) -> None:
        self._tuple(path)

    def _key(self, key: tuple[str, tuple[int, ...] | None], hints: Mapping[str, int | None]) -> None:
        name, offset = key
        self._begin(MODULE, "MetadataIndex")
        entries: dict[str, Callable[[], None]] = {"fqn": lambda: self.text(name)}
        hint = hints[name]
        entries["index"] = self.none if hint is None else lambda: self.integer(hint)
        if offset is not None:
            entries["offset"] = lambda: self._size(offset)
        self._state(entries)

    def _place(self, place: Place) -> None:
        self._begin(STORAGE_MODULE, "_StorageInfo")
        self._state(
            {
                "relative_path": lambda: self.text(place.file),
                "offset": lambda: self.integer(place.offset),
                "length": lambda: self.integer(place.length),
            }
        )

    def _storage_meta(self) -> None:
        self._begin(MODULE, "StorageMeta")
        self._state(
            {
                "checkpoint_id": self.none,
                "save_id": self.none,
                "load_id": self.none,
                "modules": lambda: self.op(b"]"),
            }
        )
