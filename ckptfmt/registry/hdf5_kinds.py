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

_KINDS: tuple[tuple[str, Callable[[Outline], bool]], ...] = ()
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
