"""What all writers of Keras's HDF5 files share: how a leaf lies there, attributes, and what is told of both.

Checks come before writing: a tree that is not as readers make it is refused by the path that does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ckptfmt.containers.hdf5.elements import ML_NAMES
from ckptfmt.containers.hdf5.writer import MAX_ATTRIBUTE, is_path
from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.keras.groups import GROUP_TAG, MAX_LEVELS
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Composite, Strings, tag_of
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from ckptfmt.containers.hdf5.attributes import Attribute
    from ckptfmt.containers.hdf5.writer import Hdf5Writer
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = [
    "Leaf",
    "Told",
    "attribute",
    "check_name",
    "leaf_of",
    "name_lists",
    "refuse_leaf",
    "tag_attributes",
]

_RAW = {1: "f8_e4m3fn", 2: "bf16"}
"""A type whose elements have that many bytes, which HDF5 knows as raw bytes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One dataset to write.

    Attributes
    ----------
    path : str
        In the file.
    node : Tensor, Strings or None
    named : bool
        Whether its type is told by an attribute, where HDF5 has no name for it.
    """

    path: str
    node: Tensor | Strings | None
    named: bool

    @property
    def nbytes(self) -> int:
        """Bytes of its elements in the file, at most."""
        if isinstance(self.node, Tensor):
            return self.node.nbytes + 64
        texts = self.node.values if self.node is not None else ()
        return sum(4 * len(text) + 64 for text in texts)

    def write(self, writer: Hdf5Writer) -> None:
        """Write it."""
        if isinstance(self.node, Tensor):
            writer.add(self.path, self.node, named=self.named)
        elif self.node is None:
            writer.add_empty(self.path)
        else:
            writer.add_text(self.path, self.node)


class Told:
    """What is worth telling about what is written.

    Parameters
    ----------
    loads_bfloat16 : bool
        Whether Keras loads bfloat16 from such a file.
    """

    def __init__(self, *, loads_bfloat16: bool) -> None:
        self._loads = {"bf16"} if loads_bfloat16 else set()
        self._seen: dict[Hashable, Path] = {}
        self._raw: dict[str, list[Path]] = {}
        self._tied: list[Path] = []
        self._unordered: list[Path] = []
        self._others: list[Finding] = []

    def tensor(self, path: Path, tensor: Tensor) -> None:
        """Note a tensor: one that was written before, or whose type Keras does not read."""
        identity = id(tensor) if tensor.identity is None else tensor.identity
        if self._seen.setdefault(identity, path) != path:
            self._tied.append(path)
        if tensor.dtype.name in ML_NAMES and tensor.dtype.name not in self._loads:
            self._raw.setdefault(tensor.dtype.name, []).append(path)

    def unordered(self, path: Path) -> None:
        """Note a mapping whose list of weights, by which Keras loads, was not kept."""
        self._unordered.append(path)

    def dropped(self, kind: str, path: Path, message: str, severity: Severity = Severity.LOSS) -> None:
        """Note something else."""
        self._others.append(Finding(kind, display(path), severity, message))

    def findings(self) -> Iterator[Finding]:
        """Yield everything that was noted."""
        yield from self._others
        for name, paths in sorted(self._raw.items()):
            many = f"type {name}: {len(paths)} tensors stored as raw bytes"
            message = f"{many} with an attribute that names the type, which no Keras loads from such a file"
            yield Finding("stored-raw", display(paths[0]), Severity.INFO, message)
        if self._unordered:
            many = f"{len(self._unordered)} groups of weights, {display(self._unordered[0])} the first"
            message = f"{many}, do not tell in which order Keras loads them: listed in the order of the keys"
            yield Finding("order-guessed", "", Severity.LOSS, message)
        if self._tied:
            message = f"{len(self._tied)} tensors are tied to others: stored once more, apart"
            yield Finding("tie-broken", display(self._tied[0]), Severity.INFO, message)


def refuse_leaf(path: Path, why: str) -> NoReturn:
    """Raise the error of a tree that is not one of Keras."""
    where = display(path) or "the root"
    raise ConversionError(f"{where}: {why}; for a tree of any other kind write hdf5 (--to hdf5)")


def check_name(name: str, path: Path) -> None:
    """Raise ConversionError unless a name can be part of a path in HDF5."""
    if "/" in name or name == ".." or not is_path(name) or not name.isprintable():
        refuse_leaf(path, f"{name!r} is no name that a group of Keras can have")
    if len(path) > MAX_LEVELS:
        refuse_leaf(path[:3], f"deeper than {MAX_LEVELS} levels")


def leaf_of(node: Tree, path: Path, place: str, told: Told) -> Leaf:
    """Return how a leaf of a tree lies in a file at `place`.

    Raises
    ------
    ConversionError
        It is none that a file of Keras holds.
    """
    if isinstance(node, Composite) and node.name == "numpy.void":
        raw = node.parts.get("bytes")
        name = _RAW.get(raw.shape[-1]) if isinstance(raw, Tensor) and raw.shape else None
        if isinstance(raw, Tensor) and name is not None:
            return Leaf(place, Tensor(dtype(name), raw.shape[:-1], raw.source), named=False)
    if isinstance(node, Tensor):
        told.tensor(path, node)
        return Leaf(place, node, named=True)
    if node is None or (isinstance(node, Strings) and all(isinstance(text, str) for text in node.values)):
        return Leaf(place, node, named=True)
    refuse_leaf(path, f"a {type(node).__name__} where files of Keras hold arrays only")


def tag_attributes(
    node: Tree, path: Path, told: Told, *, without: Sequence[str] = ()
) -> dict[str, Attribute]:
    """Return the attributes that the tag of a mapping holds; a tag of another kind is told."""
    tag = tag_of(node)
    if tag is None:
        return {}
    if tag.name != GROUP_TAG:
        told.dropped("class-dropped", path, f"written as a plain group: {tag.name}", Severity.INFO)
        return {}
    made: dict[str, Attribute] = {}
    for name, value in tag.attributes.items():
        if name in without:
            continue
        held = attribute(value)
        if isinstance(held, _None) or not isinstance(name, str):
            told.dropped("attribute-lost", path, f"attribute {name!r} is none that HDF5 can have")
        else:
            made[name] = held
    return made


class _None:
    """Stands for a value that no attribute can have."""


def attribute(value: Tree) -> Attribute | _None:
    """Return a plain value as an attribute of HDF5."""
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return Strings((len(value),), tuple(str(item) for item in value))
    numbers = value if isinstance(value, list) else [value]
    if all(type(item) in (bool, int, float) for item in numbers):
        try:
            made = np.array(value)
        except (OverflowError, ValueError):
            return _None()
        return made if made.dtype.kind in "biuf" else _None()
    return _None()


def name_lists(name: str, names: Sequence[str]) -> dict[str, Attribute]:
    """Return the attribute, or several, that hold a list of names: each as bytes of one width.

    So do all versions of Keras write them; Keras 2 with h5py 2 reads nothing else. No names at all are an
    array of float64, which is what h5py makes of an empty list.
    """
    encoded = tuple(text.encode() for text in names)
    if not encoded:
        return {name: np.zeros(0)}
    width = max(1, *map(len, encoded))
    most = max(1, MAX_ATTRIBUTE // width)
    parts = [encoded[start : start + most] for start in range(0, len(encoded), most)]
    if len(parts) == 1:
        return {name: Strings((len(encoded),), encoded)}
    return {f"{name}{place}": Strings((len(part),), part) for place, part in enumerate(parts)}
