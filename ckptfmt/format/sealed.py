"""Documents that carry their own digest as last member: section 5.2 of ``spec/ckptfmt-1.0.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from ckptfmt.errors import ChecksumError, FormatError
from ckptfmt.tree.canonical import dumps, loads

if TYPE_CHECKING:
    from ckptfmt.tree.canonical import JSON

__all__ = ["seal", "unseal"]

_BEFORE = b',"self":"'
_TAIL = len(_BEFORE) + 64 + len(b'"}')


def seal(document: dict[str, JSON]) -> bytes:
    """Return the bytes of a document, its digest included."""
    body = dumps(document)[:-1]
    return body + _BEFORE + blake3(body).hexdigest().encode() + b'"}'


def unseal(data: bytes, *, file: str, form: str = "R-010", digest: str = "R-011") -> dict[str, JSON]:
    """Return the members of a sealed document, the digest checked and left out.

    Parameters
    ----------
    data : bytes
    file : str
        For errors.
    form, digest : str
        The rules that are broken by another form and by another digest.

    Raises
    ------
    FormatError
        The bytes are not a canonical document with `self` last.
    ChecksumError
        The digest does not match.
    """
    body, tail = data[:-_TAIL], data[-_TAIL:]
    hexed = tail[len(_BEFORE) : -2]
    sealed = tail.startswith(_BEFORE) and tail.endswith(b'"}') and not hexed.strip(b"0123456789abcdef")
    if not sealed:
        raise FormatError(
            'the document does not end in its "self" digest', rule=form, file=file, offset=len(body)
        )
    if blake3(body).hexdigest().encode() != hexed:
        raise ChecksumError("the document does not match its own digest", rule=digest, file=file)
    try:
        document = loads(body + b"}")
    except FormatError as error:
        raise error.located(file=file, rule=form) from None
    if not isinstance(document, dict) or "self" in document:
        raise FormatError("the document is not an object", rule=form, file=file)
    return document
