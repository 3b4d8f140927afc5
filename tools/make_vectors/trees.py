"""Digests and paths of a tree in the forms of section 5.3, for a writer: nothing is checked.

Written from the specification, and independent of the package and of the reference reader, so that the
three can be compared. Forms may break rules: the vectors need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JSON", "TreeDigests", "encoded_key", "field", "is_numbered", "key_text", "pairs", "u64"]

JSON: TypeAlias = "bool | int | str | list[JSON] | dict[str, JSON] | None"
Path: TypeAlias = "tuple[bytes, ...]"


def u64(number: int) -> bytes:
    """Return a number in 8 bytes."""
    return number.to_bytes(8, "little")


def field(data: bytes) -> bytes:
    """Return a byte string behind its length."""
    return u64(len(data)) + data


def pairs(entries: JSON) -> list[tuple[JSON, JSON]]:
    """Return the items of a list of pairs."""
    listed = entries if isinstance(entries, list) else []
    return [(entry[0], entry[1]) for entry in listed if isinstance(entry, list)]


def is_numbered(form: JSON) -> bool:
    """Whether a form counts among the containers that can be shared."""
    return isinstance(form, list) and form[0] in {"map", "list", "set", "composite", "opaque"}


def scalar(form: JSON) -> tuple[str, bytes]:
    """Return the kind and payload of a form without nodes inside."""
    if form is None:
        return "none", b""
    if isinstance(form, bool):
        return "bool", bytes([form])
    if isinstance(form, int):
        return "int", f"{form:x}".encode()
    if isinstance(form, str):
        return "str", form.encode()
    kind, text = (str(part) for part in form) if isinstance(form, list) else ("", "")
    return kind, text.encode() if kind == "int" else bytes.fromhex(text)


def encoded_key(form: JSON) -> bytes:
    """Section 6.2."""
    kind, payload = key_parts(form)
    return field(kind.encode()) + field(payload)


def key_parts(form: JSON) -> tuple[str, bytes]:
    """Return the kind and payload of a key."""
    if isinstance(form, list) and form[0] == "tuple":
        items = [encoded_key(item) for item in form[1]]  # type: ignore[union-attr]
        return "tuple", u64(len(items)) + b"".join(items)
    return scalar(form)


def decimal(number: int) -> str:
    """Return an integer in decimal; Python itself refuses to write more than 4,300 digits at once."""
    high, low = divmod(abs(number), 10**4000)
    return ("-" if number < 0 else "") + (f"{high}{low:04000d}" if high else f"{low}")


def key_text(form: JSON) -> str:
    """Return a key as section 8.4 writes it in a header name."""
    kind, payload = key_parts(form)
    if kind == "int":
        return decimal(int(payload, 16))
    return payload.decode() if kind == "str" else f"{kind}:{payload.hex()}"


class TreeDigests:
    """What sections 6 and 8 need of a tree whose tensors have the given digests."""

    def __init__(self, form: JSON, tensors: list[bytes]) -> None:
        self.form = form
        self.tensors = tensors
        self.containers: list[list[JSON]] = []
        self._number(form)
        self._shared: dict[int, bytes] = {}

    def _number(self, form: JSON) -> None:
        """Number containers in the order in which their forms begin."""
        if is_numbered(form):
            self.containers.append(form)  # type: ignore[arg-type]
        match form:
            case ["tagged", _, [*entries], node]:
                inside = [*(item for _, item in pairs(entries)), node]
            case ["composite", _, [*attributes], [*parts]]:
                inside = [item for _, item in (*pairs(attributes), *pairs(parts))]
            case ["shared", _]:
                inside = []
            case _:
                inside = [item for _, item in self.children(form)]
        for item in inside:
            self._number(item)

    def children(self, form: JSON) -> list[tuple[JSON, JSON]]:
        """Return the keys and nodes below a form; of a tag, those of the node inside."""
        match form:
            case ["tagged", _, _, node]:
                return self.children(node)
            case ["shared", int(number)]:
                return self.children(self.containers[number])
            case ["map", [*entries]] | ["opaque", _, [*entries]]:
                return pairs(entries)
            case ["list" | "tuple" | "set" | "frozenset", [*items]]:
                return list(enumerate(items))
            case ["composite", _, attributes, parts]:
                return [("attributes", ["map", attributes]), ("parts", ["map", parts])]
        return []

    def paths(self, form: JSON, keys: tuple[JSON, ...] = ()) -> Iterator[tuple[tuple[JSON, ...], int]]:
        """Yield every path to a tensor, and its ordinal."""
        match form:
            case ["tensor", int(ordinal)]:
                yield keys, ordinal
            case ["tagged", _, _, node]:
                yield from self.paths(node, keys)
            case _:
                for key, node in self.children(form):
                    yield from self.paths(node, (*keys, key))

    def first_paths(self) -> dict[int, tuple[JSON, ...]]:
        """Return the first path of each tensor in canonical order."""
        first: dict[int, tuple[JSON, ...]] = {}
        for keys, ordinal in self.paths(self.form) if self.tensors else ():
            here = [encoded_key(key) for key in keys]
            if ordinal not in first or here < [encoded_key(key) for key in first[ordinal]]:
                first[ordinal] = keys
        return first

    def root(self) -> str:
        """Section 6.3."""
        return self.digest(self.form).hex()

    def bag(self) -> str:
        """Section 6.3."""
        met = self.paths(self.form) if self.tensors else ()
        digests = sorted(self.tensors[ordinal] for _, ordinal in met)
        return blake3(b"".join(digests), derive_key_context="ckptfmt 1 bag").hexdigest()

    def shared(self, number: int) -> bytes:
        """Return the digest of a container, worked out once."""
        if number not in self._shared:
            self._shared[number] = self.digest(self.containers[number])
        return self._shared[number]

    def digest(self, form: JSON) -> bytes:
        """Section 6.1."""
        match form:
            case ["tagged", _, _, node]:
                return self.digest(node)
            case ["shared", int(number)]:
                return self.shared(number)
            case ["tensor", int(ordinal)]:
                kind, payload = "tensor", self.tensors[ordinal]
            case ["strings", [*shape], of, [*values]]:
                texts = [str(value) for value in values]
                items = [text.encode() if of == "str" else bytes.fromhex(text) for text in texts]
                sizes = [size for size in shape if isinstance(size, int)]
                payload = field(b"".join(map(u64, sizes))) + b"".join(map(field, items))
                kind = "strings"
            case [("map" | "list" | "tuple" | "set" | "frozenset" | "composite" | "opaque") as kind, *_]:
                payload = self._payload(kind, form)
            case _:
                kind, payload = scalar(form)
        return blake3(field(kind.encode()) + payload, derive_key_context="ckptfmt 1 node").digest()

    def _payload(self, kind: str, form: JSON) -> bytes:
        below = self.children(form)
        digests = [self.digest(node) for _, node in below]
        count = u64(len(below))
        if kind in {"list", "tuple"}:
            return count + b"".join(digests)
        if kind in {"set", "frozenset"}:
            return count + b"".join(sorted(digests))
        keys = [encoded_key(key) for key, _ in below]
        name = (
            field(str(form[1]).encode())
            if kind in {"composite", "opaque"} and isinstance(form, list)
            else b""
        )
        return name + count + b"".join(sorted(key + own for key, own in zip(keys, digests, strict=True)))
