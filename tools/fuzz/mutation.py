"""How an input is changed: bits, bytes, lengths, splices between seeds, and words of the format."""

from __future__ import annotations

import copy
import json
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

__all__ = ["TOKENS", "mutate", "mutate_json"]

TOKENS: tuple[bytes, ...] = (
    *(struct.pack("<Q", n) for n in (0, 1, 7, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1)),
    *(struct.pack("<I", n) for n in (0, 1, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)),
    *(struct.pack("<H", n) for n in (0, 1, 8, 12, 0x7FFF, 0xFFFF)),
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"PK\x07\x08",
    b"\x80\x02",
    b"\x80\x05\x95",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"cbuiltins\neval\n",
    b"cos\nsystem\n",
    b"R.",
    b"b.",
    b"\x8c\x06system\x93",
    b"}(",
    b"u.",
    b"s.",
    b"Q",
    b"h\x00",
    b"q\x00",
    b"\x93NUMPY\x01\x00",
    b"'descr': '|O'",
    b"'fortran_order': True",
    b"(1152921504606846976,)",
    b'"dtype":"F32"',
    b'"shape":[4611686018427387904]',
    b'"data_offsets":[0,0]',
    b"__metadata__",
    b'["shared",0]',
    b'["tensor",0]',
    b'["map",[]]',
    b'["float","000000000000f87f"]',
    b'["opaque","cycle",[["up",1]]]',
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"9007199254740993",
    b"../",
    b"\xff\xfe",
    b"\xed\xa0\x80",
)


def _flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        start = rng.randrange(len(data))
        del data[start : start + rng.choice((1, 2, 4, 8, 64, len(data)))]


def _repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        start = rng.randrange(len(data))
        piece = data[start : start + rng.choice((1, 2, 4, 16, 64))]
        data[start:start] = piece * rng.choice((1, 1, 2, 50))


def _token(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    token = rng.choice(TOKENS)
    start = rng.randrange(len(data) + 1)
    data[start : start + rng.choice((0, len(token)))] = token


def _number(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Change a decimal number in place, if there is one."""
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if digits:
        start = rng.choice(digits)
        data[start : start + 1] = rng.choice((b"0", b"9", b"-1", b"99", b"4294967296", b""))


def _splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    if other:
        start = rng.randrange(len(other))
        piece = other[start : start + rng.choice((4, 16, 64, 256))]
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice((0, len(piece)))] = piece


_STEPS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], None], ...] = (
    _flip,
    _byte,
    _cut,
    _repeat,
    _token,
    _token,
    _number,
    _splice,
)


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes], *, most: int = 1 << 16) -> bytes:
    """Return a changed copy of at most `most` bytes.

    Parameters
    ----------
    data : bytes
    rng : random.Random
    others : sequence of bytes
        Inputs to take pieces from.
    most : int
    """
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_STEPS)(changed, rng, others)
    return bytes(changed[:most])


_VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    64,
    2**53,
    2**53 + 1,
    2**64,
    "",
    "a",
    "..",
    "f" * 64,
    "raw",
    "zstd",
    "coded",
    [],
    {},
    ["map", []],
    ["list", [["tensor", 0]]],
    ["tensor", 1],
    ["shared", 0],
    ["shared", 2**40],
    ["float", "000000000000f87f"],
    ["opaque", "cycle", [["up", 1]]],
    ["tagged", "c", [], ["tensor", 0]],
    ["set", [1, 2]],
    ["strings", [1], "str", ["x"]],
    ["composite", "c", [], [["p", ["tensor", 0]]]],
)


def mutate_json(
    data: bytes, rng: random.Random, others: Sequence[bytes], *, end: bytes, most: int = 1 << 16
) -> bytes:
    """Return a changed JSON document in canonical form; of what is no document, other bytes.

    Parameters
    ----------
    data, rng, others, most : as for `mutate`
    end : bytes
        What completes `data` to a document; left out of the result again.
    """
    try:
        document = json.loads(data + end)
        other = json.loads(rng.choice(others) + end)
    except ValueError:
        return mutate(data, rng, others, most=most)
    for _ in range(rng.choice((1, 1, 2, 4))):
        document = _changed(document, other, rng)
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    changed = text.encode(errors="replace").removesuffix(end)
    return mutate(changed, rng, others, most=most) if rng.random() < 0.05 else changed[:most]


def _changed(document: object, other: object, rng: random.Random) -> object:
    """Change one place of a document, taking from another where something is put in."""
    places = _containers(document)
    if not places:
        return copy.deepcopy(rng.choice(_VALUES))
    place = rng.choice(places)
    new = copy.deepcopy(rng.choice(_VALUES)) if rng.random() < 0.5 else _any(other, rng)
    if isinstance(place, list):
        _change_list(place, new, rng)
    elif isinstance(place, dict):
        key = rng.choice([*place, "new"])
        if rng.random() < 0.3:
            place.pop(key, None)
        elif rng.random() < 0.5 and key in place:
            place[key] = _near(place[key], rng)
        else:
            place[key] = new
    return document


def _change_list(place: list[object], new: object, rng: random.Random) -> None:
    index = rng.randrange(len(place) + 1)
    action = rng.randrange(5)
    if action == 0 or index == len(place):
        place.insert(index, new)
    elif action == 1:
        del place[index]
    elif action == 2:
        place.insert(index, copy.deepcopy(place[index]))
    elif action == 3:
        rng.shuffle(place)
    else:
        place[index] = _near(place[index], rng) if rng.random() < 0.5 else new


def _near(value: object, rng: random.Random) -> object:
    """Return a value of the same kind, a little different."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value + rng.choice((-1, 1, 4096, -4096, 2**32))
    if isinstance(value, str) and value.startswith(("{", "[")) and rng.random() < 0.9:
        return _within(value, rng)
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice("0af/.#\u0000é") + value[at + 1 :]
    return value


def _within(text: str, rng: random.Random) -> str:
    """Change a document that is the text of a string, such as a structure note in metadata."""
    try:
        document = json.loads(text)
    except ValueError:
        return text[1:]
    changed = _changed(document, document, rng)
    return json.dumps(changed, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _containers(value: object) -> list[list[object] | dict[str, object]]:
    found: list[list[object] | dict[str, object]] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            found.append(node)
            stack += node.values()
        elif isinstance(node, list):
            found.append(node)
            stack += node
    return found


def _any(value: object, rng: random.Random) -> object:
    """Return a copy of some part of a document."""
    places = _containers(value)
    place = rng.choice(places) if places else value
    parts = list(place.values()) if isinstance(place, dict) else place if isinstance(place, list) else []
    return copy.deepcopy(rng.choice(parts) if parts else place)
