"""How an input is changed as what it is: members of an archive, the header of an array, a header of JSON.

Lengths and checksums are made right again, so that the change reaches the rules behind them. What cannot be
taken apart is changed as plain bytes. The standard library takes archives apart and puts them together.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from tools.fuzz.mutation import mutate, mutate_json

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

__all__ = ["mutate_npy", "mutate_pickle", "mutate_safetensors", "mutate_zip"]

_NPY = b"\x93NUMPY"
_MOST = 1 << 16
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, struct.error)
_DESCR = (
    *("'<f4'", "'>f8'", "'|b1'", "'<c16'", "'<f2'", "'|u1'", "'>i8'", "'=f4'", "'<f16'", "'|i1'", "'f4'"),
    *("'|O'", "'|S0'", "'|S3'", "'<U0'", "'<U2'", "'>U1'", "'|V2'", "'|V0'", "'<M8[D]'", "'<m8[25ns]'"),
    *("[('a', '<i4')]", "[('a', '<i4'), ('a', '<f8')]", "[(('t', 'n'), '|u1', (2, 2))]", "[]", "''", "None"),
    *("[('x', [('y', '|O')])]", "[('', '|V4')]", "'<U4611686018427387904'", "{'names': ['a']}", "b'<f4'"),
)
_SHAPE = (
    *("()", "(0,)", "(1,)", "(2, 3)", "(3, 2)", "(6,)", "(2, 0)", "(1, 1, 1, 6)", "(6)", "[6]", "(6L,)"),
    *("(-1,)", "(True,)", "(1e3,)", "(4294967296, 4294967296)", "(9223372036854775808,)", f"({'1, ' * 65})"),
)
_ORDER = ("True", "False", "False", "0", "None")
_OPCODES = (
    *(b"(", b".", b"0", b"1", b"2", b"a", b"b", b"d", b"e", b"l", b"o", b"p0\n", b"q\x00", b"h\x00", b"g0\n"),
    *(b"r\x00\x00\x00\x01", b"j\x00\x00\x00\x01", b"s", b"t", b"u", b"]", b"}", b")", b"\x85", b"\x86"),
    *(b"\x87", b"\x88", b"\x89", b"\x8a\x00", b"\x8a\x09" + b"\xff" * 9, b"\x8f", b"\x90", b"\x91", b"\x92"),
    *(b"\x93", b"\x94", b"\x96" + b"\x02" + b"\0" * 7 + b"ab", b"\x97", b"\x98", b"K\x05", b"M\x05\x00"),
    *(b"J\xff\xff\xff\xff", b"I01\n", b"I-5\n", b"L5L\n", b"Fnan\n", b"G\x7f\xf8" + b"\0" * 6, b"N", b"Q"),
    *(
        b"X\x01\x00\x00\x00a",
        b"\x8c\x01a",
        b"U\x01a",
        b"S'a'\n",
        b"Va\n",
        b"C\x01a",
        b"B\x01\0\0\0a",
        b"P0\n",
    ),
    b"\x8b\x00\x08\x00\x00" + b"\x7f" * 2048,  # more digits than Python writes down
    *(b"R", b"\x81", b"i__main__\nA\n", b"c__builtin__\nset\n", b"ccollections\nOrderedDict\n"),
    *(b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"\x82\x01"),
    *(b"ctorch\nSize\n", b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_parameter\n", b"\x80\x02"),
    *(b"\x95" + b"\x05" + b"\0" * 7, b"cbuiltins\nbytearray\n", b"ccopyreg\n_reconstructor\n"),
)


def mutate_pickle(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed pickle: opcodes put in or over others, or plain bytes changed."""
    if rng.random() < 0.5:
        return mutate(data, rng, others)
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        opcode = rng.choice(_OPCODES)
        start = rng.randrange(len(changed) + 1)
        changed[start : start + rng.choice((0, 0, 1, len(opcode)))] = opcode
    return bytes(changed[:_MOST])


