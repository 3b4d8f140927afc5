"""What a directory is by the names of its entries: a checkpoint of ours, one of another kind, or a folder.

Entries are looked at by name and kind only; nothing is entered except to see whether a checkpoint of ours
lies in it, and whether a file named like a rank's is one. Symbolic links are not followed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptfmt.containers.rank_names import holds_ranks, rank_names
from ckptfmt.containers.safetensors_parts import is_part_name
from ckptfmt.errors import FormatError
from ckptfmt.registry.archives import zip_kind
from ckptfmt.registry.table import NATIVE, Format, format_named
from ckptfmt.registry.tables import INDEX, single_bundle
from ckptfmt.registry.texts import quoted
from ckptfmt.storage.removal import COMMIT_RECORD, is_checkpoint

if TYPE_CHECKING:
    from ckptfmt.storage.directory import Directory

__all__ = ["describe_directory", "is_folder"]

_SHARD = re.compile(r"data-[0-9]{5}-of-[0-9]{5}\.(safetensors|ckz)")
_METADATA = ".metadata"
_OF_RANK = re.compile(r"__[0-9]+\.metadata")
_RANKS_APART = (
    "Give one of them. One file of each rank is read as one where no other PyTorch file is beside them."
)
_NOT_YET = "This release does not read it."
_FILES = (
    ".bin",
    ".ckpt",
    ".h5",
    ".index",
    ".keras",
    ".npz",
    ".pt",
    ".pth",
    ".safetensors",
    ".safetensors.index.json",
)
_OF_A_RANK = re.compile(r"[^.]+\.[0-9]{1,9}\.[0-9]{1,15}|.*[0-9]\.[0-9]{1,9}")
_SNAPSHOT = re.compile(r"snapshot_iter_[0-9]+")
_TRIED = 3
_SHOWN = 5
_LOOKED_AT = 1000

_SAVED_MODEL = frozenset({"saved_model.pb", "saved_model.pbtxt"})
_MARKS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "orbax.checkpoint"}),
        "an Orbax checkpoint",
    ),
    (frozenset({".zarray", ".zgroup", ".zmetadata", "zarr.json"}), "a Zarr store"),
)
"""Names of which one is enough."""


def describe_directory(place: Directory) -> Format | tuple[str, str]:
    """Return the format of a directory, or what else it is and what to do.

    A directory is a checkpoint of ours if it has its manifest, or shards that only we name so; with an index
    of safetensors shards, or shards called as ranks of torch.distributed call theirs, it is read as those.
    What is missing or broken then is for the reader to say.
    """
    names = sorted(place.names())
    return _kind(names) or _ranks(place, names) or _torch_ranks(names) or _folder(place, names)


def is_folder(place: Directory) -> bool:
    """Whether a directory is no checkpoint of any kind itself, so that what it holds may be listed."""
    names = sorted(place.names())
    return (_kind(names) or _ranks(place, names) or _torch_ranks(names)) is None


def _kind(names: list[str]) -> Format | tuple[str, str] | None:
    known = set(names)
    if COMMIT_RECORD in known or any(_SHARD.fullmatch(name) for name in names):
        return format_named(NATIVE)
    if any(name.endswith(".safetensors.index.json") or is_part_name(name) for name in names):
        return format_named("safetensors")
    if any(name.endswith(".distcp") for name in names) or _METADATA in known:
        return _distributed(names)
    for marks, what in _MARKS:
        if marks & known:
            return what, _NOT_YET
    return _tensorflow(known)


def _torch_ranks(names: list[str]) -> Format | None:
    """Tell files of PyTorch whose names differ in the number of a rank only."""
    return None if rank_names(names) is None else format_named("torch-ranks")


def _tensorflow(known: set[str]) -> Format | tuple[str, str] | None:
    """Tell a SavedModel, a directory with a list of checkpoints, and one with a single checkpoint."""
    if known & _SAVED_MODEL:
        if "variables" in known:
            return format_named("tensorflow")
        return "a TensorFlow SavedModel without variables", "It holds a program and no weights."
    if "checkpoint" in known and any(name.endswith(INDEX) for name in known):
        return format_named("tensorflow")
    if "checkpoint" in known and any(name.endswith(".meta") for name in known):
        return format_named("tensorflow-v1")
    return format_named("tensorflow") if single_bundle(known) else None


def _ranks(place: Directory, names: list[str]) -> Format | None:
    """Tell the files of several ranks of ChainerMN by their names, and by what one of the first few holds."""
    for name in [name for name in names if _OF_A_RANK.fullmatch(name) and place.is_file(name)][:_TRIED]:
        try:
            with place.reader(name, mapped=False) as reader:
                head = reader.read(0, min(64, reader.size))
                found = zip_kind(reader, head) if head.startswith(b"PK\x03\x04") else None
        except (FormatError, OSError):
            continue
        if isinstance(found, Format) and found.name == "chainer-npz":
            return format_named("chainermn")
    return None


def _distributed(names: list[str]) -> Format | tuple[str, str]:
    if _METADATA in names:
        return format_named("dcp")
    alone = [name for name in names if _OF_RANK.fullmatch(name)]
    if alone:
        what = "a directory of torch.distributed checkpoints (DCP) that ranks wrote without each other"
        return what, f"Give the metadata of one rank: {', '.join(alone[:_SHOWN])}."
    return "a torch.distributed checkpoint (DCP) without its .metadata", "It is not complete."


def _folder(place: Directory, names: list[str]) -> tuple[str, str]:
    if not names:
        return "an empty directory", "There is no checkpoint in it."
    found = [name for name in names if name.lower().endswith(_FILES) or _SNAPSHOT.fullmatch(name)]
    found += [name for name in names[:_LOOKED_AT] if name[0] != "." and is_checkpoint(place, name)]
    if not found:
        return "a directory without a checkpoint that we know", "Give a file, or a checkpoint's directory."
    listed = ", ".join(quoted(name.encode(errors="replace")) for name in sorted(found)[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    advice = _RANKS_APART if holds_ranks(names) else "Give one of them."
    return f"a directory that holds {listed}{more}", advice
