"""The names at the top of an HDF5 file, for telling what kind of file it is; no value is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from h5py import h5a, h5d, h5g, h5l, h5o

from ckptfmt.containers.hdf5.library import NATIVE_ORDER, opened, translated
from ckptfmt.containers.hdf5.superblock import read_superblock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.storage.reader import ByteReader

__all__ = ["Outline", "outline"]

_DEPTH = 3
_MOST = 4096


@dataclass(frozen=True, slots=True)
class Outline:
    """What one group holds by name; bytes of names that are no UTF-8 are escaped.

    Attributes
    ----------
    attributes : frozenset of str
        Names of its attributes.
    datasets : frozenset of str
    groups : dict of str to Outline
        Down to three levels below the root, as far as 4096 names in all reach; soft links are left out.
    """

    attributes: frozenset[str]
    datasets: frozenset[str]
    groups: Mapping[str, Outline]


def outline(reader: ByteReader) -> Outline:
    """Return the outline of a file.

    Raises
    ------
    FormatError, TruncatedError, UnsupportedVersionError
        It is damaged, cut short, or of a newer version.
    """
    with opened(reader, read_superblock(reader).offset) as file, translated(reader.name):
        return _outline(h5o.open(file, b"/"), _DEPTH, [_MOST])


def _outline(found: h5g.GroupID, depth: int, left: list[int]) -> Outline:
    names: list[bytes] = []
    attributes: list[bytes] = []
    h5a.iterate(found, lambda name: _take(attributes, name, left), order=NATIVE_ORDER)
    found.links.iterate(lambda name: _take(names, name, left), order=NATIVE_ORDER)
    datasets: set[str] = set()
    groups: dict[str, Outline] = {}
    for raw in sorted(names):
        if found.links.get_info(raw).type != h5l.TYPE_HARD:
            continue
        member = h5o.open(found, raw)
        if isinstance(member, h5d.DatasetID):
            datasets.add(_shown(raw))
        elif isinstance(member, h5g.GroupID):
            deeper = _outline(member, depth - 1, left) if depth else Outline(frozenset(), frozenset(), {})
            groups[_shown(raw)] = deeper
    return Outline(frozenset(map(_shown, attributes)), frozenset(datasets), groups)


def _take(names: list[bytes], name: bytes, left: list[int]) -> bool | None:
    """Keep a name while there is room; True ends the iteration."""
    if left[0] <= 0:
        return True
    left[0] -= 1
    names.append(name)
    return None


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
