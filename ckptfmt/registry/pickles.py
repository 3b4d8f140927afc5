"""What a pickle is by its first bytes: a stream of PyTorch, a bare pickle, or a part of something larger.

Protocols 2 and later begin with a byte of their own; text protocols only with what their first value needs.
"""

from __future__ import annotations

import re

from ckptfmt.registry.table import Format, format_named

__all__ = ["pickle_kind"]

_TORCH_MAGIC = re.compile(
    rb"(\x80[\x02-\x05])?(\x95.{8})?"
    rb"(\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19|L119547037146038801333356L?\n)",
    re.DOTALL,
)
_NAME = rb"[A-Za-z_][\w.]{0,60}\n"
_TEXT = re.compile(
    rb"\((dp|lp|tp|d|l)[0-9]*\n|[\]}]q[\x00\x01]|\(i%b%b|c%b%b(p[0-9]+\n|[q()]\S)"
    % (_NAME, _NAME, _NAME, _NAME)
)
_DCP = re.compile(
    rb"\x80[\x02-\x05](\x95.{8})?(\x8c\x25torch\.distributed\.checkpoint\.metadata\x94\x8c\x08Metadata\x94"
    rb"|ctorch\.distributed\.checkpoint\.metadata\nMetadata\n)",
    re.DOTALL,
)
_EMBEDDED = b"_load_from_bytes"


def pickle_kind(head: bytes) -> Format | tuple[str, str] | None:
    """Return the format of a pickle, or what else it is and what to do; None if it is none.

    Parameters
    ----------
    head : bytes
        Up to 4 KiB from the beginning.
    """
    if _TORCH_MAGIC.match(head):
        return format_named("torch-legacy")
    binary = len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5
    if not binary and not _TEXT.match(head):
        return None
    if _DCP.match(head):
        return format_named("dcp")
    return _part(head) or format_named("pickle")


def _part(head: bytes) -> tuple[str, str] | None:
    """Return of what a pickle is a part, or what bytes are mixed with it."""
    if b"joblib.numpy_pickle" in head or b"joblib.numpy_pickle_utils" in head:
        return "a file of joblib, which puts arrays between pickles", "Load it where you trust it."
    if (b"torch._utils" in head or b"_rebuild_tensor" in head) and _EMBEDDED not in head:
        advice = "Give the whole .pt file: what it refers to is not in here."
        return "the pickle out of a PyTorch file (its data.pkl)", advice
    return None
