"""Invalid cases: the bytes of the manifest, its versions and its members."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from blake3 import blake3

from .cases import Files, invalid
from .parts import changed, mapping, members, reseal, text_of, two
from .writer import canonical, draft, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .trees import JSON

__all__: list[str] = []


def register_text(name: str, title: str, change: Callable[[bytes], bytes]) -> None:
    """Register a manifest whose text is changed and sealed again."""
    invalid(f"json/{name}", "R-010", title)(lambda: text_of(two().seal(), change))


def register_bytes(name: str, title: str, change: Callable[[bytes], bytes]) -> None:
    """Register a manifest whose bytes, the self digest included, are changed."""

    def build() -> Files:
        files = two().seal()
        return files | {"manifest.json": change(files["manifest.json"])}

    invalid(f"json/{name}", "R-010", title)(build)


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Return a function that replaces the first `old`, which must be there."""

    def change(data: bytes) -> bytes:
        if old not in data:
            message = f"{old!r} is not in the manifest"
            raise ValueError(message)
        return data.replace(old, new, 1)

    return change


EXTRA = b'"extra":{}'
for _name, _title, _old, _new in (
    ("byte-order-mark", "The document begins with a byte order mark.", b"{", b"\xef\xbb\xbf{"),
    ("space-after-colon", "White space between tokens.", b'"step":', b'"step": '),
    ("space-in-front", "White space in front.", b"{", b" {"),
    ("members-unsorted", "Members that are not sorted by code point.", EXTRA, b'"extra":{"b":1,"a":2}'),
    ("member-twice", "A member that is there twice, with one value.", EXTRA, b'"extra":{"a":1,"a":1}'),
    (
        "member-twice-top",
        "A member of the manifest that is there twice.",
        b'"step":null',
        b'"step":1,"step":null',
    ),
    ("escaped-letter", "An escape where none is needed.", EXTRA, b'"extra":{"a":"\\u00e9"}'),
    ("escaped-solidus", "An escaped solidus.", EXTRA, b'"extra":{"a":"\\/"}'),
    ("escape-upper-case", "An escape with upper-case digits.", EXTRA, b'"extra":{"a":"\\u001F"}'),
    ("escape-long", "A long escape where a short one exists.", EXTRA, b'"extra":{"a":"\\u000a"}'),
    ("control-character", "A control character that is not escaped.", EXTRA, b'"extra":{"a":"\x01"}'),
    ("fraction", "A number with a fraction.", EXTRA, b'"extra":{"a":1.0}'),
    ("exponent", "A number with an exponent.", EXTRA, b'"extra":{"a":1e3}'),
    ("huge-exponent", "A number that no double holds.", EXTRA, b'"extra":{"a":1e999}'),
    ("minus-zero", "Minus zero.", EXTRA, b'"extra":{"a":-0}'),
    ("leading-zero", "A number with a leading zero.", EXTRA, b'"extra":{"a":01}'),
    ("plus-sign", "A number with a plus sign.", EXTRA, b'"extra":{"a":+1}'),
    ("integer-too-large", "An integer of 2^53 + 1.", EXTRA, b'"extra":{"a":9007199254740993}'),
    ("integer-too-small", "An integer of -2^53 - 1.", EXTRA, b'"extra":{"a":-9007199254740993}'),
    ("integer-of-many-digits", "An integer of 5,000 digits.", EXTRA, b'"extra":{"a":1%s}' % (b"0" * 5000)),
    ("not-a-number", "NaN is not JSON.", EXTRA, b'"extra":{"a":NaN}'),
    ("infinity", "An infinity is not JSON.", EXTRA, b'"extra":{"a":-Infinity}'),
    ("lone-surrogate", "An escaped lone surrogate.", EXTRA, b'"extra":{"a":"\\ud800"}'),
    ("surrogate-bytes", "A surrogate in UTF-8.", EXTRA, b'"extra":{"a":"\xed\xa0\x80"}'),
    ("surrogate-pair", "An escaped pair of surrogates.", EXTRA, b'"extra":{"a":"\\ud83d\\ude00"}'),
    ("invalid-utf-8", "Bytes that are not UTF-8.", EXTRA, b'"extra":{"a":"\xff"}'),
    ("overlong-utf-8", "A letter in an overlong encoding.", EXTRA, b'"extra":{"a":"\xc1\x81"}'),
    ("trailing-comma", "A comma after the last member.", EXTRA, b'"extra":{"a":1,}'),
    ("comment", "A comment.", EXTRA, b'"extra":{/**/}'),
    ("single-quotes", "Strings in single quotes.", EXTRA, b"\"extra\":{'a':1}"),
    ("self-twice", "A second member self, in its sorted place.", b'"shards":', b'"self":"","shards":'),
):
    register_text(_name, _title, replaced(_old, _new))

