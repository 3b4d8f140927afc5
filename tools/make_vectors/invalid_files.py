"""Invalid cases: the files of the directory, headers, data, provenance and extra files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cases import Content, Files, broken, broken_as, invalid
from .parts import change_header, changed, f32, i64, long_draft, mapping, members, packed, two, wide_draft
from .writer import Draft, Tensor, draft, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .trees import JSON

__all__: list[str] = []

SHARD = "data-00001-of-00001.safetensors"
FIRST, SECOND = "data-00001-of-00002.safetensors", "data-00002-of-00002.safetensors"
HEADER = 4096


def less(found: Callable[[], Draft], missing: str) -> Files:
    """Return a checkpoint without one of its files."""
    return {name: data for name, data in found().seal().items() if name != missing}


def more(name: str, content: Content) -> Files:
    """Return a checkpoint with something more in its directory."""
    return {**two().seal(), name: content}


def with_text(data: bytes) -> Draft:
    """Return a checkpoint with an extra file a.txt."""
    found = two()
    found.extra_files = {"a.txt": data}
    return found


for _name, _rule, _title, _found, _missing in (
    ("manifest", "R-001", "No manifest.json.", two, "manifest.json"),
    ("shard", "R-002", "A shard is not there.", two, SHARD),
    ("provenance", "R-002", "No provenance.json.", two, "provenance.json"),
    ("chunks", "R-002", "chunks.bin is needed and not there.", long_draft, "chunks.bin"),
    ("extra-file", "R-002", "A listed extra file is not there.", lambda: with_text(b"a"), "a.txt"),
):
    broken(f"missing/{_name}", _rule, _title, less, _found, _missing)


@invalid("missing/everything", "R-001", "An empty directory.")
def _() -> Files:
    return {}


for _name, _title, _file, _content in (
    ("file", "A file that is not listed.", "notes.txt", b"x"),
    ("empty-file", "An empty file that is not listed.", "x", b""),
    ("hidden-file", "A hidden file.", ".hidden", b"\0"),
    ("shard", "A third shard of two.", "data-00003-of-00003.safetensors", b""),
    ("temporary", "What a writer left over.", "manifest.json.tmp", b"{}"),
    ("folder", "A folder.", "sub", ("folder",)),
    ("link", "A link that is not listed.", "latest", ("symlink", "manifest.json")),
):
    broken(f"unlisted/{_name}", "R-003", _title, more, _file, _content)


for _name, _title, _file in (
    ("parent", "An extra file in the parent directory.", "../evil"),
    ("deep-parent", "An extra file far above.", "../../../../../../tmp/evil"),
    ("absolute", "An extra file with an absolute path.", "/etc/passwd"),
    ("below", "An extra file in a folder.", "a/b"),
    ("backslash", "An extra file with a backslash.", "..\\evil"),
    ("drive", "An extra file on a drive.", "c:evil"),
    ("dot", "An extra file called dot.", "."),
    ("two-dots", "An extra file called two dots.", ".."),
    ("hidden", "An extra file that begins with a dot.", ".bashrc"),
    ("option", "An extra file that begins with a hyphen.", "-rf"),
    ("empty", "An extra file without a name.", ""),
    ("long", "An extra file with a name of 129 characters.", "a" * 129),
    ("space", "An extra file with a space in its name.", "a b"),
    ("newline", "An extra file whose name ends in a newline.", "a\n"),
    ("zero", "An extra file with a zero character in its name.", "a\0b"),
    ("other-letters", "An extra file in other letters.", "\u0430"),
    ("other-digits", "An extra file with other digits.", "\u0661"),
    ("manifest", "An extra file called as the manifest.", "manifest.json"),
    ("manifest-in-capitals", "An extra file called as the manifest, in capitals.", "MANIFEST.JSON"),
    ("provenance", "An extra file called Provenance.json.", "Provenance.json"),
    ("chunks", "An extra file called chunks.bin.", "chunks.bin"),
    ("shard", "An extra file called as a shard that could be.", "data-00007-of-00009.safetensors"),
    ("shard-of-one-digit", "An extra file called as a shard, with short numbers.", "data-1-of-2.ckz"),
    ("coded-shard-in-capitals", "An extra file called as a coded shard.", "DATA-00001-OF-00001.CKZ"),
):
    _listed: JSON = [[_file, 1, "00" * 32]]
    broken(f"names/extra-{_name}", "R-004", _title, changed, two().seal(), "extra_files", _listed)

for _name, _title, _file in (
    ("parent", "A shard in the parent directory.", "../data-00001-of-00001.safetensors"),
    ("other", "A shard called otherwise.", "model.safetensors"),
    ("few-digits", "A shard whose numbers have too few digits.", "data-1-of-1.safetensors"),
    ("many-digits", "A shard whose numbers have too many digits.", "data-000001-of-000001.safetensors"),
    ("number", "The first shard with the number of the second.", "data-00002-of-00001.safetensors"),
    ("count", "A shard of another count.", "data-00001-of-00002.safetensors"),
    ("ending", "A shard of another ending.", "data-00001-of-00001.bin"),
    ("capitals", "A shard in capitals.", "DATA-00001-OF-00001.SAFETENSORS"),
    ("empty", "A shard without a name.", ""),
):
    broken(f"names/shard-{_name}", "R-004", _title, changed, two().seal(), "shards", 0, 0, _file)


@invalid("kinds/shard-link", "R-005", "A shard is a symbolic link.")
def _() -> Files:
    return two().seal() | {SHARD: ("symlink", "../elsewhere.safetensors")}


@invalid("kinds/second-shard-link", "R-005", "A shard is a link to another file of the checkpoint.")
def _() -> Files:
    return wide_draft().seal() | {SECOND: ("symlink", FIRST)}


@invalid("kinds/manifest-link", "R-005", "manifest.json is a symbolic link.")
def _() -> Files:
    return two().seal() | {"manifest.json": ("symlink", "provenance.json")}


@invalid("kinds/manifest-folder", "R-005", "manifest.json is a folder.")
def _() -> Files:
    return two().seal() | {"manifest.json": ("folder",)}


@invalid("kinds/provenance-link", "R-005", "provenance.json is a link that leads nowhere.")
def _() -> Files:
    return two().seal() | {"provenance.json": ("symlink", "nowhere")}


@invalid("kinds/chunks-folder", "R-005", "chunks.bin is a folder.")
def _() -> Files:
    return long_draft().seal() | {"chunks.bin": ("folder",)}


@invalid("kinds/extra-pipe", "R-005", "An extra file is a pipe, which nobody writes to.")
def _() -> Files:
    return with_text(b"a").seal() | {"a.txt": ("fifo",)}


@invalid("kinds/shard-pipe", "R-005", "A shard is a pipe, which nobody writes to.")
def _() -> Files:
    return two().seal() | {SHARD: ("fifo",)}


def edited(found: Draft, name: str, change: Callable[[bytes], bytes]) -> Files:
    """Return a checkpoint with one file changed and nothing else."""
    files = found.seal()
    return files | {name: change(files[name])}


for _name, _title, _kind, _change in (
    ("cut", "A shard lacks its last byte.", "truncated", lambda data: data[:-1]),
    ("no-data", "A shard is only its header.", "truncated", lambda data: data[:HEADER]),
    ("half-a-header", "A shard ends in its header.", "truncated", lambda data: data[:100]),
    ("empty", "A shard is empty.", "truncated", lambda _: b""),
    ("longer", "A shard has a byte too many.", "malformed", lambda data: data + b"\0"),
    ("page-longer", "A shard has a page of zeros too many.", "malformed", lambda data: data + bytes(4096)),
):
    broken_as(_kind, f"shards/{_name}", "R-040", _title, edited, two(), SHARD, _change)


@invalid("shards/row-says-more", "R-040", "The row of a shard says a byte more, and the file has it.")
def _() -> Files:
    files = edited(two(), SHARD, lambda data: data + b"\0")
    return changed(two().seal(), "shards", 0, 1, len(two().seal()[SHARD]) + 1) | {SHARD: files[SHARD]}


@invalid("shards/row-says-less", "R-040", "The row of a shard says less than header and data.")
def _() -> Files:
    return changed(two().seal(), "shards", 0, 1, 4096)


@invalid(
    "shards/row-says-zettabytes",
    "R-015",
    "The row of a shard says 2^53 bytes, so its header would have about as many.",
)
def _() -> Files:
    return changed(two().seal(), "shards", 0, 1, 2**53)


@invalid("shards/coded-cut", "R-040", "A coded shard lacks its last byte.", kind="truncated")
def _() -> Files:
    return edited(long_draft(), "data-00001-of-00001.ckz", lambda data: data[:-1])


@invalid("shards/raw-chunks-cut", "R-040", "A large shard lacks its last byte.", kind="truncated")
def _() -> Files:
    size = (4 << 20) + 16
    return edited(draft(mapping(a=Tensor("u8", (size,), bytes(size)))), SHARD, lambda data: data[:-1])


@invalid("headers/flipped-bit", "R-041", "A flipped bit in the name of a tensor.")
def _() -> Files:
    return edited(two(), SHARD, lambda data: data.replace(b'"w":', b'"v":'))


@invalid("headers/padding", "R-041", "A flipped bit in the padding.")
def _() -> Files:
    return edited(two(), SHARD, lambda data: data[: HEADER - 1] + b"!" + data[HEADER:])


@invalid("headers/length", "R-041", "A flipped bit in the length of the header.")
def _() -> Files:
    return edited(two(), SHARD, lambda data: data[:7] + b"\x01" + data[8:])


@invalid("headers/digest", "R-041", "The row of a shard has another digest of the header.")
def _() -> Files:
    return changed(two().seal(), "shards", 0, 2, "ef" * 32)


@invalid("headers/zeros", "R-041", "A header of zeros.")
def _() -> Files:
    return edited(two(), SHARD, lambda data: bytes(HEADER) + data[HEADER:])


def retold(old: bytes, new: bytes, rest: bytes = b"") -> Callable[[bytes], bytes]:
    """Return a function that replaces what must be there, and appends."""

    def change(text: bytes) -> bytes:
        if old not in text:
            message = f"{old!r} is not in the header"
            raise ValueError(message)
        return text.replace(old, new, 1) + rest

    return change


for _name, _title, _change in (
    ("type", "The header has a tensor of another type of the same width.", retold(b'"F32"', b'"I32"')),
    ("shape", "The header has another shape of the same size.", retold(b"[2,2]", b"[4]")),
    ("name", "The header has another name.", retold(b'"w":', b'"v":')),
    ("offsets", "The header has other offsets.", retold(b'"data_offsets":[0,', b'"data_offsets":[8,')),
    ("space", "White space in the header.", retold(b'"dtype":"F32",', b'"dtype": "F32",')),
    (
        "order",
        "The members of a tensor in another order.",
        retold(b'"dtype":"F32","shape":[2,2]', b'"shape":[2,2],"dtype":"F32"'),
    ),
    ("metadata", "Further metadata.", retold(b'"format":"pt"', b'"format":"pt","x":"y"')),
    ("format", "Metadata of another framework.", retold(b'"format":"pt"', b'"format":"np"')),
    (
        "tensor-more",
        "A tensor that the manifest does not have.",
        retold(b'"n":{', b'"m":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"n":{'),
    ),
    ("escape", "An escape where none is needed.", retold(b'"w":', b'"\\u0077":')),
    ("padding", "Padding by a newline.", retold(b"}}", b"}}", b"\n")),
):
    broken(f"headers/implied-{_name}", "R-042", _title, change_header, two().seal(), SHARD, _change)


@invalid("replaced/root", "R-043", "The header names another root, its digest right.")
def _() -> Files:
    root = str(members(two().seal())["root"]).encode()
    return change_header(two().seal(), SHARD, retold(root, b"0" * 64))


@invalid(
    "replaced/another-step", "R-043", "A shard of another step of the same run: same names, types and sizes."
)
def _() -> Files:
    later = draft(mapping(w=f32(1, 2, 3, 5, shape=(2, 2)), n=i64(5, 6, 7), lr=["float", "9a9999999999b93f"]))
    return two().seal() | {SHARD: later.seal()[SHARD]}


@invalid("replaced/exchanged", "R-043", "Two shards of one size are exchanged.")
def _() -> Files:
    files = wide_draft().seal()
    return files | {FIRST: files[SECOND], SECOND: files[FIRST]}


@invalid("replaced/copied", "R-043", "A shard is a copy of the other.")
def _() -> Files:
    files = wide_draft().seal()
    return files | {SECOND: files[FIRST]}


@invalid("replaced/number", "R-043", "The header names another number, its digest right.")
def _() -> Files:
    return change_header(wide_draft().seal(), FIRST, retold(b'"1/2"', b'"2/2"'))


@invalid("replaced/count", "R-043", "The header names another count, its digest right.")
def _() -> Files:
    return change_header(wide_draft().seal(), FIRST, retold(b'"1/2"', b'"1/3"'))


@invalid("replaced/coded", "R-043", "A coded shard of another step.")
def _() -> Files:
    name = "data-00001-of-00001.ckz"
    later = long_draft()
    later.root = "77" * 32
    return long_draft().seal() | {name: later.seal()[name]}


def flipped(found: Draft, name: str, offset: int, bit: int = 1) -> Files:
    """Return a checkpoint with one bit of a file flipped."""

    def change(data: bytes) -> bytes:
        place = offset % len(data)
        return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]

    return edited(found, name, change)


@invalid("data/first-bit", "R-052", "The first bit of the data is flipped.")
def _() -> Files:
    return flipped(two(), SHARD, HEADER)


@invalid("data/last-bit", "R-052", "The last bit of the data is flipped.")
def _() -> Files:
    return flipped(two(), SHARD, -1, 0x80)


@invalid("data/one-of-two-chunks", "R-052", "A flipped bit in the first of two chunks of a raw tensor.")
def _() -> Files:
    size = (4 << 20) + 4096
    return flipped(draft(mapping(a=Tensor("u8", (size,), bytes(size)))), SHARD, HEADER + 5)


@invalid("data/zeros", "R-052", "The data is zeros, as after a lost write.")
def _() -> Files:
    return edited(two(), SHARD, lambda data: data[:HEADER] + bytes(len(data) - HEADER))


@invalid("data/type", "R-052", "A type of the same width that the tensor digest was not made with.")
def _() -> Files:
    found = two()
    found.rows[0].form[2] = "i32"
    return found.seal()


@invalid("data/shape", "R-052", "A shape of the same size that the tensor digest was not made with.")
def _() -> Files:
    found = two()
    found.rows[0].form[3] = [4]
    return found.seal()


@invalid("data/tensor-digest", "R-052", "A tensor digest of other bytes.")
def _() -> Files:
    found = two()
    found.rows[0].form[4] = "12" * 32
    return found.seal()


@invalid("data/empty-digest", "R-052", "The digest of a tensor without elements is that of another shape.")
def _() -> Files:
    found = draft(mapping(a=Tensor("f32", (0, 3), b"")))
    found.rows[0].form[3] = [3, 0]
    return found.seal()


@invalid("data/tensors-exchanged", "R-052", "The bytes of two tensors of one size are exchanged.")
def _() -> Files:
    return edited(draft(mapping(a=f32(1), b=f32(2))), SHARD, lambda data: data[:-8] + data[-4:] + data[-8:-4])


def padded(kind: str, bits: int, count: int, spare: int) -> Files:
    """Return a checkpoint of a packed tensor of ones with set bits in its padding."""
    clean = packed(kind, bits, *[1] * count)
    data = clean.data[:-1] + bytes([clean.data[-1] | spare])
    return draft(mapping(a=Tensor(kind, clean.shape, data))).seal()


for _type, _bits, _count, _spare in (
    ("i4", 4, 3, 0xF0),
    ("f4_e2m1fn", 4, 1, 0x10),
    ("u2", 2, 3, 0x40),
    ("i2", 2, 1, 0x80),
):
    _title = f"Padding bits of {_type} that are not zero."
    broken(f"padding/{_type}", "R-055", _title, padded, _type, _bits, _count, _spare)


def provenance(data: bytes) -> Files:
    """Return a checkpoint with other bytes in provenance.json."""
    return two().seal() | {"provenance.json": data}


GOOD = sealed(b'{"writer":"ckptfmt vectors"}')
for _name, _title, _kind, _data in (
    ("empty", "provenance.json is empty.", "malformed", b""),
    ("no-self", "provenance.json without a self digest.", "malformed", b'{"writer":"x"}'),
    ("space", "White space in provenance.json.", "malformed", sealed(b'{"writer": "x"}')),
    ("fraction", "A fraction in provenance.json.", "malformed", sealed(b'{"time":1.5}')),
    (
        "member-twice",
        "A member of provenance.json that is there twice.",
        "malformed",
        sealed(b'{"a":1,"a":1}'),
    ),
    ("cut", "provenance.json lacks its last byte.", "malformed", GOOD[:-1]),
    ("longer", "provenance.json ends in a newline.", "malformed", GOOD + b"\n"),
    (
        "changed",
        "provenance.json was changed; its self digest was not.",
        "checksum",
        GOOD.replace(b"vectors", b"vectorz"),
    ),
):
    broken_as(_kind, f"provenance/{_name}", "R-070", _title, provenance, _data)


for _name, _title, _kind, _change in (
    ("cut", "An extra file lacks a byte.", "truncated", lambda data: data[:-1]),
    ("empty", "An extra file is empty.", "truncated", lambda _: b""),
    ("longer", "An extra file has a byte too many.", "malformed", lambda data: data + b"!"),
    ("changed", "An extra file has a flipped bit.", "checksum", lambda data: data[:-1] + b"u"),
):
    broken_as(_kind, f"extra/{_name}", "R-071", _title, edited, with_text(b"content"), "a.txt", _change)
