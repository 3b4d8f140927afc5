"""Safetensors files whose tensors are parts of larger ones, as the ranks of torch.distributed write them.

``__metadata__["DCP_SHARDING_INFO"]`` of each file is JSON, ``{tensor: {"saved_offsets": [...]}}``: where in
the whole its tensors begin (``torch/distributed/checkpoint/{hf_storage,_hf_utils}.py``). There is no index,
and no file tells the whole shape: it reaches as far as the parts do. Nothing here reads tensors.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.tree.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.containers.safetensors import Header

__all__ = ["PARTS", "is_part_name", "part_boxes", "whole_shape"]

PARTS = frozenset({"DCP_SHARDING_INFO", "DCP_VERSION"})
"""The members of ``__metadata__`` that tell of parts."""

_INFO = "DCP_SHARDING_INFO"
_NAME = re.compile(r"shard-[0-9]{5,}-model-[0-9]{5,}-of-[0-9]{5,}\.safetensors")
_MAX_OFFSET = 2**53


def is_part_name(name: str) -> bool:
    """Whether a file is called as a rank calls its part."""
    return _NAME.fullmatch(name) is not None


def part_boxes(header: Header, *, file: str) -> dict[str, Box] | None:
    """Return where each tensor of a file lies in the whole; None for a file that does not tell.

    Parameters
    ----------
    header : Header
    file : str
        What to call the file in errors.

    Raises
    ------
    FormatError
        What it tells is malformed, or does not name exactly the tensors that it has.
    LimitError
        It is nested too deeply.
    """
    text = (header.metadata or {}).get(_INFO)
    if text is None:
        return None
    info = _parsed(text, file)
    shapes = {entry.name: entry.shape for entry in header.entries}
    different = sorted(set(info) ^ set(shapes))
    if different:
        where = "is there and not in" if different[0] in shapes else "is not there but in"
        raise FormatError(f"{different[0][:200]!r} {where} {_INFO}", file=file)
    return {name: Box(_offset(info[name], shape, name, file), shape) for name, shape in shapes.items()}


def _parsed(text: str, file: str) -> dict[str, object]:
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_refuse)
    except RecursionError:
        raise LimitError(f"{_INFO} is nested too deeply", file=file) from None
    except ValueError as error:
        raise FormatError(f"{_INFO} is malformed: {error}"[:300], file=file) from None
    if not isinstance(value, dict):
        raise FormatError(f"{_INFO} is no JSON object", file=file)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        _refuse("name that is there twice")
    return made


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"unexpected {text[:80]}")


def _offset(value: object, shape: tuple[int, ...], name: str, file: str) -> tuple[int, ...]:
    offsets = value.get("saved_offsets") if isinstance(value, dict) else None
    if not isinstance(offsets, list) or len(offsets) != len(shape):
        raise FormatError(f"its saved_offsets are not {len(shape)} numbers", file=file, tensor=name[:200])
    if not all(type(offset) is int and 0 <= offset <= _MAX_OFFSET for offset in offsets):
        raise FormatError("its saved_offsets are not all in [0, 2^53]", file=file, tensor=name[:200])
    return tuple(offsets)


def whole_shape(boxes: Sequence[Box]) -> tuple[int, ...]:
    """Return the shape that parts of one number of dimensions reach to; empty parts reach as others do."""
    reach = [
        tuple(start + length for start, length in zip(box.offset, box.shape, strict=True)) for box in boxes
    ]
    return tuple(max(ends) for ends in zip(*reach, strict=True)) if reach else ()
