"""Invalid cases: rows of the tensor table, codecs, chunks.bin and coded chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

from .cases import Files, broken, invalid
from .parts import changed, coded_draft, f32, i64, long_draft, mapping, reseal, rle_frame, two
from .trees import JSON, u64
from .writer import CHUNK, Draft, Tensor, bits_of, draft

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

WIDE = 2**53


def register_row(rule: str, name: str, title: str, *steps: JSON) -> None:
    """Register a checkpoint in whose first row one value is another; no header tells of it."""
    invalid(f"rows/{name}", rule, title)(lambda: changed(two().seal(), "tensors", 0, *steps))


for _name, _title, *_steps in (
    ("type-unknown", "An unknown type.", 2, "f128"),
    ("type-upper-case", "A type in the words of safetensors.", 2, "F32"),
    ("type-number", "A number as type.", 2, 32),
    ("type-strings-zero", "Byte strings of no bytes.", 2, "s0"),
    ("type-strings-leading-zero", "Byte strings whose length has a leading zero.", 2, "s04"),
    ("type-strings-huge", "Byte strings of 2^31 bytes.", 2, "s2147483648"),
    ("type-strings-digits", "Byte strings of a length in other digits.", 2, "s\u0664"),
    ("type-strings-of-5000-digits", "Byte strings of a length of 5,000 digits.", 2, "s" + "1" * 5000),
    ("shape-negative", "A negative dimension.", 3, [-2, -2]),
    ("shape-boolean", "A boolean dimension.", 3, [True, 4]),
    ("shape-text", "A dimension in text.", 3, ["4"]),
    ("shape-null", "No shape.", 3, None),
    ("shape-65", "65 dimensions.", 3, [4] + [1] * 64),
    ("size-overflow", "A size of more than 2^53 bytes.", 3, [WIDE]),
    ("size-overflow-64", "A number of elements that is 4 in 64 bits.", 3, [4, 5, 5581, 8681, 49477 * 384773]),
    ("size-overflow-product", "A size far beyond 64 bits.", 3, [WIDE] * 64),
    ("digest-short", "A short digest.", 4, "00"),
    ("digest-upper-case", "A digest in upper case.", 4, "A" * 64),
    ("digest-null", "No digest.", 4, None),
    ("shard-beyond", "A shard beyond the last.", 5, 1),
    ("shard-negative", "A negative shard.", 5, -1),
    ("shard-boolean", "A boolean as shard.", 5, False),
    ("offset-negative", "A negative offset.", 6, -16),
    ("offset-text", "An offset in text.", 6, "0"),
    ("path-text", "A path in text.", 0, "w"),
):
    register_row("R-030", _name, _title, *_steps)

register_row("R-032", "name-other", "Another name in the table.", 1, "v")
register_row("R-032", "name-number", "A number as name.", 1, 5)
register_row("R-034", "codec-unknown", "An unknown codec.", 7, "lz4")
register_row("R-034", "codec-null", "No codec.", 7, None)
register_row("R-034", "codec-coded-in-raw-shard", "A row that is coded in a raw shard.", 7, "zstd")
register_row("R-035", "chunks-without-need", "An offset into chunks.bin for one chunk.", 8, 0)
register_row("R-035", "chunks-boolean", "A boolean as offset into chunks.bin.", *(8, False))


@invalid("rows/object", "R-030", "A row that is an object.")
def _() -> Files:
    return changed(two().seal(), "tensors", 0, {})


def resized(change: Callable[[list[JSON]], list[JSON]], found: Draft) -> Files:
    """Return a checkpoint whose first row has other members; the header stays."""

    def patch(value: dict[str, JSON]) -> None:
        rows = value["tensors"]
        if isinstance(rows, list) and isinstance(rows[0], list):
            rows[0] = change(rows[0])

    return reseal(found.seal(), patch)


def one_coded() -> Draft:
    """Return a checkpoint of one coded tensor of one chunk."""
    return coded_draft(a=Tensor("u8", (100,), bytes([5]) * 100))


for _name, _rule, _title, _change, _found in (
    ("row-short", "R-030", "A row of eight values.", lambda row: row[:8], two),
    ("row-of-ten", "R-030", "A coded row without its stored digest.", lambda row: row[:10], one_coded),
    ("row-long", "R-030", "A coded row of twelve values.", lambda row: [*row, None], one_coded),
    (
        "raw-with-length",
        "R-036",
        "A raw row with length and stored digest.",
        lambda row: [*row, 16, None],
        two,
    ),
    (
        "coded-without-length",
        "R-036",
        "A coded row without length and stored digest.",
        lambda row: row[:9],
        one_coded,
    ),
    ("length-zero", "R-036", "A length of 0 for one chunk.", lambda row: [*row[:9], 0, row[10]], one_coded),
    ("length-null", "R-036", "No length.", lambda row: [*row[:9], None, row[10]], one_coded),
    (
        "length-beyond",
        "R-036",
        "A length beyond the canonical bytes.",
        lambda row: [*row[:9], 101, row[10]],
        one_coded,
    ),
    ("stored-null", "R-036", "No stored digest for one chunk.", lambda row: [*row[:10], None], one_coded),
    ("stored-short", "R-036", "A short stored digest.", lambda row: [*row[:10], "00"], one_coded),
    (
        "stored-of-many",
        "R-036",
        "A stored digest for three chunks.",
        lambda row: [*row[:10], "0" * 64],
        long_draft,
    ),
    (
        "length-of-many",
        "R-036",
        "A length of 2 for three chunks.",
        lambda row: [*row[:9], 2, None],
        long_draft,
    ),
    (
        "raw-in-coded-shard",
        "R-034",
        "The codec raw in a coded shard.",
        lambda row: [*row[:7], "raw", *row[8:]],
        one_coded,
    ),
    (
        "chunks-null",
        "R-035",
        "No offset for three chunks.",
        lambda row: [*row[:8], None, *row[9:]],
        long_draft,
    ),
    (
        "chunks-late",
        "R-035",
        "An offset into chunks.bin that leaves a gap.",
        lambda row: [*row[:8], 32, *row[9:]],
        long_draft,
    ),
):
    broken(f"rows/{_name}", _rule, _title, resized, _change, _found())


@invalid("rows/stored-of-none", "R-036", "A stored digest for a tensor without elements.")
def _() -> Files:
    return resized(lambda row: [*row[:10], blake3(b"").hexdigest()], coded_draft(a=f32()))


@invalid("rows/chunks-overlap", "R-035", "Two rows whose digests overlap in chunks.bin.")
def _() -> Files:
    long = Tensor("u8", (CHUNK + 4096,), bytes(CHUNK + 4096))
    other = Tensor("u8", (CHUNK + 4096,), bytes([1]) * (CHUNK + 4096))
    return changed(coded_draft(a=long, b=other).seal(), "tensors", 1, 8, 0)


@invalid("rows/coded-not-required", "R-034", "A coded shard, and no requirement.")
def _() -> Files:
    return changed(one_coded().seal(), "requires", [])


@invalid("rows/coded-without-need", "R-034", "The requirement coded, and no coded shard.")
def _() -> Files:
    return changed(two().seal(), "requires", ["coded"])


@invalid("rows/coded-without-shards", "R-034", "The requirement coded, and no shard at all.")
def _() -> Files:
    return changed(draft(None).seal(), "requires", ["coded"])


@invalid("rows/order-of-paths", "R-031", "Two rows of one class that are not in order of path.")
def _() -> Files:
    found = draft(mapping(a=f32(1), b=f32(2)))
    found.rows.reverse()
    found.tree = ["map", [["a", ["tensor", 1]], ["b", ["tensor", 0]]]]
    found.rows[0].form[6], found.rows[1].form[6] = 0, 4
    return found.seal()


@invalid("rows/order-of-classes", "R-031", "Two rows in order of path, the lower class first.")
def _() -> Files:
    found = draft(mapping(b=f32(1, 2), a=f32(2)))
    found.rows.reverse()
    found.tree = ["map", [["b", ["tensor", 1]], ["a", ["tensor", 0]]]]
    found.rows[0].form[6], found.rows[1].form[6] = 0, 4
    return found.seal()


@invalid(
    "rows/order-of-encoded-keys",
    "R-031",
    "Keys in order of their text; a longer key sorts after a shorter one.",
)
def _() -> Files:
    found = draft(mapping(z=f32(1), aa=f32(2)))
    found.rows.reverse()
    found.tree = ["map", [["z", ["tensor", 1]], ["aa", ["tensor", 0]]]]
    found.rows[0].form[6], found.rows[1].form[6] = 0, 4
    return found.seal()


@invalid("rows/same-path-twice", "R-031", "Two rows of one path.")
def _() -> Files:
    found = draft(mapping(a=f32(1), b=f32(2)))
    found.rows[1].form[:2] = [["a"], "a#1"]
    return found.seal()


def renamed(ordinal: int, name: str, *keys: JSON) -> Files:
    """Return a checkpoint of names that collide, one of them called otherwise."""
    found = draft(["map", [["a", mapping(b=f32(1))], ["a.b", f32(2)], *[[key, f32(3)] for key in keys]]])
    found.rows[ordinal].form[1] = name
    return found.seal()


@invalid(
    "names/collision-of-first", "R-032", "The first of two colliding names bears the ordinal, not the second."
)
def _() -> Files:
    found = draft(["map", [["a", mapping(b=f32(1))], ["a.b", f32(2)]]])
    found.rows[0].form[1], found.rows[1].form[1] = "a.b#0", "a.b"
    return found.seal()


@invalid("names/collision-counted", "R-032", "A colliding name bears a count, not the ordinal of its row.")
def _() -> Files:
    return renamed(1, "a.b#2")


@invalid("names/metadata", "R-032", "A tensor called __metadata__ without a suffix.")
def _() -> Files:
    return changed(draft(["map", [["__metadata__", f32(1)]]]).seal(), "tensors", 0, 1, "__metadata__")


@invalid("names/separator", "R-032", "The keys of a path joined by a solidus.")
def _() -> Files:
    return changed(draft(mapping(a=mapping(b=f32(1)))).seal(), "tensors", 0, 1, "a/b")


def moved(*offsets: JSON) -> Files:
    """Return a checkpoint of two tensors of 16 bytes at other offsets, which its header tells as well."""
    found = draft(mapping(a=i64(1, 2), b=i64(3, 4)))
    for row, offset in zip(found.rows, offsets, strict=True):
        row.form[6] = offset
    return found.seal()


for _name, _title, _offsets in (
    ("gap", "A gap between two tensors.", (0, 24)),
    ("overlap", "Two tensors that overlap.", (0, 8)),
    ("one-place", "Two tensors at one place.", (0, 0)),
    ("begins-late", "The first tensor does not begin at 0.", (16, 32)),
    ("exchanged", "Two tensors that lie in the other order.", (16, 0)),
    ("far-beyond", "An offset far beyond the file.", (0, WIDE)),
):
    broken(f"offsets/{_name}", "R-033", _title, moved, *_offsets)


@invalid("offsets/shard-without-rows", "R-033", "A shard without rows.")
def _() -> Files:
    found = draft(mapping(a=f32(1)))
    found.shards = ["data-00001-of-00002.safetensors", "data-00002-of-00002.safetensors"]
    return found.seal()


@invalid("offsets/coded-gap", "R-033", "A gap between two coded tensors.")
def _() -> Files:
    found = coded_draft(a=Tensor("u8", (64,), bytes(64)), b=Tensor("u8", (64,), bytes([1]) * 64))
    found.rows[1].form[6] = 64
    return found.seal()


def in_chunks(begin: int, data: bytes) -> Files:
    """Return a checkpoint of three chunks with other bytes in chunks.bin."""
    files = long_draft().seal()
    table = bytearray(files["chunks.bin"])
    table[begin : begin + len(data)] = data
    return files | {"chunks.bin": bytes(table)}


@invalid("chunks/cut", "R-050", "chunks.bin lacks its last byte.", kind="truncated")
def _() -> Files:
    files = long_draft().seal()
    return files | {"chunks.bin": files["chunks.bin"][:-1]}


@invalid("chunks/empty", "R-050", "chunks.bin is empty.", kind="truncated")
def _() -> Files:
    return long_draft().seal() | {"chunks.bin": b""}


@invalid("chunks/longer", "R-050", "chunks.bin has a byte too many.")
def _() -> Files:
    files = long_draft().seal()
    return files | {"chunks.bin": files["chunks.bin"] + b"\0"}


@invalid("chunks/without-need", "R-050", "chunks.bin is there, and no row needs it.")
def _() -> Files:
    return two().seal() | {"chunks.bin": b""}


@invalid("chunks/digest", "R-051", "A chunk digest in chunks.bin has a flipped bit.")
def _() -> Files:
    first = long_draft().seal()["chunks.bin"][0]
    return in_chunks(0, bytes([first ^ 1]))


@invalid("chunks/digests-exchanged", "R-051", "Two chunk digests are exchanged.")
def _() -> Files:
    table = long_draft().seal()["chunks.bin"]
    return in_chunks(32, table[64:96] + table[32:64])


@invalid("chunks/tensor-digest", "R-051", "A tensor digest that chunks.bin does not give.")
def _() -> Files:
    found = long_draft()
    found.rows[0].form[4] = "12" * 32
    return found.seal()


@invalid("chunks/type", "R-051", "A type that the tensor digest was not made with.")
def _() -> Files:
    found = long_draft()
    found.rows[0].form[2] = "i8"
    return found.seal()


@invalid("chunks/stored-digest", "R-053", "A stored digest in chunks.bin has a flipped bit.")
def _() -> Files:
    first = long_draft().seal()["chunks.bin"][96]
    return in_chunks(96, bytes([first ^ 0x80]))


def with_lengths(change: Callable[[list[int]], list[int]]) -> Files:
    """Return a checkpoint of three chunks with other stored lengths."""
    lengths = [len(piece) for piece in long_draft().rows[0].stored]
    return in_chunks(192, b"".join(map(u64, change(lengths))))


for _name, _title, _changes in (
    ("length-zero", "A stored length of 0.", lambda sizes: [0, sizes[0] + sizes[1], sizes[2]]),
    (
        "length-sum",
        "Stored lengths whose sum is not the length of the row.",
        lambda sizes: [sizes[0] + 1, *sizes[1:]],
    ),
    (
        "length-huge",
        "A stored length that overflows in 64 bits.",
        lambda sizes: [2**64 - 1, sizes[1], sum(sizes[:1]) + 1 + sizes[2]],
    ),
    (
        "length-beyond-chunk",
        "A stored length beyond its chunk.",
        lambda sizes: [sizes[0], CHUNK + 1, sizes[2]],
    ),
):
    broken(f"chunks/{_name}", "R-054", _title, with_lengths, _changes)


def two_runs(first: int, second: int, size: int) -> bytes:
    """Return a frame of two runs of a byte each."""
    return rle_frame(first, 2 * size)[:9] + b"".join(
        (size << 3 | 1 << 1 | last).to_bytes(3, "little") + bytes([byte])
        for byte, last in ((first, 0), (second, 1))
    )


def stored_as(stored: bytes, data: bytes = bytes([5]) * 100, codec: str = "zstd", kind: str = "u8") -> Files:
    """Return a checkpoint of one coded chunk that is stored as given, its digest included."""
    tree = mapping(a=Tensor(kind, (len(data) * 8 // bits_of(kind),), data))
    return draft(tree, codec=codec, coder=lambda _chunk, _kind: stored).seal()


def with_dictionary(data: bytes) -> bytes:
    """Return a frame that names a dictionary."""
    frame = rle_frame(data[0], len(data), descriptor=0xA1)
    return frame[:5] + b"\x07" + frame[5:]


def with_window(log: int) -> bytes:
    """Return a frame of 100 bytes with a window of a power of two."""
    return b"\x28\xb5\x2f\xfd\x80" + bytes([(log - 10) << 3]) + rle_frame(5, 100)[5:]


FRAME = rle_frame(5, 100)
SMALL = rle_frame(5, 50)
for _name, _title, _stored in (
    ("claims-less", "A frame that claims to hold 99 bytes and holds 100.", rle_frame(5, 100, claim=99)),
    ("claims-more", "A frame that claims to hold 101 bytes and holds 100.", rle_frame(5, 100, claim=101)),
    (
        "claims-right-holds-less",
        "A frame that claims the length of the chunk and holds less.",
        rle_frame(5, 50, claim=100),
    ),
    (
        "claims-right-holds-more",
        "A frame that claims the length of the chunk and holds more.",
        rle_frame(5, 3000, claim=100),
    ),
    ("bomb", "A frame that claims and holds 200 KiB where the chunk has 100 bytes.", rle_frame(5, 200 << 10)),
    (
        "bomb-that-lies",
        "A frame that claims 100 bytes and holds 200 KiB.",
        rle_frame(5, 200 << 10, claim=100),
    ),
    ("claims-four-gibibytes", "A frame that claims to hold 4 GiB.", rle_frame(5, 100, claim=2**32 - 1)),
    ("without-content-size", "A frame without a content size.", b"\x28\xb5\x2f\xfd\x00\x58" + FRAME[9:]),
    ("dictionary", "A frame that names a dictionary.", with_dictionary(b"\5" * 100)),
    ("window", "A frame with a window of 16 MiB.", with_window(24)),
    ("two-frames", "Two frames, of the right length together.", SMALL + SMALL),
    ("frame-and-more", "A frame, and a byte behind it.", FRAME + b"\0"),
    ("frame-and-skippable", "A frame, and a skippable frame behind it.", FRAME + b"\x50\x2a\x4d\x18\0\0\0\0"),
    ("skippable", "A skippable frame.", b"\x50\x2a\x4d\x18\x50\0\0\0" + bytes(80)),
    ("cut", "A frame without its last byte.", FRAME[:-1]),
    ("header-only", "The header of a frame.", FRAME[:9]),
    ("magic-only", "The magic number of a frame.", FRAME[:4]),
    ("one-byte", "One byte.", b"\5"),
    ("no-frame", "Bytes that are no frame.", bytes(range(50))),
    ("reserved-block", "A block of the reserved type.", FRAME[:9] + b"\x27\x03\0\5"),
    (
        "content-checksum",
        "A frame whose own checksum does not match.",
        rle_frame(5, 100, descriptor=0xA4) + b"abcd",
    ),
):
    broken(f"frames/{_name}", "R-054", _title, stored_as, _stored)


@invalid("frames/bomb-of-a-chunk", "R-054", "A frame of 64 MiB where the chunk has 4 MiB.")
def _() -> Files:
    return stored_as(rle_frame(0, 64 << 20), bytes(CHUNK))


@invalid("frames/other-content", "R-052", "A whole frame of other bytes, its own digest right.")
def _() -> Files:
    return stored_as(rle_frame(6, 100))


@invalid("frames/not-planes", "R-052", "The codec says planes, and the frame holds the chunk as it is.")
def _() -> Files:
    stored = two_runs(0, 1, 64)
    return stored_as(stored, bytes(64) + bytes([1]) * 64, codec="planes+zstd", kind="u16")


@invalid("frames/planes-unasked", "R-052", "The codec says zstd, and the frame holds planes.")
def _() -> Files:
    return stored_as(two_runs(0, 1, 64), bytes([0, 1]) * 64, kind="u16")


@invalid("frames/raw-content", "R-052", "A chunk that is stored raw and does not match its digest.")
def _() -> Files:
    return stored_as(bytes([5]) * 99 + b"\0")


@invalid("frames/flipped-bit", "R-053", "A flipped bit in a stored chunk that decodes to the same bytes.")
def _() -> Files:
    files = one_coded().seal()
    name = "data-00001-of-00001.ckz"
    return files | {name: files[name][: -len(FRAME)] + rle_frame(5, 100, descriptor=0xB0)}
