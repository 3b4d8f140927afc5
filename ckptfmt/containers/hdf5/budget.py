"""What a file may claim: how far it may expand, what its attributes and texts take, whose bytes are whose.

A small file must not become a large array by a declared shape, by compression, or by giving the same bytes to
many datasets. Limits are those of our zip archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.heaps import largest_object
from ckptfmt.errors import FormatError, LimitError, TruncatedError

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["FREE_EXPANSION", "MAX_LINKS", "MAX_RATIO", "Budget"]

FREE_EXPANSION = 128 << 20
"""Bytes that compressed, unwritten and filled elements may take in all, however small a file is."""
MAX_RATIO = 200
"""Beyond that: how many times the size of the file."""
MAX_LINKS = 1 << 20
"""Greatest number of links, and of strings in one dataset."""

_FREE_NAMES = 1 << 16
_BYTES_OF_NAME = 64
_FREE_TEXT = 64 << 20
_FREE_ATTRIBUTES = 16 << 20
_MAX_ATTRIBUTES = 256 << 20
_SCANNED = 64 << 20


class Budget:
    """The accounts of one file.

    Parameters
    ----------
    reader : ByteReader
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._expanded = 0
        self._attributes = 0
        self._text = 0
        self._links = 0
        self._starts: list[np.ndarray] = []
        self._stops: list[np.ndarray] = []
        self._owners: list[str] = []
        self._largest: int | None = None

    def expand(self, nbytes: int, name: str) -> None:
        """Count elements that do not lie in the file as they are.

        Raises
        ------
        LimitError
            There are more than `FREE_EXPANSION` bytes of them and `MAX_RATIO` times the file.
        """
        self._expanded += nbytes
        if self._expanded > max(FREE_EXPANSION, MAX_RATIO * self._reader.size):
            message = (
                f"a file of {self._reader.size} bytes claims to expand to {self._expanded} bytes or more"
            )
            raise LimitError(message, file=self._reader.name, tensor=name)

    def occupy(self, starts: np.ndarray, stops: np.ndarray, name: str) -> None:
        """Note that bytes [`starts`, `stops`) (1-D, int64) belong to a dataset.

        Raises
        ------
        TruncatedError
            They are not all in the file.
        """
        if starts.size and (int(starts.min()) < 0 or int(stops.max()) > self._reader.size):
            end = int(stops.max())
            message = f"elements lie up to byte {end}; there are {self._reader.size}"
            raise TruncatedError(message, file=self._reader.name, tensor=name, offset=self._reader.size)
        self._starts.append(starts)
        self._stops.append(stops)
        self._owners.append(name)

    def check_owners(self) -> None:
        """Raise FormatError if two datasets, or two chunks of one, claim the same bytes."""
        if not self._starts:
            return
        starts, stops = np.concatenate(self._starts), np.concatenate(self._stops)
        order = np.argsort(starts, kind="stable")
        clash = np.flatnonzero(stops[order][:-1] > starts[order][1:])
        if clash.size:
            second = int(order[clash[0] + 1])
            owner = int(np.searchsorted(np.cumsum([s.size for s in self._starts]), second, side="right"))
            message = "its bytes belong to another dataset or chunk, too"
            at = int(starts[second])
            raise FormatError(message, file=self._reader.name, tensor=self._owners[owner], offset=at)

    def attribute(self, nbytes: int, name: str) -> None:
        """Count an attribute; raise LimitError where it or all of them take more than any file needs."""
        self._attributes += nbytes
        room = min(max(_FREE_ATTRIBUTES, 2 * self._reader.size), _MAX_ATTRIBUTES)
        if self._attributes > room:
            message = f"attributes of {self._attributes} bytes or more"
            raise LimitError(message, file=self._reader.name, tensor=name)

    def link(self) -> None:
        """Count a link; raise LimitError where there are more than `MAX_LINKS`."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise LimitError(f"more than {MAX_LINKS} links", file=self._reader.name)

    def name(self, path: str) -> None:
        """Count a path; groups with several names have many.

        Raises
        ------
        LimitError
            There are more than the size of the file warrants, or they take more than the file can hold.
        """
        self._links += 1
        most = min(_FREE_NAMES + self._reader.size // _BYTES_OF_NAME, MAX_LINKS)
        if self._links > most:
            message = f"links make more than {most} paths of a file of {self._reader.size} bytes"
            raise LimitError(message, file=self._reader.name)
        self.text(len(path), path[:400])

    def text(self, nbytes: int, name: str) -> None:
        """Count strings that were read; raise LimitError where they take more than the file can hold."""
        self._text += nbytes
        if self._text > max(_FREE_TEXT, 2 * self._reader.size):
            message = f"strings of {self._text} bytes or more from a file of {self._reader.size}"
            raise LimitError(message, file=self._reader.name, tensor=name)

    def strings_at_once(self) -> int:
        """Return how many strings of any length may be read in one go."""
        return max(1, _FREE_TEXT // max(self.longest_string(), 16))

    def longest_string(self) -> int:
        """Return how long a string can be: as the largest object of a heap in a small file, else 64 KiB.

        Many elements may point to one long string, which the library copies for each of them; in a file that
        is large anyway, that is only counted afterwards.
        """
        if self._largest is None:
            small = self._reader.size <= _SCANNED
            self._largest = largest_object(self._reader.read(0, self._reader.size)) if small else 64 << 10
        return self._largest
