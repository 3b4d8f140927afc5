"""Which format an HDF5 file is of, told by the names at its top.

One row for each framework, the surer first; what fits none is a plain HDF5 file. Without h5py nobody can look
into the file: it is an HDF5 file then, and reading it tells the extra that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.superblock import read_superblock
from ckptfmt.registry.table import Format, format_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptfmt.containers.hdf5.outline import Outline
    from ckptfmt.storage.reader import ByteReader

__all__ = ["hdf5_kind"]

_NOTE = "ckptfmt.tree"


def _is_chainer(top: Outline) -> bool:
    """Whether it is a trainer's snapshot, or was written by us for Chainer; a model alone is any file."""
    updater = top.groups.get("updater")
    return "ckptfmt.chainer" in top.attributes or (
        updater is not None
        and "iteration" in updater.datasets
        and any(name.startswith(("model:", "optimizer:", "iterator:")) for name in updater.groups)
    )


def _is_keras_h5(top: Outline) -> bool:
    """Whether there is a list of layers, one whose parts are numbered among them; or a model's own."""
    model = top.groups.get("model_weights")
    lists = top.attributes | (model.attributes if model is not None else frozenset())
    return not {"layer_names", "layer_names0"}.isdisjoint(lists)


def _is_keras_weights(top: Outline) -> bool:
    """Whether a group ``vars`` holds nothing, or arrays that are numbered; ours say what they are else."""
    return _NOTE not in top.datasets and any(_is_numbered(group) for group in _called(top, "vars"))


def _is_numbered(group: Outline) -> bool:
    return any(map(str.isdecimal, group.datasets)) or not (group.datasets or group.groups)


def _called(group: Outline, name: str) -> Iterator[Outline]:
    for key, below in group.groups.items():
        if key == name:
            yield below
        yield from _called(below, name)


_KINDS: tuple[tuple[str, Callable[[Outline], bool]], ...] = (
    ("chainer-hdf5", _is_chainer),
    ("keras-h5", _is_keras_h5),
    ("keras-weights", _is_keras_weights),
)
"""The name of a format, and whether the top of a file is as its writer makes it."""


def hdf5_kind(reader: ByteReader) -> Format:
    """Return the format of a file that has the signature of HDF5.

    Raises
    ------
    TruncatedError
        It is cut short.
    FormatError, UnsupportedVersionError
        It is damaged, open for writing, or of a newer version.
    """
    read_superblock(reader)
    try:
        from ckptfmt.containers.hdf5.outline import outline  # noqa: PLC0415 - h5py is optional
    except ImportError:
        return format_named("hdf5")
    found = outline(reader)
    for name, fits in _KINDS:
        if fits(found):
            return format_named(name)
    return format_named("hdf5")
