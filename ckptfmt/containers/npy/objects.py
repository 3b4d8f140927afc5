"""The one pickle in npy files that is understood: a 0-d object array that holds None.

``numpy.save(file, None)`` makes it, and Chainer does for every parameter that was never initialised. It is
compared part by part with what numpy 1 and 2 write under protocols 0 to 5; nothing is called, and any
other array of objects is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.interpreter import Limits, interpret
from ckptfmt.containers.pickle.nodes import Call, Global, LegacyText
from ckptfmt.errors import FormatError, UnsupportedVersionError

if TYPE_CHECKING:
    from ckptfmt.containers.npy.header import NpyHeader
    from ckptfmt.storage.reader import ByteReader

__all__ = ["NONE_PICKLE", "check_none"]

_MAX_PICKLE = 1024
_LIMITS = Limits(opcodes=256, memo=64, marks=16)

NONE_PICKLE = (
    b"\x80\x03cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02C\x01bq\x03"
    b"\x87q\x04Rq\x05(K\x01)cnumpy\ndtype\nq\x06X\x02\x00\x00\x00O8q\x07\x89\x88\x87q\x08Rq\t(K\x03X\x01\x00"
    b"\x00\x00|q\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tq\x0bb\x89]q\x0cNatq\rb."
)
"""What numpy 1 writes after the header of ``numpy.asarray(None)``."""


def check_none(reader: ByteReader, header: NpyHeader) -> None:
    """Raise unless an array of objects is exactly the 0-d array that holds None.

    Raises
    ------
    UnsupportedVersionError
        It holds anything else, or is no scalar.
    FormatError
        Its pickle is malformed.
    """
    size = reader.size - header.data_start
    if header.shape == () and size <= _MAX_PICKLE:
        data = reader.read(header.data_start, size)
        try:
            value, end = interpret(data, file=reader.name, limits=_LIMITS)
        except FormatError as error:
            offset = header.data_start + (error.offset or 0)
            raise type(error)(error.message, file=reader.name, offset=offset) from None
        if end == size and _is_none_array(value):
            return
    raise UnsupportedVersionError(
        "an array of Python objects other than None: it would have to be unpickled, which can run any code",
        file=reader.name,
        offset=header.data_start,
    )


def _is_none_array(value: object) -> bool:
    """Whether a node is an array of state (version 1, shape (), objects, C or Fortran order, [None])."""
    call = _parts(value, "numpy.core.multiarray._reconstruct") or _parts(
        value, "numpy._core.multiarray._reconstruct"
    )
    if call is None or len(call[0]) != 3 or len(call[1]) != 5:
        return False
    (kind, shape, code), (version, extents, element, fortran_order, values) = call
    shown: list[object] = [_name(kind), shape, _text(code), version, extents, values]
    expected = ["numpy.ndarray", (0,), "b", 1, (), [None]]
    return shown == expected and fortran_order in (False, True) and _is_object(element)


def _is_object(value: object) -> bool:
    """Whether a node is what numpy writes for ``dtype(object)``, of either pointer width."""
    call = _parts(value, "numpy.dtype")
    if call is None or len(call[0]) != 3 or len(call[1]) != 8:
        return False
    (code, align, copy), (version, order, *rest) = call
    shown: list[object] = [_text(code), align, copy, version, _text(order), *rest]
    return shown[0] in ("O8", "O4") and shown[1:] == [False, True, 3, "|", None, None, None, -1, -1, 63]


def _parts(value: object, function: str) -> tuple[tuple[object, ...], tuple[object, ...]] | None:
    """Return the arguments and the state of a call of a function, if a node is that and no more."""
    if not isinstance(value, Call) or _name(value.function) != function or value.items or value.pairs:
        return None
    return (value.args, value.state) if isinstance(value.state, tuple) else None


def _name(value: object) -> str:
    return str(value) if isinstance(value, Global) else ""


def _text(value: object) -> str | None:
    """Return a string however protocol and Python version wrote it: text, bytes, or bytes encoded."""
    if isinstance(value, Call):
        call: list[object] = [_name(value.function), value.args, value.state]
        return "b" if call == ["_codecs.encode", ("b", "latin1"), None] else None
    if isinstance(value, LegacyText):
        return value.text()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None