for _name, _title, _change in (
    ("nothing", "An empty file.", lambda _: b""),
    ("self-missing", "No self digest.", lambda data: data[: data.rindex(b',"self"')] + b"}"),
    (
        "self-upper-case",
        "A self digest in upper case.",
        lambda data: data[:-66] + data[-66:-2].upper() + b'"}',
    ),
    ("self-short", "A self digest of 63 digits.", lambda data: data[:-3] + b'"}'),
    ("newline-at-the-end", "A newline at the end.", lambda data: data + b"\n"),
    ("zero-at-the-end", "A zero byte at the end.", lambda data: data + b"\0"),
    ("cut", "The last byte is missing.", lambda data: data[:-1]),
    ("half", "The second half is missing.", lambda data: data[: len(data) // 2]),
    ("zeros", "As many zero bytes.", lambda data: bytes(len(data))),
    ("utf-16", "The document in UTF-16.", lambda data: data.decode().encode("utf-16")),
    ("array", "An array, sealed.", lambda _: sealed(b"[1]")[:-1] + b"]"),
    ("sorted-self", "Self in its sorted place.", lambda data: canonical(json.loads(data))),
):
    register_bytes(_name, _title, _change)


@invalid("self/another-value", "R-011", "The step was changed; the self digest was not.")
def _() -> Files:
    files = two().seal()
    return files | {"manifest.json": replaced(b'"step":null', b'"step":1234')(files["manifest.json"])}


@invalid("self/flipped-bit", "R-011", "One bit of a digest in the tensor table is flipped.")
def _() -> Files:
    files = two().seal()
    own = str(two().rows[0].form[4]).encode()
    flipped = bytes([own[0] ^ 1]) if chr(own[0] ^ 1) in "0123456789abcdef" else b"0"
    return files | {"manifest.json": replaced(own, flipped + own[1:])(files["manifest.json"])}


@invalid("self/of-the-whole-object", "R-011", "The self digest is that of the object with its last brace.")
def _() -> Files:
    data = two().seal()["manifest.json"]
    body = data[: data.rindex(b',"self"')]
    seal = b',"self":"' + blake3(body + b"}").hexdigest().encode() + b'"}'
    return two().seal() | {"manifest.json": body + seal}


def register(rule: str, name: str, title: str, *steps: JSON) -> None:
    """Register a manifest with one changed value."""
    invalid(name, rule, title)(lambda: changed(two().seal(), *steps))


register("R-012", "versions/major-two", "Major version 2.", "format", [2, 0])
register("R-012", "versions/major-zero", "Major version 0.", "format", [0, 9])
register("R-013", "versions/requires-linked", "The reserved requirement.", "requires", ["linked"])
register("R-013", "versions/requires-unknown", "An unknown requirement.", "requires", ["zoned"])


@invalid("versions/major-two-unlike", "R-012", "Major version 2 is told before any member is looked at.")
def _() -> Files:
    return {"manifest.json": sealed(canonical({"format": [2, 1], "anything": ["else"]}))}


@invalid("versions/requires-beside-coded", "R-013", "An unknown requirement beside a known one.")
def _() -> Files:
    return changed(two().seal(), "requires", ["coded", "zoned"])


for _name, _title, *_steps in (
    ("format-missing-minor", "A version of one number.", "format", [1]),
    ("format-text", "A version in text.", "format", "1.0"),
    ("format-negative", "A negative minor version.", "format", [1, -1]),
    ("format-boolean", "A boolean as major version.", "format", [True, 0]),
    ("requires-text", "A requirement that is no list.", "requires", "coded"),
    ("requires-number", "A requirement that is a number.", "requires", [1]),
    ("step-negative", "A negative step.", "step", -1),
    ("step-text", "A step in text.", "step", "7"),
    ("step-boolean", "A boolean as step.", "step", True),
    ("extra-list", "A list as extra.", "extra", []),
    ("extra-null", "No object as extra.", "extra", None),
    ("root-null", "No root.", "root", None),
    ("root-short", "A root of 62 digits.", "root", "0" * 62),
    ("root-upper-case", "A root in upper case.", "root", "A" * 64),
    ("bag-number", "A number as bag.", "bag", 7),
    ("shards-object", "An object as list of shards.", "shards", {}),
    (
        "shard-row-short",
        "A shard's row of two values.",
        "shards",
        0,
        ["data-00001-of-00001.safetensors", 4136],
    ),
    ("shard-size-negative", "A negative size of a shard.", "shards", 0, 1, -4136),
    ("shard-size-boolean", "A boolean as size of a shard.", "shards", 0, 1, True),
    ("shard-digest-short", "A short digest of a header.", "shards", 0, 2, "00"),
    ("tensors-object", "An object as tensor table.", "tensors", {}),
    ("extra-files-null", "No list of extra files.", "extra_files", None),
    ("extra-file-short", "An extra file without a digest.", "extra_files", [["a", 0]]),
    ("unknown", "An unknown member.", "zone", 1),
):
    register("R-014", f"members/{_name}", _title, *_steps)


def register_missing(name: str) -> None:
    """Register a manifest without a member."""

    def build() -> Files:
        return reseal(two().seal(), lambda value: value.pop(name))

    invalid(f"members/no-{name}", "R-014", f"The member {name} is missing.")(build)


for _name in sorted(members(two().seal())):
    register_missing(_name)


def with_extra_files(*names: str) -> Files:
    """Return a checkpoint whose extra files are listed in the given order."""
    found = draft(mapping(n=1))
    found.extra_files = {name: name.encode() for name in names}
    files = found.seal()
    listed = members(files)["extra_files"]
    rows = {str(row[0]): row for row in listed if isinstance(row, list)} if isinstance(listed, list) else {}
    return changed(files, "extra_files", [rows[name] for name in names])


@invalid("members/extra-files-unsorted", "R-014", "Extra files that are not sorted by name.")
def _() -> Files:
    return with_extra_files("b", "a")


@invalid("members/extra-file-twice", "R-014", "An extra file that is listed twice.")
def _() -> Files:
    return with_extra_files("a", "a")


@invalid("members/requires-twice", "R-014", "A known requirement that is there twice.")
def _() -> Files:
    return changed(two().seal(), "requires", ["coded", "coded"])
