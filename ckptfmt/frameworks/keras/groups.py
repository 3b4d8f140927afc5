"""Groups of an HDF5 file as mappings, and what Keras keeps beside arrays: attributes and lists of names.

Names stay as they are, except that the numbers in a group ``vars`` are whole numbers in the tree, in their
own order. An attribute becomes part of the group's tag. Raw bytes are made bfloat16 only where a
configuration says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ckptfmt.containers.hdf5.walk import Dataset
from ckptfmt.errors import FormatError, LimitError
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Strings, Tag, tagged
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.containers.hdf5.reader import Hdf5File
    from ckptfmt.containers.hdf5.walk import Group
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = [
    "GROUP_TAG",
    "MAX_LEVELS",
    "NUMBER",
    "VARS",
    "Untyped",
    "attributes_of",
    "mapping_of",
    "natural",
    "split_name",
    "with_tag",
]

VARS = "vars"
"""The group that holds the variables of one layer or optimizer."""
GROUP_TAG = "keras.group"
"""Name of the tag that holds a group's attributes."""
MAX_LEVELS = 56
"""How deep groups lie at most; a tree has 64 levels."""

NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
"""What is a number among the names in `VARS`."""


def natural(name: Key) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which ``dense_10`` comes after ``dense_2``."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", str(name))
    return tuple(
        (0, int(part), part) if part.isdigit() and part.isascii() else (1, 0, part) for part in parts
    )


class Untyped:
    """The raw bytes of a file that may be bfloat16, and what is told of those that nothing tells of.

    Keras writes bfloat16 as two raw bytes; since 3.4 an attribute of the dataset says so, but in no legacy
    file and in none of Keras 2 (keras/src/saving/saving_lib.py, keras/src/legacy/saving/legacy_h5_format.py).
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._paths: list[Path] = []
        self._attributes: list[tuple[Path, list[str]]] = []

    def node(self, path: Path, found: Dataset, *, sure: bool) -> Tree:
        """Return the node of a dataset; `sure` if its layer is of bfloat16."""
        node = found.node
        others = sorted(set(found.attributes) - {"dtype", "shape"})
        if others:
            self._attributes.append((path, others))
        if found.words != "|V2" or not isinstance(node, Composite):
            return node
        raw = node.parts["bytes"]
        if sure and isinstance(raw, Tensor):
            identity = ("raw", id(raw.source)) if 0 not in found.shape else None
            return Tensor(dtype("bf16"), found.shape, raw.source, identity=identity)
        self._paths.append(path)
        return node

    def findings(self) -> tuple[Finding, ...]:
        """Return a finding for all that stays without a type, one for attributes that are not kept."""
        made = []
        if self._paths:
            many = f"{len(self._paths)} arrays of two raw bytes"
            message = f"{many}, which nothing says are bfloat16: kept as raw bytes"
            made.append(Finding("untyped", display(self._paths[0]), Severity.INFO, message, file=self._file))
        if self._attributes:
            path, names = self._attributes[0]
            message = f"{len(self._attributes)} arrays have attributes that are not kept, {names[0]!r} first"
            made.append(Finding("attribute-unread", display(path), Severity.LOSS, message, file=self._file))
        return tuple(made)


def attributes_of(group: Group | Dataset, file: str, findings: list[Finding]) -> dict[Key, Tree]:
    """Return the attributes that a tag can hold, texts and numbers and lists; a finding for any other."""
    held: dict[Key, Tree] = {}
    for name, value in group.attributes.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim <= 1:
            held[name] = value.tolist()
        elif isinstance(value, Strings) and len(value.shape) <= 1:
            held[name] = list(value.values)
        elif isinstance(value, str | bytes) or value is None:
            held[name] = value
        else:
            message = f"attribute {name!r} is of a kind that is not kept"
            findings.append(Finding("attribute-unread", group.path, Severity.LOSS, message, file=file))
    return held


def with_tag(node: dict[Key, Tree], attributes: Mapping[Key, Tree], name: str = GROUP_TAG) -> dict[Key, Tree]:
    """Return a mapping that remembers attributes, where there are any."""
    if not attributes:
        return node
    made = tagged(node, Tag(name, dict(attributes)))
    assert isinstance(made, dict)  # noqa: S101 - as it was
    return made


def mapping_of(file: Hdf5File, findings: list[Finding]) -> dict[Key, Tree | Dataset]:
    """Return all groups of a file as mappings, in natural order, whose leaves are datasets still.

    Raises
    ------
    LimitError
        Groups are deeper than `MAX_LEVELS`.
    """
    made: dict[str, dict[Key, Tree | Dataset]] = {}
    for path, group in file.groups.items():  # a group stands before those in it
        if path.count("/") > MAX_LEVELS:
            raise LimitError(f"groups deeper than {MAX_LEVELS}", file=file.name, tensor=path[:400])
        made[path] = with_tag({}, attributes_of(group, file.name, findings))  # type: ignore[assignment] # empty yet
    for path, group in file.groups.items():
        numbered = path.rpartition("/")[2] == VARS
        for name in sorted(group.members, key=natural):
            member = group.members[name]
            key: Key = int(name) if numbered and NUMBER.fullmatch(name) else name
            below = f"{path}/{name}" if path else name
            if isinstance(member, Dataset):
                made[path][key] = member
            elif below in made:  # else it is a group around itself
                made[path][key] = made[below]  # type: ignore[assignment] # datasets are replaced
    return made[""]


def names_of(group: Group, name: str, file: str) -> list[str] | None:
    """Return a list of names that one attribute holds, or several, ``name0``, ``name1``; None if none does.

    What is too long for one attribute is split (``save_attributes_to_hdf5_group`` of
    keras/src/legacy/saving/legacy_h5_format.py); an empty list is an array of float64.

    Raises
    ------
    FormatError
        It holds something else.
    """
    if name in group.attributes:
        return _texts(group.attributes[name], group, name, file)
    if f"{name}0" not in group.attributes:
        return None
    names: list[str] = []
    part = 0
    while f"{name}{part}" in group.attributes:
        names += _texts(group.attributes[f"{name}{part}"], group, f"{name}{part}", file)
        part += 1
    return names


def _texts(value: Attribute, group: Group, name: str, file: str) -> list[str]:
    if isinstance(value, np.ndarray) and value.size == 0:
        return []
    if isinstance(value, Strings) and len(value.shape) == 1:
        texts = [text for text in value.values if isinstance(text, str)]
        if len(texts) == len(value.values):
            return texts
    raise FormatError(f"attribute {name!r} is no list of names", file=file, tensor=group.path or "/")


def split_name(name: str, group: Group, file: str) -> tuple[str, ...]:
    """Return the parts of a name with slashes.

    Raises
    ------
    FormatError
        A part is empty, ``.`` or ``..``: such a name means another.
    """
    parts = tuple(name.split("/"))
    if not all(parts) or {".", ".."} & set(parts):
        raise FormatError(f"{name!r} in a list of names is no name", file=file, tensor=group.path or "/")
    return parts
