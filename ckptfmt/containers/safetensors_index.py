"""The index of a sharded set of safetensors files: which tensor lies in which file of the same directory.

``{"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}``, as huggingface_hub writes it. Names of
files are one component of a strict grammar, and links that leave the directory are refused. Index and headers
are compared both ways, and every difference is named in one error. Nothing here reads tensors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.names import check_component
from ckptfmt.errors import FormatError, LimitError, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from ckptfmt.containers.safetensors import Header
    from ckptfmt.storage.reader import ByteReader

__all__ = [
    "INDEX_SUFFIX",
    "MAX_INDEX",
    "MAX_SHARDS",
    "Index",
    "check_index",
    "check_shard_name",
    "decode_index",
    "encode_index",
    "stray_shards",
]

INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX = 256 << 20
"""Greatest length of an index in bytes: three million tensors."""
MAX_SHARDS = 10_000

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Index:
    """A decoded index.

    Attributes
    ----------
    weight_map : dict of str to str
        The file of each tensor.
    total_size : int or None
        Bytes of all tensors, where it is told.
    """

    weight_map: dict[str, str]
    total_size: int | None

    def shards(self) -> list[str]:
        """Return the files that hold a tensor, sorted."""
        return sorted(set(self.weight_map.values()))


def encode_index(weight_map: Mapping[str, str], total_size: int) -> bytes:
    """Return an index as huggingface_hub writes it: sorted, indented by two."""
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    return (json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def decode_index(reader: ByteReader) -> Index:
    """Read and check an index; that its files exist and agree is `check_index`'s.

    Raises
    ------
    LimitError
        It is longer than `MAX_INDEX`, nested too deeply, or names more than `MAX_SHARDS` files.
    FormatError
        It is not JSON, has a member twice, or names a file that is not one component of plain characters.
    """
    if reader.size > MAX_INDEX:
        raise LimitError(f"an index of {reader.size} bytes; at most {MAX_INDEX}", file=reader.name)
    value = _parse(reader.read(0, reader.size), reader.name)
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FormatError("an index without a weight_map of strings", file=reader.name)
    shards = set(weight_map.values())
    if len(shards) > MAX_SHARDS:
        raise LimitError(f"an index of {len(shards)} files; at most {MAX_SHARDS}", file=reader.name)
    for name in sorted(shards):
        check_shard_name(name, file=reader.name)
    return Index(weight_map, _total_size(value.get("metadata"), reader.name))


def _parse(data: bytes, file: str) -> dict[str, object]:
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError:
        raise LimitError("an index that is nested too deeply", file=file) from None
    except UnicodeDecodeError as error:
        raise FormatError("an index that is not UTF-8", file=file, offset=error.start) from None
    except ValueError as error:
        raise FormatError(f"a malformed index: {error}"[:300], file=file) from None
    if not isinstance(value, dict):
        raise FormatError("an index that is no JSON object", file=file)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse(f"{name} (a second time)")
            seen.add(name)
    return made


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"unexpected {text}")


def _total_size(metadata: object, file: str) -> int | None:
    """Return the total size; some writers have it as a float with no fraction."""
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size is None:
        return None
    whole = size.is_integer() if isinstance(size, float) else type(size) is int
    if not isinstance(size, int | float) or not whole or size < 0:
        raise FormatError(f"total_size {str(size)[:40]!r} is no number of bytes", file=file)
    return int(size)


def check_shard_name(name: str, *, file: str) -> None:
    """Raise FormatError unless a name from an index is one of `check_component`, and a safetensors file."""
    check_component(name, file=file)
    if not name.endswith(".safetensors"):
        raise FormatError(f"{name[:80]!r} cannot be the name of a shard", file=file)


def check_index(
    index: Index, headers: Mapping[str, Header], *, file: str, parts: Container[str] = frozenset()
) -> None:
    """Compare an index with the headers of the files it names, both ways.

    Parameters
    ----------
    index : Index
    headers : mapping of str to Header
        By file; files that are not there are left out.
    file : str
        What to call the index in errors.
    parts : container of str
        Tensors that lie in several files, of which the index lists one.

    Raises
    ------
    MissingFileError
        Files are missing; other differences are in the same message.
    FormatError
        The index lists tensors that a file has not, does not list some that it has, or another total size.
    """
    missing = [name for name in index.shards() if name not in headers]
    held = {name: {entry.name for entry in header.entries} for name, header in headers.items()}
    ghosts = [
        f"{tensor} in {shard}"
        for tensor, shard in index.weight_map.items()
        if shard in held and tensor not in held[shard]
    ]
    unlisted = [
        f"{tensor} in {shard}"
        for shard, tensors in held.items()
        for tensor in sorted(tensors)
        if index.weight_map.get(tensor) != shard and not (tensor in parts and tensor in index.weight_map)
    ]
    total = sum(entry.end - entry.begin for header in headers.values() for entry in header.entries)
    problems = [
        _listed("missing files", missing),
        _listed("tensors that are listed but not there", ghosts),
        _listed("tensors that are there but not listed", unlisted),
    ]
    if not missing and index.total_size not in (None, total):
        problems.append(f"total_size is {index.total_size}, but the tensors have {total} bytes")
    message = "; ".join(problem for problem in problems if problem)
    if message:
        kind = MissingFileError if missing else FormatError
        raise kind(f"the index and its files disagree: {message}", file=file)


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}"


def stray_shards(names: Iterable[str], index: Index) -> list[str]:
    """Return the safetensors files among the names of a directory that the index does not know, sorted."""
    known = set(index.weight_map.values())
    return sorted(name for name in names if name.endswith(".safetensors") and name not in known)
