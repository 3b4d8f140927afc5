"""Sections 8 and 9.1: the members of the manifest, the rows of its table, and the headers they imply."""

from __future__ import annotations

import json
import re
from math import prod
from typing import NamedTuple

from refreader import document
from refreader.document import JSON, digest, field, is_count, is_digest, refuse, require, u64
from refreader.nodes import MAX_NODES, Path, TreeReader, read_key, tensor_paths

CHUNK, MAX_HEADER, MAX_PATH = 4 << 20, (16 << 20) + (64 << 10), 4096
MEMBERS = {"bag", "extra", "extra_files", "format", "requires", "root", "shards", "step", "tensors", "tree"}
BITS = {"bool": 8, "f4_e2m1fn": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2, "bf16": 16, "c64": 64, "c128": 128}
BITS |= {kind + str(bits): bits for kind in "iuf" for bits in (8, 16, 32, 64) if kind + str(bits) != "f8"}
BITS |= {f"f8_{kind}": 8 for kind in ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e8m0fnu"]}
IN_HEADER = {
    kind: kind.upper() for kind in BITS if re.fullmatch(r"bool|[iu](8|16|32|64)|b?f(16|32|64)", kind)
}
IN_HEADER |= {"f8_e4m3fn": "F8_E4M3", "f8_e5m2": "F8_E5M2"}


class Row(NamedTuple):
    """A row of section 8.2 as it stands in the manifest."""

    path: list[JSON]
    name: str
    type: str
    shape: list[int]
    digest: str
    shard: int
    offset: int
    codec: str
    chunks: int | None
    length: int | None = None  # `length` and `stored` are those of coded rows
    stored: str | None = None

    @property
    def bits(self) -> int:
        """The size of an element."""
        return BITS.get(self.type) or 8 * int(self.type[1:])

    @property
    def size(self) -> int:
        """The length of the canonical bytes."""
        return -(-prod(self.shape) * self.bits // 8)

    @property
    def pieces(self) -> int:
        """The number of chunks."""
        return -(-self.size // CHUNK)

    @property
    def tabled(self) -> int:
        """The length of its part of chunks.bin."""
        return self.pieces * (32 if self.codec == "raw" else 72) if self.pieces > 1 else 0

    @property
    def taken(self) -> int:
        """The length of what lies in the shard."""
        return self.size if self.length is None else self.length

    def tensor_digest(self, chunk_digests: bytes) -> str:
        """Section 4.3."""
        data = field(self.type.encode()) + field(u64(*self.shape)) + chunk_digests
        return digest(data, "ckptfmt 1 tensor").hex()


class Manifest(NamedTuple):
    """The members, and what was made of some: rows, shards, and rows of extra files."""

    members: dict[str, JSON]
    rows: list[Row]
    shards: list[Shard]
    extra: list[tuple[str, int, str]]


class Shard(NamedTuple):
    """A shard: its row of the manifest, the rows in it, and the header they imply."""

    name: str
    size: int
    digest: str
    rows: list[Row]
    header: bytes


def read_manifest(data: bytes) -> Manifest:
    """Check the manifest by itself, in the stages of section 12."""
    members = document.unseal(data, "R-010", "R-011")
    check_members(members)
    files = [read_file(form) for form in listed(members["shards"])]
    extra = [read_file(form) for form in listed(members["extra_files"])]
    read_names([name for name, _, _ in extra])
    coded = [name.endswith(".ckz") for name, _, _ in files]
    require(any(coded) == bool(members["requires"]), "R-034", "coded")
    require(len(listed(members["tensors"])) <= MAX_NODES, "R-015", "more than 2^24 rows")
    rows = [read_row(form, coded) for form in listed(members["tensors"])]
    check_tree(members["tree"], rows, check_table(rows), members["root"], members["bag"])
    return Manifest(members, rows, check_shards(files, rows, members["root"]), extra)


def check_members(members: dict[str, JSON]) -> None:
    """Check the versions, then the members, up to the tables and the tree."""
    version = listed(members.get("format"))
    require(len(version) == 2 and all(map(is_count, version)), "R-014", "format")
    require(version[0] == 1, "R-012", f"version {version}")
    require(set(read_names(members.get("requires"))) <= {"coded"}, "R-013", "an unknown requirement")
    require(members.keys() == MEMBERS, "R-014", f"members {sorted(members.keys() ^ MEMBERS)}")
    digests = is_digest(members["bag"]) and is_digest(members["root"])
    step = members["step"] is None or is_count(members["step"])
    require(digests and step and isinstance(members["extra"], dict), "R-014", "bag, root, step or extra")


def read_names(value: JSON) -> list[str]:
    """Return a sorted list of strings, no two alike."""
    texts = [text for text in listed(value) if isinstance(text, str)]
    require(texts == value == sorted(set(texts)), "R-014", "names that are no sorted strings")
    return texts


def listed(value: JSON) -> list[JSON]:
    """Return a member that must be a list."""
    return value if isinstance(value, list) else refuse("R-014", "a member that is no list")


def read_file(form: JSON) -> tuple[str, int, str]:
    """Return the name, size and digest of a row of a file."""
    match form:
        case [str(name), int(size), str(own)] if is_count(size) and is_digest(own):
            return name, size, own
    return refuse("R-014", "a row of a file")


def read_row(form: JSON, coded: list[bool]) -> Row:
    """Check a row by itself."""
    if not isinstance(form, list) or len(form) not in (9, 11):
        refuse("R-030", "a row of another length")
    path, name, kind, shape, own, shard, offset, codec, chunks, *rest = form
    placed = is_count(shard, len(coded) - 1) and is_count(offset)
    sound = isinstance(path, list) and is_digest(own) and document.is_shape(shape) and placed
    of_strings = re.fullmatch("s[1-9][0-9]{0,9}", str(kind)) and int(str(kind)[1:]) < 2**31
    require(sound and isinstance(kind, str) and (kind in BITS or of_strings), "R-030", f"the row {name}")
    row = Row(*form)  # type: ignore[arg-type]  # checked above and below
    require(row.size <= document.MAX_INT, "R-030", f"the size of {name}")
    codecs = ["zstd", "planes+zstd"] if coded[row.shard] else ["raw"]
    require(codec in codecs, "R-034", f"the codec of {name}")
    require(chunks is None or is_count(chunks), "R-035", f"the chunks of {name}")
    require(len(rest) == 2 * coded[row.shard], "R-036", f"length and stored of {name}")
    if rest:
        stored = is_digest(rest[1]) if row.pieces == 1 else rest[1] is None
        fits = stored and is_count(rest[0]) and row.pieces <= row.taken <= row.size
        require(fits, "R-036", f"length or stored of {name}")
    return row


def order(row: Row, path: Path) -> tuple[int, Path]:
    """Section 8.3."""
    zeros = (row.size & -row.size).bit_length() - 1
    return -min(zeros, 12) if row.size else -12, path


def check_table(rows: list[Row]) -> list[Path]:
    """Check the rows against each other; return their paths, encoded."""
    paths, names, chunks = list[Path](), {"__metadata__"}, 0
    for ordinal, row in enumerate(rows):
        keys = [read_key(key, depth) for depth, key in enumerate(row.path, 1)]
        paths.append(tuple(key.encoded for key in keys))
        require(sum(map(len, paths[-1])) <= MAX_PATH, "R-015", "a path of more than 4 KiB")
        require(ordinal == 0 or order(rows[ordinal - 1], paths[-2]) < order(row, paths[-1]), "R-031", "order")
        name = ".".join(key.text for key in keys)
        while name in names:
            name += f"#{ordinal}"
        require(name == row.name, "R-032", f"the name {row.name}")
        names.add(name)
        require(row.chunks == (chunks if row.pieces > 1 else None), "R-035", f"the chunks of {name}")
        chunks += row.tabled
    return paths


def check_tree(form: JSON, rows: list[Row], paths: list[Path], root: JSON, bag: JSON) -> None:
    """Check the tree against the rows and the digests of section 6.3."""
    tree = TreeReader([bytes.fromhex(row.digest) for row in rows]).node(form)
    first, met = dict[int, Path](), list[bytes]()
    for path, ordinal in tensor_paths(tree):
        first[ordinal] = min(path, first.get(ordinal, path))
        met.append(bytes.fromhex(rows[ordinal].digest))
    require(len(first) == len(rows), "R-023", "a row without reference")
    require(all(first[ordinal] == path for ordinal, path in enumerate(paths)), "R-025", "the path of a row")
    require(tree.digest.hex() == root, "R-060", "the root")
    require(digest(b"".join(sorted(met)), "ckptfmt 1 bag").hex() == bag, "R-061", "the bag")


def shard_header(root: JSON, number: str, rows: list[Row]) -> bytes:
    """Section 9.1."""
    meta = {"ckptfmt.root": root, "ckptfmt.shard": number, "format": "pt"}
    members: dict[str, object] = {"__metadata__": meta}
    for row in rows if rows[0].codec == "raw" else []:
        kind, shape = IN_HEADER.get(row.type, "U8"), row.shape if row.type in IN_HEADER else [row.size]
        place = [row.offset, row.offset + row.size]
        members[row.name] = {"dtype": kind, "shape": shape, "data_offsets": place}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    return u64(len(text)) + text


def check_shards(files: list[tuple[str, int, str]], rows: list[Row], root: JSON) -> list[Shard]:
    """Check the rows of shards against the table; return the shards."""
    inside, ends = [list[Row]() for _ in files], [0] * len(files)
    for row in rows:
        require(row.offset == ends[row.shard], "R-033", f"the offset of {row.name}")
        inside[row.shard].append(row)
        ends[row.shard] += row.taken
    shards = []
    for index, (name, size, own) in enumerate(files):
        require(inside[index], "R-033", f"the shard {name} has no rows")
        require(size - ends[index] <= MAX_HEADER, "R-015", f"the header of {name}")
        header = shard_header(root, f"{index + 1}/{len(files)}", inside[index])
        require(size == len(header) + ends[index], "R-040", f"the size of {name}")
        shards.append(Shard(name, size, own, inside[index], header))
    return shards
