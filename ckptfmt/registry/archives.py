"""What an archive is by the names of its members: a PyTorch file, an NPZ, or something else.

Zip archives are read through the strict parser, so that detection sees what the reader will see. Of a tar
archive only the headers of the first members are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.zip import records
from ckptfmt.containers.zip.directory import read_entries
from ckptfmt.errors import FormatError, TruncatedError
from ckptfmt.registry.table import Format, format_named
from ckptfmt.registry.texts import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.storage.reader import ByteReader

__all__ = ["is_tar", "tar_kind", "zip_kind"]

_BLOCK = 512
_MEMBERS = 16
_OLD_TORCH = {b"storages", b"tensors", b"pickle"}
_ABOUT_OTHERS = (b"x", b"g", b"L", b"K")  # kinds of headers that say something of the next member
_CHECKPOINTS = (".pt", ".pth", ".npz", ".safetensors", ".bin", ".ckpt", ".h5", ".npy")


def zip_kind(reader: ByteReader, head: bytes) -> Format | tuple[str, str]:
    """Return the format of a zip archive, or what else it is and what to do.

    Raises
    ------
    TruncatedError
        It is cut short; the message says of what it looks like the beginning.
    FormatError
        It breaks the format of zip archives.
    """
    try:
        names = [entry.name for entry in read_entries(reader)]
    except TruncatedError as error:
        message = f"{_beginning(head)} that is cut short after {reader.size} bytes: download or copy it again"
        raise TruncatedError(message, file=reader.name, offset=reader.size) from error
    except FormatError as error:
        if _is_row_of_archives(reader):
            what = "several zip archives in one file, as the .distcp files of a torch.distributed checkpoint"
            return what, "Give their directory, or its .metadata."
        raise error.located(file=reader.name) from error
    if all(name.endswith(".npy") for name in names):  # none at all is how numpy writes no arrays
        return format_named("chainer-npz" if _is_chainer(names) else "npz")
    if {"config.json", "model.weights.h5"} <= set(names):
        return format_named("keras")
    return _torch_kind(names) or _other_kind(names)


def _is_row_of_archives(reader: ByteReader) -> bool:
    """Whether the last of several archives ends the file: its first member begins where its offsets say."""
    at = reader.size - records.END.size
    magic, *_, size, offset, comment = records.END.unpack(reader.read(at, records.END.size))
    if magic != records.END_MAGIC or comment:
        return False
    wide = at - records.LOCATOR.size - records.END64.size  # as PyTorch has it in small archives, too
    if wide >= 0 and reader.read(wide, 4) == records.END64_MAGIC:
        at = wide
        *_, size, offset = records.END64.unpack(reader.read(wide, records.END64.size))
    start = at - size - offset
    return start > 0 and reader.read(start, 4) == records.LOCAL_MAGIC


def _is_chainer(names: Sequence[str]) -> bool:
    """Whether an NPZ file is a snapshot of a trainer, or was written by us for Chainer.

    A model alone has names like any other NPZ file's.
    """
    if "ckptfmt.chainer.npy" in names:
        return True
    return "updater/iteration.npy" in names and any(
        name.startswith(("updater/model:", "updater/optimizer:", "updater/iterator:")) for name in names
    )


def _beginning(head: bytes) -> str:
    """Say what a zip archive looks like by its first member."""
    length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + length]
    if name.endswith((b"/data.pkl", b"/version", b"/.format_version", b"/byteorder")) or b"/data/" in name:
        return "a PyTorch file (a zip archive)"
    if name.endswith(b".npy"):
        return "an NPZ file (a zip archive)"
    if name == b"metadata.json":
        return "a Keras model (a zip archive), by the look of it,"
    return "a zip archive"


def _torch_kind(names: Sequence[str]) -> Format | tuple[str, str] | None:
    if "serialized_exported_program.json" in names:  # torch.export before 2.8
        return format_named("torch-export")
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        return None
    below = {name.partition("/")[2] for name in names}
    if "archive_format" in below:
        if any(name.startswith("models/") for name in below):
            return format_named("torch-export")
        return "a program compiled by AOTInductor (.pt2)", "Give the state dict that it was made from."
    if "constants.pkl" in below:
        return format_named("torchscript")
    if {"model.json", "attributes.pkl"} <= below or {"model.json", "version"} <= below:
        advice = "Load it with torch.jit.load where you trust it, and save its state_dict()."
        return "a TorchScript program of before PyTorch 1.4", advice
    return format_named("torch") if "data.pkl" in below else None


def _other_kind(names: Sequence[str]) -> tuple[str, str]:
    if {"config.json", "model.weights.npz"} <= set(names):
        return "a Keras model whose weights are an NPZ (.keras)", "Save it in Keras with weights in HDF5."
    inside = sorted(name for name in names if name.lower().endswith(_CHECKPOINTS))
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        what = f"a zip archive with {quoted(inside[0].encode())}{more} inside"
        return what, "Unpack it and give what is inside."
    return (
        f"a zip archive that begins with {quoted(names[0].encode())}",
        "It holds no checkpoint that we know.",
    )


def is_tar(head: bytes) -> bool:
    """Whether a file begins with a tar header (POSIX or GNU)."""
    return head[257:262] == b"ustar"


def tar_kind(reader: ByteReader) -> Format | tuple[str, str]:
    """Return the format of a tar archive, or what else it is and what to do."""
    names = _tar_names(reader)
    found = _OLD_TORCH & set(names)
    if found == _OLD_TORCH:
        return format_named("torch-tar")
    if names[0] in _OLD_TORCH - {b"pickle"} and found == set(names):
        message = f"a PyTorch file (a tar archive) that is cut short after {reader.size} bytes"
        raise TruncatedError(f"{message}: download or copy it again", file=reader.name, offset=reader.size)
    return f"a tar archive that begins with {quoted(names[0])}", "Unpack it and give what is inside."


def _tar_names(reader: ByteReader) -> list[bytes]:
    """Return the names of the first members; at least one."""
    names: list[bytes] = []
    at = 0
    while len(names) < _MEMBERS and at + _BLOCK <= reader.size:
        block = reader.read(at, _BLOCK)
        digits = block[124:136].rstrip(b"\0 ").lstrip(b" ") or b"0"
        if block[257:262] != b"ustar" or not digits.isdigit() or not set(digits) <= set(b"01234567"):
            break
        if block[156:157] not in _ABOUT_OTHERS:
            names.append(block[:100].rstrip(b"\0").removeprefix(b"./"))
        at += _BLOCK + -(-int(digits, 8) // _BLOCK) * _BLOCK
    return names or [reader.read(0, min(100, reader.size)).rstrip(b"\0")]
