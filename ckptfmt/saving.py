"""Save a tree as a checkpoint of our own format: plan, write, digest, commit.

The target is the old or the new checkpoint at any moment, never half of one. Digests are taken from the
memory that is written. One rank is the simplest case of many: the plan knows nothing of ranks.
"""

from __future__ import annotations

import getpass
import os
import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import zstandard
from blake3 import blake3

from ckptfmt.errors import OptionError
from ckptfmt.format.codecs import DEFAULT_LEVEL, MAX_LEVEL
from ckptfmt.format.constants import CHUNKS, MANIFEST, MAX_BYTES, PROVENANCE, extra_name_allowed
from ckptfmt.format.digests import chunk_digest, root_digest, tree_bag
from ckptfmt.format.header import encode_header
from ckptfmt.format.manifest import ExtraFile, Manifest, encode_manifest
from ckptfmt.format.planning import Plan, PlanOptions, TensorSpec, plan
from ckptfmt.format.rows import ShardRow, TensorRow
from ckptfmt.format.sealed import seal
from ckptfmt.parallel.pipeline import Progress, Written, thread_count, write_data
from ckptfmt.registry import adapt
from ckptfmt.storage.commit import Overwrite, Staging
from ckptfmt.storage.files import aligned_buffer
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.canonical import JSON, MAX_NESTING, check_nesting, dumps, loads
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.options import globs, whole_number
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.source import ArraySource
from ckptfmt.tree.walk import Place, survey
from ckptfmt.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptfmt.storage.files import DataFile
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.tensor import Tensor

__all__ = ["HF_INDEX", "SaveReceipt", "save"]

HF_INDEX = "model.safetensors.index.json"
"""The index that Hugging Face's loaders look for beside sharded safetensors files."""
_PIECE = 4 << 20
_OVERWRITE: dict[bool | str, Overwrite] = {False: "no", True: "exchange", "two-step": "two-step"}


@dataclass(frozen=True, slots=True)
class SaveReceipt:
    """What was saved.

    Attributes
    ----------
    path : str
    root, bag : bytes
        Digests of the tree and of its tensors.
    step : int or None
    tensors : int
        Rows of the table: ties count once.
    nbytes : int
        Canonical bytes of all rows.
    stored : int
        Bytes of all files.
    files : tuple of str
    direct : bool
        Whether every large shard was written past the page cache.
    retries : int
        Writes that were repeated after a transient error.
    findings : tuple of Finding
    """

    path: str
    root: bytes
    bag: bytes
    step: int | None
    tensors: int
    nbytes: int
    stored: int
    files: tuple[str, ...]
    direct: bool
    retries: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Options:
    step: int | None
    plan: PlanOptions
    level: int
    extra: dict[str, JSON]
    extra_files: Mapping[str, bytes | os.PathLike[str]]
    hf_index: bool
    provenance: Literal["basic", "full"]
    threads: int
    direct: bool
    progress: Callable[[int, int], None] | None


