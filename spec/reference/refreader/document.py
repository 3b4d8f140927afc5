"""Sections 2, 5.1 and 5.2: digests, canonical JSON, sealed documents; and the error of section 12."""

from __future__ import annotations

import json
import re
from typing import NoReturn, TypeAlias

from blake3 import blake3

JSON: TypeAlias = "bool | int | str | list[JSON] | dict[str, JSON] | None"
MAX_INT, MAX_NESTING = 2**53, 512
KINDS = {"R-001": "missing-file", "R-002": "missing-file", "R-012": "unsupported-version", "R-015": "limit"}
KINDS |= {"R-013": "unsupported-version", "R-043": "replaced"}
KINDS |= dict.fromkeys(["R-011", "R-041", "R-051", "R-052", "R-053", "R-060", "R-061"], "checksum")
SEAL = re.compile(rb',"self":"([0-9a-f]{64})"\}')
SEAL_LENGTH = len(b',"self":""}') + 64


class RejectedError(ValueError):
    """A checkpoint that section 12 refuses: the rule, the kind and a message for people."""

    def __init__(self, rule: str, kind: str, message: str) -> None:
        super().__init__(f"{rule} ({kind}): {message}")
        self.rule, self.kind, self.message = rule, kind, message


def refuse(rule: str, message: str, kind: str | None = None) -> NoReturn:
    """Refuse the checkpoint, with the kind of section 12 unless another is given."""
    raise RejectedError(rule, kind or KINDS.get(rule, "malformed"), message)


def require(condition: object, rule: str, message: str, kind: str | None = None) -> None:
    """Refuse the checkpoint unless `condition` holds."""
    if not condition:
        refuse(rule, message, kind)


def digest(data: bytes, context: str | None = None) -> bytes:
    """Return BLAKE3(data), or D(context, data)."""
    return (blake3(data, derive_key_context=context) if context else blake3(data)).digest()


def u64(*numbers: int) -> bytes:
    """Return each number in 8 bytes."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def field(data: bytes) -> bytes:
    """Return a byte string behind its length."""
    return u64(len(data)) + data


def encode(value: JSON) -> bytes:
    """Return the canonical form of a JSON value; ValueError if it has a lone surrogate."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def parse(data: bytes, rule: str) -> JSON:
    """Return the value of a canonical document; any other breaks `rule`."""
    try:
        value: JSON = json.loads(data.decode(), parse_int=_integer, parse_float=_no, parse_constant=_no)
        canonical = encode(value) == data
    except RecursionError:
        refuse("R-015", "JSON nested too deeply")
    except ValueError as error:
        refuse(rule, f"not canonical JSON: {error}")
    require(canonical, rule, "JSON that is not in canonical form")
    require(_nesting(value) <= MAX_NESTING, "R-015", "JSON nested too deeply")
    return value


def _integer(text: str) -> int:
    return int(text) if len(text) <= 17 and abs(int(text)) <= MAX_INT else _no(text)


def _no(text: str) -> NoReturn:
    message = f"the number {text[:40]}"
    raise ValueError(message)


def _nesting(value: JSON) -> int:
    levels, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, (list, dict))]:
        layer = [child for item in layer for child in (item.values() if isinstance(item, dict) else item)]
        levels += 1
    return levels


def unseal(data: bytes, form_rule: str, digest_rule: str) -> dict[str, JSON]:
    """Return the members of a document that ends in its own digest, without `self`."""
    body, seal = data[:-SEAL_LENGTH], SEAL.fullmatch(data[-SEAL_LENGTH:])
    value = parse(body + b"}", form_rule) if seal else None
    if seal is None or not isinstance(value, dict) or "self" in value:
        refuse(form_rule, "not an object that ends in its self digest")
    require(digest(body).hex().encode() == seal[1], digest_rule, "the self digest differs", "checksum")
    return value


def is_count(value: JSON, most: int = MAX_INT) -> bool:
    """Whether a value is an integer from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_digest(value: JSON) -> bool:
    """Whether a value is 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def is_shape(value: JSON) -> bool:
    """Whether a value is a list of dimensions."""
    return isinstance(value, list) and len(value) <= 64 and all(map(is_count, value))
