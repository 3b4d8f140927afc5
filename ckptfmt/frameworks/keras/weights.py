"""The format ``keras-weights``: ``.weights.h5`` of Keras 3 and 2.13, one file or a sharded set.

A set is given by its ``.weights.json``, which says in which files the variables of each group lie; files are
looked for beside it and nowhere else. Needs h5py (the extra ``hdf5``).
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.containers.hdf5.writer import Hdf5Writer
from ckptfmt.errors import FormatError, LimitError, MissingFileError, NotFoundError
from ckptfmt.frameworks.keras.emit import Told, refuse_leaf
from ckptfmt.frameworks.keras.emit_weights import PlannedWeights
from ckptfmt.frameworks.keras.groups import Untyped
from ckptfmt.frameworks.keras.optimizer import WEIGHTS
from ckptfmt.frameworks.keras.variables import layer_names, merged, names_finding, weights_of
from ckptfmt.storage.reader import FileReader
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from ckptfmt.tree.nodes import Tree

__all__ = ["read", "write"]

_MAX_INDEX = 64 << 20
_MAX_FILES = 10_000
_ALONE = f"them alone, in Python: ckptfmt.write(checkpoint.tree[{WEIGHTS!r}], target)"


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a weights file of Keras 3, or a sharded set by its ``.weights.json``.

    The tree is the file's groups; the numbers in ``vars`` are whole numbers. What the user calls a layer is
    in the tag of its ``vars``, and in the finding ``layer-names``. Tensors stay in the files until they are
    read.

    Parameters
    ----------
    path : str or os.PathLike
        What it is is told by its content.

    Raises
    ------
    FormatError, TruncatedError, LimitError, UnsupportedVersionError, MissingFileError
        A file is malformed or hostile, or the files of a set do not fit each other.
    NotFoundError, StorageError
        It cannot be opened.
    """
    path = Path(path)
    with ExitStack() as stack:
        reader = stack.enter_context(FileReader(path))
        findings: list[Finding] = []
        untyped = Untyped(reader.name)
        stored = reader.size
        if reader.read(0, min(64, reader.size)).lstrip()[:1] == b"{":
            index = _index(reader)
            shards = {name: stack.enter_context(_shard(path, name, reader.name)) for name in _files(index)}
            parts = [(file.name, weights_of(file, untyped, (), findings)) for file in shards.values()]
            findings += [finding for file in shards.values() for finding in file.findings]
            findings += _checked(index, shards, reader.name)
            stored += sum(file.size for file in shards.values())
            tree = merged(parts)
        else:
            file = stack.enter_context(Hdf5File(reader))
            findings += file.findings
            tree = weights_of(file, untyped, (), findings)
        findings += [*untyped.findings(), *names_finding(layer_names(tree), reader.name)]
        closing = stack.pop_all()
    return Checkpoint(
        tree, format="keras-weights", findings=tuple(findings), stored=stored, close=closing.close
    )


def write(tree: Tree, target: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Finding, ...]:
    """Write a tree as one ``.weights.h5`` file, which Keras 3 loads.

    The bytes depend on the tree alone, not on the order of its keys.

    Parameters
    ----------
    tree : Tree
        As the reader returns it: mappings that follow a model's attributes, arrays in those called ``vars``.
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types that Keras does not load; ``tie-broken`` for tied tensors.

    Raises
    ------
    ConversionError
        The tree is no such tree; names the path that does not fit.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    if isinstance(tree, dict) and WEIGHTS in tree:
        why = f"weights below this name are a .keras file's, and Keras would not find them: write {_ALONE}"
        refuse_leaf((WEIGHTS,), why)
    told = Told(loads_bfloat16=True)
    planned = PlannedWeights(tree, told)
    with replacing(target, overwrite=overwrite) as file, Hdf5Writer(file) as writer:
        planned.write(writer)
    return tuple(told.findings())


def _index(reader: FileReader) -> dict[str, list[str]]:
    """Return the files of each group of variables, by its path without a slash before.

    ``ShardedH5IOStore`` of keras/src/saving/saving_lib.py: one name, or a list of several.
    """
    if reader.size > _MAX_INDEX:
        raise LimitError(f"an index of {reader.size} bytes", file=reader.name)
    try:
        value = json.loads(reader.read(0, reader.size).decode())
    except RecursionError:
        raise LimitError("an index that is nested too deeply", file=reader.name) from None
    except ValueError as error:
        raise FormatError(f"the index is no JSON: {str(error)[:200]}", file=reader.name) from None
    weights = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weights, dict):
        raise FormatError("the index has no weight_map", file=reader.name)
    made: dict[str, list[str]] = {}
    for group, names in weights.items():
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise FormatError("the files of a group are no names", file=reader.name, tensor=group[:400])
        made[group.strip("/")] = listed
    return made


def _files(index: Mapping[str, list[str]]) -> list[str]:
    names = sorted({name for listed in index.values() for name in listed})
    if len(names) > _MAX_FILES:
        raise LimitError(f"a set of {len(names)} files")
    return names


def _shard(path: Path, name: str, index: str) -> Hdf5File:
    """Open a file of the set; only a plain name means a file beside the index."""
    if name in ("", ".", "..") or set(name) & set("/\\\0") or Path(name).name != name:
        raise FormatError(f"{name[:200]!r} is no name of a file beside the index", file=index)
    try:
        return Hdf5File(path.with_name(name))
    except NotFoundError:
        raise MissingFileError(f"the file {name!r} of the set is not there", file=index) from None


def _checked(index: Mapping[str, list[str]], shards: Mapping[str, Hdf5File], name: str) -> Iterator[Finding]:
    """Compare index and files both ways; yield a finding for variables that the index does not know.

    Raises
    ------
    FormatError
        A file has not the group that the index says is in it.
    """
    unknown: list[str] = []
    for group, listed in index.items():
        for file in listed:
            if group not in shards[file].groups:
                message = f"the index says that {file!r} holds {group!r}; it does not"
                raise FormatError(message, file=name, tensor=group)
    for file, opened in shards.items():
        for dataset in opened.datasets:
            group = dataset.rpartition("/")[0]
            while group and group not in index:
                group = group.rpartition("/")[0]
            if file not in index.get(group, ()):
                unknown.append(f"{file}: {dataset}")
    if unknown:
        message = f"{len(unknown)} variables are not in the index, {unknown[0]} among them: Keras skips them"
        yield Finding("unlisted", "", Severity.INFO, message, file=name)