def save(  # noqa: PLR0913 - each is a choice of the user's
    tree: object,
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    codec: str = "raw",
    level: int = DEFAULT_LEVEL,
    shard_size: int | None = None,
    separate: str | Sequence[str] = (),
    overwrite: bool | Literal["two-step"] = False,
    extra: Mapping[str, JSON] | None = None,
    extra_files: Mapping[str, bytes | os.PathLike[str]] | None = None,
    hf_index: bool = False,
    provenance: Literal["basic", "full"] = "basic",
    threads: int | None = None,
    direct: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> SaveReceipt:
    """Save a tree; when this returns, the checkpoint is on the disk and any process can load it.

    Parameters
    ----------
    tree : object
        Nested dicts, lists, tuples and sets of plain values, numpy arrays, torch tensors and tree nodes; or
        an opened `Checkpoint` of any format.
    path : str or os.PathLike
        The directory to become. Its parent must exist.
    step : int, optional
        The training step, kept beside the tree and outside every digest.
    codec : {"raw", "zstd", "planes+zstd"}
        How data is stored. Raw shards are safetensors files.
    level : int
        Of Zstandard, 1 to 22.
    shard_size : int, optional
        Bytes of data at which a shard is closed; 4 GiB or more by default.
    separate : str or sequence of str
        Globs of displayed paths, or one; what each matches lies in shards of its own.
    overwrite : bool or "two-step"
        Whether an existing checkpoint is exchanged for this one. "two-step" is for file systems that
        cannot exchange two names; a kill in its middle is mended by `recover`.
    extra : mapping, optional
        JSON of your own, without fractions; in the manifest, outside every digest.
    extra_files : mapping of str to bytes or path, optional
        Small files that travel along, such as ``config.json``; listed with their digests.
    hf_index : bool
        Whether to add the index that Hugging Face's loaders want.
    provenance : {"basic", "full"}
        "full" also records host, user, time and command line.
    threads : int, optional
        At least four are used by default, to keep the disk busy.
    direct : bool
        Whether large shards are written past the page cache, where the file system can.
    progress : callable, optional
        Called with bytes done and bytes in all, from one thread at a time.

    Returns
    -------
    SaveReceipt

    Raises
    ------
    TreeError, LimitError
        Something in the tree cannot be kept; the message names its path.
    OptionError
        An option that does not exist or is out of range.
    ExistsError
        The target exists, or another writer made it meanwhile.
    UnsupportedError
        The file system cannot exchange names: save to a new name, or say ``overwrite="two-step"``.
    NoSpaceError, StorageError
        Nothing was changed at the target.
    """
    if overwrite not in tuple(_OVERWRITE):
        raise OptionError(f'overwrite must be False, True or "two-step", not {overwrite!r}')
    if provenance not in ("basic", "full"):
        raise OptionError(f'provenance must be "basic" or "full", not {provenance!r}')
    options = _Options(
        None if step is None else whole_number("step", step, 0, MAX_BYTES),
        PlanOptions(codec, shard_size, globs("separate", separate)),
        whole_number("level", level, 1, MAX_LEVEL),
        _checked_extra(extra),
        _checked_files(extra_files, hf_index=hf_index, codec=codec),
        hf_index,
        provenance,
        thread_count(threads),
        direct,
        progress,
    )
    with collector_paused():
        captured, findings = as_tree(tree.tree if isinstance(tree, Checkpoint) else tree, adapt=adapt)
        state = _State.of(captured, options.plan)
        findings = (*findings, *state.overlaps())
    with Staging(path, overwrite=_OVERWRITE[overwrite]) as staging:
        written = _write_data(state, staging, options)
        with collector_paused():
            receipt = _finish(state, staging, options, written, findings)
        staging.commit()
    return receipt


def _checked_extra(extra: Mapping[str, JSON] | None) -> dict[str, JSON]:
    try:
        given = dict(extra or {})
        kept = loads(dumps(given))
        check_nesting(kept, MAX_NESTING - 1)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"extra must be JSON without fractions: {error}") from None
    if not isinstance(kept, dict) or kept != given:
        raise OptionError("extra must be a mapping of JSON values: keys are strings, lists are no tuples")
    return kept


def _checked_files(
    files: Mapping[str, bytes | os.PathLike[str]] | None, *, hf_index: bool, codec: str
) -> dict[str, bytes | os.PathLike[str]]:
    kept = dict(files or {})
    for name, content in kept.items():
        known = type(name) is str and extra_name_allowed(name)
        if not known or (hf_index and name == HF_INDEX):
            raise OptionError(f"an extra file may not be called {name!r}")
        if not isinstance(content, (bytes, bytearray, memoryview, os.PathLike)):
            raise OptionError(f"the extra file {name} must be given as bytes or a path, not {content!r}")
    if hf_index and codec != "raw":
        raise OptionError("an index for safetensors loaders needs raw shards")
    return kept