def mutate_npy(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed npy file: a header of right length, or changed elements."""
    parts = _npy_parts(data)
    if parts is None or rng.random() < 0.1:
        return mutate(data, rng, others)
    text, body = parts
    if rng.random() < 0.3:
        return _npy(text, mutate(body, rng, others))
    if rng.random() < 0.3:
        return _npy(mutate(text.rstrip(), rng, others), body)
    descr, order, shape = rng.choice(_DESCR), rng.choice(_ORDER), rng.choice(_SHAPE)
    made = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return _npy(made.encode(), body if rng.random() < 0.5 else rng.randbytes(rng.choice((0, 1, 24, 48, 96))))


def _npy_parts(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the header's text and the elements."""
    if not data.startswith(_NPY) or len(data) < 12:
        return None
    start, form = (10, "<H") if data[6] == 1 else (12, "<I")
    end = start + int(struct.unpack_from(form, data, 8)[0])
    return data[start:end], data[end:]


def _npy(text: bytes, body: bytes) -> bytes:
    padded = text + b" " * (-(len(text) + 11) % 64) + b"\n"
    if len(padded) > 0xFFFF:
        return _NPY + b"\x02\x00" + struct.pack("<I", len(padded)) + padded + body
    return _NPY + b"\x01\x00" + struct.pack("<H", len(padded)) + padded + body


def mutate_safetensors(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed safetensors file: a header changed as JSON, of right length, or plain bytes."""
    parts = _safetensors_parts(data)
    other = _safetensors_parts(rng.choice(others))
    if parts is None or other is None or rng.random() < 0.1:
        return mutate(data, rng, others)
    header, body = parts
    if rng.random() < 0.1:
        return data[:8] + header + mutate(body, rng, others)
    header = mutate_json(header, rng, [other[0]], end=b"")
    return struct.pack("<Q", len(header)) + header + body


def _safetensors_parts(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the header and the elements."""
    if len(data) < 8:
        return None
    end = 8 + int(struct.unpack_from("<Q", data)[0])
    return (data[8:end], data[end:]) if end <= len(data) else None


def mutate_zip(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return a changed archive: one member changed as what it is, renamed, left out or taken from another."""
    members = _members(data)
    if not members or rng.random() < 0.15:
        return mutate(data, rng, others)
    at = rng.choice((0, rng.randrange(len(members))))
    name, content, method = members[at]
    action = rng.random()
    if action < 0.85:
        members[at] = (name, _mutate_member(name, content, rng, members), method)
    elif action < 0.9:
        members[at] = (mutate(name.encode(), rng, [b"x"]).decode(errors="replace"), content, method)
    elif action < 0.95:
        del members[at]
    else:
        members += _members(rng.choice(others))
    return _archived(members)


def _mutate_member(
    name: str, content: bytes, rng: random.Random, members: Sequence[tuple[str, bytes, int]]
) -> bytes:
    others = [other for _, other, _ in members]
    parts = _npy_parts(content)
    if parts is not None and parts[1].startswith(b"{"):  # a structure note
        note = mutate_json(parts[1], rng, [parts[1]], end=b"")
        text = parts[0].rstrip().replace(f"({len(parts[1])},)".encode(), f"({len(note)},)".encode())
        return _npy(text, note)
    if name.endswith(".npy"):
        return mutate_npy(content, rng, others)
    return mutate_pickle(content, rng, others) if name.endswith(".pkl") else mutate(content, rng, others)


def _members(data: bytes) -> list[tuple[str, bytes, int]]:
    """Return name, content and compression of small members; none of what cannot be taken apart."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [info for info in archive.infolist() if info.file_size <= _MOST][:64]
            return [(info.filename, archive.read(info), info.compress_type) for info in entries]
    except _UNREADABLE:
        return []


def _archived(members: Sequence[tuple[str, bytes, int]]) -> bytes:
    """Return an archive; of members of one name the last."""
    file = io.BytesIO()
    made: dict[str, tuple[zipfile.ZipInfo, bytes]] = {}
    for name, content, method in members:
        info = zipfile.ZipInfo(name)  # which cuts a name at a NUL
        info.compress_type = method if method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 0
        made[info.filename] = (info, content)
    with zipfile.ZipFile(file, "w") as archive:
        for info, content in made.values():
            archive.writestr(info, content)
    return file.getvalue()
