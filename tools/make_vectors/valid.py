"""The valid cases: every element type, shape, node, key and way of storing, each once."""

from __future__ import annotations

import struct

import numpy as np
import zstandard

from .cases import valid
from .parts import coded_draft, double, f32, i64, long_draft, mapping, packed, planes, repeat_coder
from .trees import JSON, encoded_key
from .writer import BITS, CHUNK, Draft, Row, Tensor, draft

__all__: list[str] = []

FLOATS_8 = ("f8_e4m3fn", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e4m3b11fnuz", "f8_e8m0fnu")
NAN = "010000000000f87f"


def counted(kind: str, bits: int) -> Tensor:
    """Return a tensor of shape (2, 2) whose bytes count upwards."""
    size = -(-4 * bits // 8)
    return Tensor(kind, (2, 2), bytes(range(1, size + 1)))


@valid("types/all", "Every element type that has a name of its own, of shape (2, 2).")
def _() -> Draft:
    kinds = {**BITS, **dict.fromkeys(FLOATS_8, 8)}
    return draft(mapping(**{kind: counted(kind, bits) for kind, bits in sorted(kinds.items())}))


@valid("types/packed", "Types below a byte whose last byte has padding bits: element 0 in the lowest bits.")
def _() -> Draft:
    nibbles = {kind: packed(kind, 4, 1, 2, 15) for kind in ("i4", "u4", "f4_e2m1fn")}
    pairs = {kind: packed(kind, 2, *range(count)) for kind, count in (("i2", 3), ("u2", 2))}
    return draft(mapping(**nibbles, **pairs, one=packed("u2", 2, 3), none=Tensor("i4", (0,), b"")))


@valid("types/byte-strings", "Strings of 1, 3 and 12 bytes, padded with NUL.")
def _() -> Draft:
    short, long = Tensor("s3", (2,), b"abcd\0\0"), Tensor("s12", (), b"twelve bytes")
    return draft(mapping(one=Tensor("s1", (2, 2), b"abcd"), short=short, long=long))


@valid(
    "types/odd-values", "Bits are kept: bool bytes that are neither 0 nor 1, NaN payloads, negative zeros."
)
def _() -> Draft:
    nans = Tensor("f32", (4,), struct.pack("<4I", 0x7FC00001, 0xFF800001, 0x80000000, 0x00000001))
    return draft(mapping(bools=Tensor("bool", (4,), bytes([0, 1, 2, 255])), floats=nans))


@valid("shapes/empty-and-scalar", "Shapes with zeros have no bytes; the shape () has one element.")
def _() -> Draft:
    shapes = [(0,), (2, 0), (0, 3), (0, 0, 0), (2**53, 0), (2**53, 2**53, 0)]
    empty = {str(list(shape)): Tensor("bf16", shape, b"") for shape in shapes}
    return draft(mapping(scalar=i64(5, shape=()), ones=f32(1.5, shape=(1, 1, 1)), **empty))


@valid("shapes/only-empty", "A shard without data is all header.")
def _() -> Draft:
    return draft(mapping(empty=f32()))


@valid("shapes/many-dimensions", "64 dimensions, the most there may be.")
def _() -> Draft:
    return draft(mapping(ones=f32(1.5, shape=(1,) * 64), two=f32(1, 2, shape=(1,) * 63 + (2,))))


@valid("shapes/alignment", "Rows are in descending order of alignment class, 12 at most, then of path.")
def _() -> Draft:
    sizes = {"a": 3, "b": 4096, "c": 2, "d": 8192, "e": 12288, "f": 1, "g": 0, "h": 64, "i": 192}
    return draft(mapping(**{name: Tensor("u8", (size,), bytes(size)) for name, size in sizes.items()}))


@valid("nodes/scalars", "None, booleans, strings and bytes.")
def _() -> Draft:
    texts = ["", "é", "\u007f\u0080\u2028\U0001f600", '"\\/\b\t\n\f\r\u0000\u001f', "a" * 300]
    return draft(["list", [None, True, False, ["bytes", ""], ["bytes", "00ff7f"], *texts]])


@valid("nodes/integers", "Integers up to 2^53 are numbers, all others hexadecimal.")
def _() -> Draft:
    small = [0, 1, -1, -26, 255, 2**53, -(2**53)]
    large = [["int", f"{value:x}"] for value in (2**53 + 1, -(2**53) - 1, 2**64, 2**70, -(16**5000))]
    return draft(["list", [*small, *large]])


@valid("nodes/floats", "Floats and complex numbers keep their bits.")
def _() -> Draft:
    values = [0.0, -0.0, 0.1, 1e308, 5e-324, float("inf"), float("-inf")]
    numbers = [["complex", struct.pack("<dd", 1, 2).hex()], ["complex", NAN + "0000000000000080"]]
    return draft(["list", [*map(double, values), ["float", NAN], *numbers]])


@valid(
    "nodes/strings", "Arrays of strings of any length: of text, of bytes, empty, scalar, of two dimensions."
)
def _() -> Draft:
    arrays = [
        ["strings", [2], "str", ["", "né"]],
        ["strings", [], "str", ["scalar"]],
        ["strings", [2, 2], "bytes", ["", "00", "ff00", "6162"]],
        ["strings", [0], "str", []],
        ["strings", [3, 0], "str", []],
    ]
    return draft(["list", arrays])


@valid("nodes/containers", "Lists, tuples, sets and frozensets, in each other.")
def _() -> Draft:
    sets = [
        ["set", [1, 2]],
        ["set", []],
        ["frozenset", ['"', ["float", NAN], ["frozenset", [1]], None, True]],
    ]
    nested = ["set", [-1, 10, 2, ["bytes", "00"], ["tuple", [1, ["tuple", []]]]]]
    return draft(["list", [["list", []], ["tuple", []], ["tuple", [1, f32(1)]], *sets, nested, ["map", []]]])


@valid("nodes/none-root", "The whole state is none; there are no shards.")
def _() -> Draft:
    return draft(None)


@valid("nodes/tensor-root", "The whole state is one tensor; its path and its header name are empty.")
def _() -> Draft:
    return draft(f32(1, 2))


@valid("nodes/empty", "An empty mapping: a checkpoint without tensors has no shards.")
def _() -> Draft:
    return draft(["map", []])


@valid("nodes/deepest", "A path of 64 keys, the longest there may be.")
def _() -> Draft:
    tree: object = f32(1)
    for _ in range(64):
        tree = ["list", [tree]]
    return draft(tree)


@valid("nodes/order", "Key order is kept in the tree and is in no digest.")
def _() -> Draft:
    return draft(mapping(z=f32(1), a=f32(2), m=mapping(y=1, b=2)))


KEYS: list[JSON] = [
    "",
    "a",
    1,
    -1,
    0,
    ["int", f"{2**60:x}"],
    None,
    ["float", struct.pack("<d", 0.5).hex()],
    ["float", struct.pack("<d", float("inf")).hex()],
    ["bytes", ""],
    ["bytes", "61"],
    ["tuple", []],
    ["tuple", [1, "a", ["tuple", [None]]]],
]


@valid("keys/kinds", "Every kind of key, above tensors, so that header names show them too.")
def _() -> Draft:
    numbers = [f32(value) for value in range(len(KEYS))]
    return draft(["map", [[key, tensor] for key, tensor in zip(KEYS, numbers, strict=True)]])


@valid("keys/booleans", "Booleans as keys, and strings that look like other keys.")
def _() -> Draft:
    names = ["true", "1", "bool:01", "none:", "None"]
    entries = [[key, f32(index)] for index, key in enumerate([True, False, *names])]
    return draft(["map", entries])


@valid("keys/collisions", "Header names that are taken get the ordinal of their row, as often as it takes.")
def _() -> Draft:
    nested = mapping(b=f32(1))
    flat: list[list[object]] = [
        ["a.b", f32(2)],
        ["a.b#1", f32(3)],
        ["a.b#2", f32(4)],
        ["__metadata__", f32(5)],
    ]
    return draft(["map", [["a", nested], *flat, [1, f32(6)], ["1", f32(7)], ["__metadata__#5", f32(8)]]])


@valid("keys/unicode", "Names of any characters, escaped in the header as in the manifest.")
def _() -> Draft:
    names = [
        "é",
        "e\u0301",
        "\U0001f600",
        '"quoted"',
        "back\\slash",
        "line\nbreak",
        "\u0000",
        "a/b",
        "..",
        " ",
    ]
    return draft(["map", [[name, f32(index)] for index, name in enumerate(names)]])


@valid("keys/longest", "An encoded path of exactly 4 KiB.")
def _() -> Draft:
    name = "k" * (4096 - len(encoded_key("")))
    return draft(["map", [[name, f32(1)]]])


@valid(
    "keys/long-names", "Only the path of a row is limited: a long key above no tensor, a long second path."
)
def _() -> Draft:
    name = "k" * (4096 - 2 * len(encoded_key("")))
    again = ["map", [[name * 2, ["shared", 1]]]]
    return draft(mapping(a=["map", [[name[1:], f32(1)]]], numbers=["map", [["n" * 5000, 1]]], z=again))


@valid("keys/huge-integers", "Integer keys of thousands of digits, in decimal in the names of tensors.")
def _() -> Draft:
    huge = [["int", "f" * 4000], ["int", "-1" + "0" * 3999]]
    numbers: list[list[object]] = [[key, f32(index)] for index, key in enumerate(huge)]
    return draft(["map", [*numbers, [["int", "1" + "0" * 20_000], None]]])


@valid("ties/names", "One tensor under three names is stored once, under the first in canonical order.")
def _() -> Draft:
    tied = f32(1, 2)
    return draft(mapping(z=tied, model=mapping(out=tied, embed=tied), other=f32(1, 2)))


@valid(
    "ties/equal-values", "Equal tensors that are not tied are stored twice; the root is that of tied ones."
)
def _() -> Draft:
    return draft(mapping(z=f32(1, 2), model=mapping(out=f32(1, 2), embed=f32(1, 2)), other=f32(1, 2)))


@valid(
    "shared/containers", "Containers that are met again, numbered in the order in which their forms begin."
)
def _() -> Draft:
    first = ["list", [["map", [["x", f32(1)]]], ["tuple", [["set", [1]]]]]]
    return draft(["map", [["a", first], ["b", ["shared", 2]], ["c", ["shared", 1]], ["d", ["shared", 3]]]])


@valid("shared/first-path", "The first path of a row leads through a reference.")
def _() -> Draft:
    return draft(mapping(z=mapping(x=f32(1)), a=["shared", 1]))


@valid("shared/in-tags", "Containers among the attributes of a tag are numbered like all others.")
def _() -> Draft:
    tag = ["tagged", "a.B", [["attributes", mapping(deep=["list", []])]], ["list", [f32(1)]]]
    return draft(mapping(a=tag, b=["shared", 3], c=["shared", 2], d=["shared", 1]))


@valid("shared/expansion", "Two hundred references to one container: each time, its nodes are met again.")
def _() -> Draft:
    return draft(["list", [["list", [f32(1), 2]], *[["shared", 1]] * 200]])


@valid(
    "cycles/containers",
    "Containers inside themselves, the root included; levels are counted in the document.",
)
def _() -> Draft:
    def up(levels: int) -> JSON:
        return ["opaque", "cycle", [["up", levels]]]

    parts: list[object] = [["composite", "c", [], [["x", up(2)]]], up(1), ["list", [up(1), up(2), f32(1)]]]
    return draft(mapping(a=["list", parts], b=["shared", 4]))


@valid("tags/classes", "Classes of containers, tensors and bytes, with attributes; they are in no digest.")
def _() -> Draft:
    attributes = [["_metadata", mapping(version=1, names=["tuple", ["a"]])]]
    return draft(
        mapping(
            ordered=["tagged", "collections.OrderedDict", attributes, mapping(w=f32(1))],
            size=["tagged", "torch.Size", [], ["tuple", [1, 2]]],
            parameter=["tagged", "torch.nn.parameter.Parameter", [["requires_grad", True]], f32(2)],
            array=["tagged", "bytearray", [], ["bytes", "00"]],
            items=["tagged", "a.List", [["x", None]], ["list", [1]]],
            chosen=["tagged", "a.Set", [], ["set", [1]]],
        )
    )


@valid("composites/kinds", "A value made of several tensors, and one inside another.")
def _() -> Draft:
    size = [["size", ["tuple", [2, 2]]]]
    indices = i64(0, 1, shape=(2, 1))
    sparse = ["composite", "sparse_coo", size, [["indices", indices], ["values", f32(3)]]]
    return draft(mapping(sparse=sparse, nested=["composite", "pair", [], [["one", sparse], ["two", f32(4)]]]))


@valid("opaque/object", "A foreign object as data: a class path and parts.")
def _() -> Draft:
    state = mapping(step=3, buffer=f32(1))
    parts = [["args", ["tuple", [1, "x"]]], ["state", state]]
    return draft(mapping(scheduler=["opaque", "a.module.Class", parts], empty=["opaque", "a.B", []]))


@valid("shards/several", "A shard is closed before the tensor that would take it past the target.")
def _() -> Draft:
    large = Tensor("u8", (40,), bytes(40))
    return draft(mapping(a=f32(1, 2), b=f32(3), c=f32(4), d=large, e=Tensor("u8", (9,), bytes(9))), target=16)


@valid("shards/groups", "Tensors that a pattern separates lie in shards of their own, after the others.")
def _() -> Draft:
    tree = mapping(a=mapping(x=f32(1), y=f32(2)), b=mapping(x=f32(3), y=f32(4)), c=f32(5))
    return draft(tree, groups=[lambda name: name.startswith("b."), lambda name: name.endswith(".y")])


@valid("chunks/raw", "A tensor of two chunks in a raw shard: its chunk digests lie in chunks.bin.")
def _() -> Draft:
    return draft(
        mapping(large=Tensor("u8", (CHUNK + 16,), bytes(CHUNK + 16)), page=Tensor("u8", (4096,), bytes(4096)))
    )


@valid("chunks/exact", "A tensor of exactly one chunk has no digests in chunks.bin.")
def _() -> Draft:
    return draft(mapping(large=Tensor("f32", (1024, 1024), bytes(CHUNK))))


@valid("coded/by-hand", "Frames made by hand, of one repeated byte; short chunks are stored raw.")
def _() -> Draft:
    return coded_draft(a=Tensor("u8", (100,), bytes([5]) * 100), b=f32(1), c=f32())


@valid("coded/chunks", "A coded tensor of three chunks: stored digests and lengths lie in chunks.bin.")
def _() -> Draft:
    return long_draft()


@valid("coded/two-long", "Two coded tensors of several chunks share chunks.bin.")
def _() -> Draft:
    pattern = bytes(CHUNK) + bytes(range(200))
    return coded_draft(a=Tensor("u8", (len(pattern),), pattern), b=Tensor("u16", (CHUNK,), bytes(2 * CHUNK)))


@valid("coded/mixed", "A raw shard and a coded shard; rows of the two alternate in the table.")
def _() -> Draft:
    found = draft(mapping(a=f32(1), b=f32(2, 2), c=f32(3)), groups=[lambda name: name == "b"])
    found.shards[1] = found.shards[1].replace("safetensors", "ckz")
    found.rows = [coded(row) if row.form[5] == 1 else row for row in found.rows]
    return found


def coded(row: Row) -> Row:
    """Return a row of one chunk as it is in a coded shard, stored raw."""
    form = draft(Tensor("u8", (len(row.stored[0]),), row.stored[0]), codec="zstd", coder=lambda c, _: c)
    return Row([*row.form[:7], "zstd", None, *form.rows[0].form[9:]], row.original, row.stored, row.digests)


def compressed(kind: str, array: np.ndarray) -> Tensor:
    """Return a tensor of an array."""
    return Tensor(kind, array.shape, array.tobytes())


@valid("coded/zstd", "Frames of a real compressor: decoded, never made again.", coded=True)
def _() -> Draft:
    ramp = np.arange(4000, dtype="<f4").reshape(40, 100)
    words = np.frombuffer(b"a checkpoint is a tree of plain values; " * 50, np.uint8)
    tree = mapping(ramp=compressed("f32", ramp), words=compressed("u8", words))
    return draft(tree, codec="zstd", coder=lambda chunk, _: zstandard.compress(chunk, 3))


@valid("coded/planes", "Planes of every width, then frames of a real compressor.", coded=True)
def _() -> Draft:
    ramps = {
        kind: Tensor(kind, (1000,), np.arange(1000 * BITS[kind] // 16).astype("<u2").tobytes())
        for kind in ("i16", "bf16", "f32", "c64", "i64", "f64", "c128")
    }
    flat = {"u8": Tensor("u8", (1000,), bytes(1000)), "s5": Tensor("s5", (200,), b"abcd\0" * 200)}
    tree = mapping(**ramps, **flat, i4=Tensor("i4", (2000,), b"\x21" * 1000))
    return draft(
        tree, codec="planes+zstd", coder=lambda chunk, kind: zstandard.compress(planes(chunk, kind), 3)
    )


@valid("coded/planes-by-hand", "Planes of one repeated byte: the element 0x01010101, and a short raw chunk.")
def _() -> Draft:
    tree = mapping(a=Tensor("u32", (50,), bytes([1]) * 200), b=f32(1, 2))
    return draft(tree, codec="planes+zstd", coder=repeat_coder)


@valid("files/extra", "Extra files travel along, listed with size and digest.")
def _() -> Draft:
    found = draft(mapping(w=f32(1)))
    found.extra_files = {"config.json": b"{}", "A": b"", "z" * 128: b"z", "_under-score.txt": b"\x00\xff"}
    return found


@valid("members/step-and-extra", "The step and an object of the user's own, outside every digest.")
def _() -> Draft:
    found = draft(mapping(w=f32(1)))
    found.step = 2**53
    found.extra = {"": None, "é": [1, -(2**53), {"b": {}, "a": "\u0001"}], "self": True}
    return found


@valid("members/nested", "Extra that is nested 512 deep, the manifest included.")
def _() -> Draft:
    found = draft(None)
    value: JSON = []
    for _ in range(509):
        value = [value]
    found.extra = {"a": value}
    return found


@valid("versions/later-minor", "A later minor version that asks for nothing new.")
def _() -> Draft:
    found = draft(mapping(w=f32(1)))
    found.minor = 7
    return found


@valid("members/step-zero", "Step 0 is not the absence of a step.")
def _() -> Draft:
    found = draft(None)
    found.step = 0
    return found


@valid("members/provenance", "Whatever the writer tells in provenance is outside every digest but its own.")
def _() -> Draft:
    found = draft(None)
    found.provenance = '{"ranks":[{"host":"é"}],"time":"2026-11-30T00:00:00Z"}'.encode()
    return found
