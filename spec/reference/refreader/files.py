"""Sections 7, 9 and 10: the files of the directory and the tensors in them."""

from __future__ import annotations

import re
import stat
import struct
from math import prod
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from blake3 import blake3

from refreader.document import digest, refuse, require, unseal
from refreader.manifest import CHUNK, Manifest, Row, Shard

if TYPE_CHECKING:
    from pathlib import Path

MAX_WINDOW, MAX_DOCUMENT = 8 << 20, 1 << 30
ALLOWED = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
TAKEN = re.compile(r"(?i)(manifest|provenance)\.json|chunks\.bin|data-\d+-of-\d+\.(safetensors|ckz)")
PLANED = {"i16", "u16", "f16", "bf16", "i32", "u32", "f32", "c64", "i64", "u64", "f64", "c128"}


class Tensor(NamedTuple):
    """A tensor; `data` are its canonical bytes, or None if they are many."""

    type: str
    shape: list[int]
    digest: str
    data: bytes | None


def size_of(path: Path, rule: str) -> int:
    """Return the size of a regular file that is there."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        refuse(rule, f"no file {path.name}", "missing-file")
    require(stat.S_ISREG(found.st_mode), "R-005", f"{path.name} is no regular file")
    return found.st_size


def check_size(path: Path, size: int, rule: str) -> None:
    """Refuse a file that is shorter or longer than it must be."""
    found = size_of(path, "R-002")
    require(found >= size, rule, f"{path.name} ends after {found} of {size} bytes", "truncated")
    require(found <= size, rule, f"{path.name} goes on after {size} bytes")


def check_names(directory: Path, manifest: Manifest) -> None:
    """Refuse names that are not allowed, files that are not there, and files that are not listed."""
    shards = [shard.name for shard in manifest.shards]
    for number, name in enumerate(shards, 1):
        stem = f"data-{number:05}-of-{len(shards):05}"
        require(name in (f"{stem}.safetensors", f"{stem}.ckz"), "R-004", f"the shard name {name!r}")
    for name, _, _ in manifest.extra:
        require(ALLOWED.fullmatch(name) and not TAKEN.fullmatch(name), "R-004", f"the name {name!r}")
    chunks = ["chunks.bin"] if any(row.tabled for row in manifest.rows) else []
    listed = {"manifest.json", "provenance.json", *chunks, *shards, *(name for name, _, _ in manifest.extra)}
    for name in listed:
        size_of(directory / name, "R-002")
    for name in sorted(entry.name for entry in directory.iterdir()):
        require(name in listed, "R-050" if name == "chunks.bin" else "R-003", f"{name!r} is not listed")


def read_document(path: Path, missing: str) -> bytes:
    """Return the bytes of a JSON document."""
    require(size_of(path, missing) <= MAX_DOCUMENT, "R-015", f"the size of {path.name}")
    return path.read_bytes()


def read_files(directory: Path, manifest: Manifest, keep: int) -> list[Tensor]:
    """Read and verify every file but the manifest; return the tensors by ordinal."""
    check_names(directory, manifest)
    unseal(read_document(directory / "provenance.json", "R-002"), "R-070", "R-070")
    for name, size, own in manifest.extra:
        check_extra(directory / name, size, own)
    for shard in manifest.shards:
        check_size(directory / shard.name, shard.size, "R-040")
    table, length = b"", sum(row.tabled for row in manifest.rows)
    if length:
        check_size(directory / "chunks.bin", length, "R-050")
        table = (directory / "chunks.bin").read_bytes()
    tensors = [iter(read_shard(directory, shard, table, keep)) for shard in manifest.shards]
    return [next(tensors[row.shard]) for row in manifest.rows]


def check_extra(path: Path, size: int, own: str) -> None:
    """Refuse an extra file of another size or digest."""
    check_size(path, size, "R-071")
    hasher = blake3()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            hasher.update(piece)
    require(hasher.hexdigest() == own, "R-071", f"the digest of {path.name}", "checksum")


def check_header(found: bytes, shard: Shard) -> None:
    """Refuse a header that the manifest does not imply."""
    pattern = rb'.{8}\{"__metadata__":\{"ckptfmt.root":"[0-9a-f]{64}","ckptfmt.shard":"[0-9]+/[0-9]+",'
    named, meant = (re.match(pattern, header, re.DOTALL) for header in (found, shard.header))
    replaced = named and meant and named[0][8:] != meant[0][8:]
    require(not replaced, "R-043", f"{shard.name} belongs to another checkpoint")
    require(digest(found).hex() == shard.digest, "R-041", f"the header of {shard.name}")
    require(found == shard.header, "R-042", f"the header of {shard.name}")


def read_shard(directory: Path, shard: Shard, table: bytes, keep: int) -> list[Tensor]:
    """Read and verify a shard; return its tensors in order."""
    with (directory / shard.name).open("rb") as file:
        check_header(file.read(len(shard.header)), shard)
        return [read_tensor(row, file, table, keep) for row in shard.rows]


def read_tensor(row: Row, file: BinaryIO, table: bytes, keep: int) -> Tensor:
    """Read and verify the tensor whose bytes come next in a shard."""
    sizes = [min(CHUNK, row.size - begin) for begin in range(0, row.size, CHUNK)]
    lengths, digests, stored_digests = chunk_table(row, sizes, table)
    found, kept, piece = [], b"", b""
    for index, size in enumerate(sizes):
        stored = file.read(lengths[index])
        if row.codec != "raw":
            require(digest(stored) == stored_digests[index], "R-053", f"stored bytes of {row.name}")
        piece = stored if row.codec == "raw" else decode(stored, size, row)
        found.append(digest(piece))
        kept += piece if row.size <= keep else b""
    own = row.tensor_digest(b"".join(found))
    same = found == digests if row.pieces > 1 else own == row.digest
    require(same, "R-052", f"the bytes of {row.name}")
    spare = -prod(row.shape) * row.bits % 8
    require(not piece or piece[-1] >> (8 - spare) == 0, "R-055", f"the padding of {row.name}")
    return Tensor(row.type, row.shape, own, kept if row.size <= keep else None)


def chunk_table(row: Row, sizes: list[int], table: bytes) -> tuple[list[int], list[bytes], list[bytes]]:
    """Return stored lengths, chunk digests and stored digests of a row, from section 10 or the row itself."""
    if row.chunks is None:
        return [row.taken], [], [bytes.fromhex(row.stored or "")]
    count, begin = len(sizes), row.chunks
    pieces = [table[begin + 32 * part : begin + 32 * part + 32] for part in range(2 * count)]
    same = row.tensor_digest(b"".join(pieces[:count])) == row.digest
    require(same, "R-051", f"the chunk digests of {row.name}")
    if row.codec == "raw":
        return sizes, pieces[:count], []
    lengths = list(struct.unpack_from(f"<{count}Q", table, begin + 64 * count))
    fits = all(0 < length <= size for length, size in zip(lengths, sizes, strict=True))
    require(fits and sum(lengths) == row.length, "R-054", f"the stored lengths of {row.name}")
    return lengths, pieces[:count], pieces[count:]


def decode(stored: bytes, size: int, row: Row) -> bytes:
    """Section 9.3: return the chunk of `size` bytes that was stored."""
    if len(stored) == size:
        return stored
    import zstandard  # noqa: PLC0415  # raw shards do without

    try:
        frame = zstandard.get_frame_parameters(stored)
        fits = frame.content_size == size and frame.window_size <= MAX_WINDOW and not frame.dict_id
        require(fits and stored[:4] == zstandard.FRAME_HEADER, "R-054", f"a frame of {row.name}")
        piece = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        refuse("R-054", f"a frame of {row.name}: {error}")
    require(len(piece) == size, "R-054", f"a frame of {row.name}")
    parts = 2 if row.type in ("c64", "c128") else 1
    width = row.bits // 8 // parts if row.codec == "planes+zstd" and row.type in PLANED else 1
    chunk, plane = bytearray(size), size // width
    for index in range(width):
        chunk[index::width] = piece[index * plane : (index + 1) * plane]
    return bytes(chunk)
