"""Writes pickles of protocol 2, with no more opcodes than PyTorch's restricted reader knows.

One call writes one value, in the order of the stack machine. Text and names are written once and then
referred to; numbers in the memo follow the order of first use, so the bytes depend on nothing but the calls.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["BATCH", "MAX_INT_BYTES", "Emitter"]

MAX_INT_BYTES = 255
"""Longest integer that the opcodes in use can hold, in bytes of two's complement."""
BATCH = 1000
"""Items that are put on the stack before they are moved into their container."""


class Emitter:
    """A pickle in the making."""

    def __init__(self) -> None:
        self._out = [b"\x80\x02"]
        self._memo: dict[Hashable, int] = {}

    def finish(self) -> bytes:
        """Return the whole pickle."""
        return b"".join((*self._out, b"."))

    def op(self, code: bytes) -> None:
        """Write an opcode as it is: ``(`` mark, ``t`` tuple, ``R`` call, ``Q`` outside reference, …."""
        self._out.append(code)

    def none(self) -> None:
        """Write None."""
        self._out.append(b"N")

    def boolean(self, value: bool) -> None:  # noqa: FBT001 - the value to write
        """Write True or False."""
        self._out.append(b"\x88" if value else b"\x89")

    def integer(self, value: int) -> None:
        """Write an integer.

        Raises
        ------
        OverflowError
            It takes more than `MAX_INT_BYTES` bytes.
        """
        if 0 <= value < 1 << 8:
            self._out.append(b"K%c" % value)
        elif 0 <= value < 1 << 16:
            self._out.append(b"M" + struct.pack("<H", value))
        elif -(1 << 31) <= value < 1 << 31:
            self._out.append(b"J" + struct.pack("<i", value))
        else:
            length = value.bit_length() // 8 + 1
            if length > MAX_INT_BYTES:
                raise OverflowError(f"an integer of {length} bytes")
            self._out.append(b"\x8a%c" % length + value.to_bytes(length, "little", signed=True))

    def real(self, value: float) -> None:
        """Write a float, by bits."""
        self._out.append(b"G" + struct.pack(">d", value))

    def text(self, value: str) -> None:
        """Write a string, or refer to the same one written before."""
        if not self.recall(value):
            encoded = value.encode()
            self._out.append(b"X" + struct.pack("<L", len(encoded)) + encoded)
            self.remember(value)

    def name(self, module: str, name: str) -> None:
        """Write the name of a class or function."""
        key = (module, name)
        if not self.recall(key):
            self._out.append(f"c{module}\n{name}\n".encode())
            self.remember(key)

    def data(self, value: bytes) -> None:
        """Write bytes the way protocol 2 has to: as a call that encodes characters."""
        self.name("_codecs", "encode")
        self.text(value.decode("latin-1"))
        self.text("latin1")
        self._out.append(b"\x86R")

    def begin_tuple(self, count: int) -> None:
        """Begin a tuple of `count` values, which follow."""
        if count > 3:
            self._out.append(b"(")

    def end_tuple(self, count: int) -> None:
        """End a tuple of `count` values."""
        self._out.append(b"t" if count > 3 else (b")", b"\x85", b"\x86", b"\x87")[count])

    def call(self, count: int) -> None:
        """Call the function that lies below the last `count` values, at most 3, with them."""
        self.end_tuple(count)
        self._out.append(b"R")

    def remember(self, key: Hashable) -> None:
        """Give what was written last a number under which it can be referred to."""
        index = self._memo[key] = len(self._memo)
        self._out.append(b"q%c" % index if index < 1 << 8 else b"r" + struct.pack("<L", index))

    def recall(self, key: Hashable) -> bool:
        """Write a reference to what was remembered under `key`; return whether there was such a thing."""
        index = self._memo.get(key)
        if index is None:
            return False
        self._out.append(b"h%c" % index if index < 1 << 8 else b"j" + struct.pack("<L", index))
        return True