@dataclass(frozen=True, slots=True)
class _State:
    """A tree, its plan, and which tensor fills which row."""

    tree: Tree
    places: tuple[Place, ...]
    plan: Plan
    tensors: tuple[Tensor, ...]
    ordinals: Mapping[object, int]
    document: JSON

    @classmethod
    def of(cls, tree: Tree, options: PlanOptions) -> _State:
        places = tuple(survey(tree))
        rows = _untied(places)
        planned = plan((TensorSpec(p, t.dtype, t.shape) for p, t in rows.values()), options)
        by_path = {path: (key, tensor) for key, (path, tensor) in rows.items()}
        keys = [by_path[row.path] for row in planned.rows]
        ordinals = {key: ordinal for ordinal, (key, _) in enumerate(keys)}
        document = encode_tree(tree, lambda tensor: ordinals[_row_key(tensor)])
        dumps(document)  # a string that is not valid Unicode is found before anything is written
        return cls(tree, places, planned, tuple(tensor for _, tensor in keys), ordinals, document)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.plan.rows)

    def ordinal(self, tensor: Tensor) -> int:
        return self.ordinals[_row_key(tensor)]

    def overlaps(self) -> list[Finding]:
        """Tell of tensors that are other views of the memory that one more lies in: they are stored apart."""
        ranges = sorted(
            (*source.extent(_address(tensor)), ordinal)
            for ordinal, tensor in enumerate(self.tensors)
            if isinstance(source := tensor.source, ArraySource) and tensor.nbytes
        )
        found, reach, owner = [], 0, -1
        for low, high, ordinal in ranges:
            if low < reach:
                names = [display(self.plan.rows[index].path) for index in (ordinal, owner)]
                message = f"is another view of the memory of {names[1]}; both are stored whole"
                found.append(Finding("overlap", names[0], Severity.INFO, message))
            if high > reach:
                reach, owner = high, ordinal
        return found


def _row_key(tensor: Tensor) -> object:
    return id(tensor) if tensor.identity is None else tensor.identity


def _untied(places: Sequence[Place]) -> dict[object, tuple[tuple, Tensor]]:
    """Return one tensor for each row, under the first of its paths in canonical order."""
    rows: dict[object, tuple[tuple, Tensor]] = {}
    for place in places:
        key = _row_key(place.tensor)
        earlier = rows.get(key)
        if earlier is None or encode_path(place.path) < encode_path(earlier[0]):
            rows[key] = (place.path, place.tensor if earlier is None else earlier[1])
    return rows


def _address(tensor: Tensor) -> int | None:
    """Return where a numpy array begins in memory, if its identity says so."""
    match tensor.identity:
        case ("memory", int(address), *_):
            return address
    return None


def _write_data(state: _State, staging: Staging, options: _Options) -> Written:
    return write_data(
        state.plan,
        state.tensors,
        lambda name, size, direct: staging.create(name, size=size, direct=direct),
        level=options.level,
        threads=options.threads,
        direct=options.direct,
        progress=Progress(options.progress, state.nbytes),
    )


def _finish(
    state: _State, staging: Staging, options: _Options, written: Written, findings: tuple[Finding, ...]
) -> SaveReceipt:
    """Write everything that only the digests tell: headers, side files, and the manifest last."""
    root = root_digest(state.tree, lambda tensor: written.digests[state.ordinal(tensor)])
    bag = tree_bag(state.places, lambda tensor: written.digests[state.ordinal(tensor)])
    rows = _rows(state.plan, written)
    shards = _headers(state.plan, rows, written, root)
    sizes = {shard.name: shard.size for shard in shards}
    if chunks := _chunks(state.plan, written):
        sizes[CHUNKS] = _write_file(staging, CHUNKS, chunks)
    files = [_extra_file(staging, name, content) for name, content in _contents(state.plan, options)]
    manifest = encode_manifest(
        Manifest(
            state.document,
            state.tree,
            state.places,
            rows,
            shards,
            root,
            bag,
            options.step,
            options.extra,
            tuple(sorted(files)),
        )
    )
    sizes |= {file.name: file.size for file in files}
    sizes[PROVENANCE] = _write_file(staging, PROVENANCE, seal(_provenance(options)))
    for file in staging.files:  # the manifest is the last to become durable
        file.sync()
        file.close()
    sizes[MANIFEST] = _write_file(staging, MANIFEST, manifest)
    return SaveReceipt(
        staging.path,
        root,
        bag,
        options.step,
        len(rows),
        state.nbytes,
        sum(sizes.values()),
        tuple(sorted(sizes)),
        all(file.direct for file in written.wanted_direct),
        sum(file.retries for file in written.files),
        findings,
    )


