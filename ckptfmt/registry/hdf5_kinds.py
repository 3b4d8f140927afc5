"""Which format an HDF5 file is of, told by the names at its top.

One row for each framework, the surer first; what fits none is a plain HDF5 file. Without h5py nobody can look
into the file: it is an HDF5 file then, and reading it tells the extra that is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.superblock import read_superblock
from ckptfmt.registry.table import Format, format_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.containers.hdf5.outline import Outline
    from ckptfmt.storage.reader import ByteReader

__all__ = ["hdf5_kind"]


def _is_chainer(top: Outline) -> bool:
    """Whether it is a trainer's snapshot, or was written by us for Chainer; a model alone is any file."""
    updater = top.groups.get("updater")
    return "ckptfmt.chainer" in top.attributes or (
        updater is not None
        and "iteration" in updater.datasets
        and any(name.startswith(("model:", "optimizer:", "iterator:")) for name in updater.groups)
    )


_KINDS: tuple[tuple[str, Callable[[Outline], bool]], ...] = (("chainer-hdf5", _is_chainer),)
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