def _rows(planned: Plan, written: Written) -> tuple[TensorRow, ...]:
    """Return the rows of the manifest; offsets of coded shards follow from the lengths."""
    ends = [0] * len(planned.shards)
    rows = []
    for ordinal, row in enumerate(planned.rows):
        lengths = written.lengths.get(ordinal)
        length = row.nbytes if lengths is None else sum(lengths)
        stored = bytes(written.stored[ordinal]) if lengths is not None and len(lengths) == 1 else None
        rows.append(
            TensorRow(
                row.path,
                row.name,
                row.dtype,
                row.shape,
                row.nbytes,
                written.digests[ordinal],
                row.shard,
                ends[row.shard],
                row.codec,
                row.chunks,
                length,
                stored,
            )
        )
        ends[row.shard] += length
    return tuple(rows)


def _headers(planned: Plan, rows: Sequence[TensorRow], written: Written, root: bytes) -> tuple[ShardRow, ...]:
    """Write the header of each shard, now that the root is known, and return the shard rows."""
    sizes = [shard.header_size for shard in planned.shards]
    for row in rows:
        sizes[row.shard] += row.length
    made = []
    for index, (shard, file) in enumerate(zip(planned.shards, written.files, strict=True)):
        header = encode_header(root, index, len(planned.shards), shard.entries)
        page = aligned_buffer(len(header))
        page[:] = header
        file.write_at(0, page)
        made.append(ShardRow(shard.name, sizes[index], chunk_digest(header)))
    return tuple(made)


def _chunks(planned: Plan, written: Written) -> bytes:
    """Return the bytes of ``chunks.bin``."""
    parts: list[bytes] = []
    for ordinal, row in enumerate(planned.rows):
        if row.chunks is not None:
            parts.append(bytes(written.chunks[ordinal]))
            if ordinal in written.lengths:
                parts.append(bytes(written.stored[ordinal]))
                parts.append(np.array(written.lengths[ordinal], "<u8").tobytes())
    return b"".join(parts)


def _contents(planned: Plan, options: _Options) -> list[tuple[str, bytes | os.PathLike[str]]]:
    """Return the extra files to write."""
    contents = list(options.extra_files.items())
    if options.hf_index:
        shards = [shard.name for shard in planned.shards]
        weights: dict[str, JSON] = {row.name: shards[row.shard] for row in planned.rows}
        total = sum(row.nbytes for row in planned.rows)
        contents.append((HF_INDEX, dumps({"metadata": {"total_size": total}, "weight_map": weights})))
    return contents


def _write_file(staging: Staging, name: str, data: bytes) -> int:
    staging.write_bytes(name, data)
    return len(data)


def _extra_file(staging: Staging, name: str, content: bytes | os.PathLike[str]) -> ExtraFile:
    if not isinstance(content, os.PathLike):
        return ExtraFile(name, _write_file(staging, name, bytes(content)), blake3(content).digest())
    with FileReader(content) as reader:
        file: DataFile = staging.create(name, size=reader.size, direct=False)
        hasher = blake3()
        for start in range(0, reader.size, _PIECE):
            piece = reader.read(start, min(_PIECE, reader.size - start))
            hasher.update(piece)
            file.write_at(start, piece)
        return ExtraFile(name, reader.size, hasher.digest())


def _provenance(options: _Options) -> dict[str, JSON]:
    """Return what made the checkpoint: nothing of when, where or by whom, unless asked."""
    record: dict[str, JSON] = {
        "versions": {
            "ckptfmt": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "layout": {"ranks": 1},
        "options": {
            "codec": options.plan.codec,
            "separate": list(options.plan.separate),
            "shard_size": options.plan.shard_size,
        },
    }
    if options.plan.codec != "raw":
        record["options"] |= {"level": options.level}  # type: ignore[operator] # a dict, just above
        record["versions"] |= {"zstd": ".".join(map(str, zstandard.ZSTD_VERSION))}  # type: ignore[operator]
    if options.provenance == "full":
        record["full"] = {
            "command": list(sys.argv),
            "directory": str(Path.cwd()),
            "host": platform.node(),
            "platform": platform.platform(),
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "user": getpass.getuser(),
        }
    return record
