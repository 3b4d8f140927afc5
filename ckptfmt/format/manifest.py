"""The commit record of a checkpoint: section 8 of ``spec/ckptfmt-1.0.md``.

Encoding takes a plan and what only the values tell; decoding checks every rule that the manifest alone
can break, so that a decoded manifest can be relied upon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ckptfmt.errors import ChecksumError, FormatError, LimitError, UnsupportedVersionError
from ckptfmt.format.constants import (
    CODED,
    MANIFEST,
    MAX_BYTES,
    MAX_MANIFEST,
    MAX_ROWS,
    VERSION,
    extra_name_allowed,
    shard_name,
)
from ckptfmt.format.digests import root_digest, tree_bag
from ckptfmt.format.header import header_entry
from ckptfmt.format.rows import RowReader, ShardRow, TensorRow, decode_digest, digests_size, is_size
from ckptfmt.format.sealed import seal, unseal
from ckptfmt.tree.canonical import MAX_NESTING, check_nesting
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.document import decode_document
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import Place, survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.canonical import JSON
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path

__all__ = [
    "ExtraFile",
    "Manifest",
    "check_digests",
    "decode_manifest",
    "encode_manifest",
    "ordinal_of",
    "shard_entries",
]


class ExtraFile(NamedTuple):
    """A file that travels along: its name, its size in bytes, and its digest."""

    name: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says.

    Attributes
    ----------
    document : JSON
        The tree in the form of section 5.3.
    tree : Tree
        The same; decoded, its tensors have no source yet.
    places : tuple of Place
        Every tensor object of the tree; the last item of its `identity` is the ordinal of its row.
    rows : tuple of TensorRow
        In canonical order.
    shards : tuple of ShardRow
    root, bag : bytes
    step : int or None
    extra : dict
        JSON of the user's own.
    extra_files : tuple of ExtraFile
    """

    document: JSON
    tree: Tree
    places: tuple[Place, ...]
    rows: tuple[TensorRow, ...]
    shards: tuple[ShardRow, ...]
    root: bytes
    bag: bytes
    step: int | None = None
    extra: dict[str, JSON] = field(default_factory=dict)
    extra_files: tuple[ExtraFile, ...] = ()

    @property
    def coded(self) -> bool:
        """Whether some shard is coded."""
        return any(shard.name.endswith(".ckz") for shard in self.shards)

    @property
    def chunks_size(self) -> int:
        """Bytes of ``chunks.bin``; 0 where there is none."""
        return sum(digests_size(row.nbytes, row.codec) for row in self.rows)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of ``manifest.json``.

    Raises
    ------
    LimitError
        They would be more than any reader accepts.
    """
    data = seal(
        {
            "bag": manifest.bag.hex(),
            "extra": manifest.extra,
            "extra_files": [[file.name, file.size, file.digest.hex()] for file in manifest.extra_files],
            "format": list(VERSION),
            "requires": [CODED] if manifest.coded else [],
            "root": manifest.root.hex(),
            "shards": [[shard.name, shard.size, shard.header.hex()] for shard in manifest.shards],
            "step": manifest.step,
            "tensors": [row.as_json() for row in manifest.rows],
            "tree": manifest.document,
        }
    )
    if len(data) > MAX_MANIFEST:
        raise LimitError(f"a manifest of {len(data)} bytes; at most {MAX_MANIFEST} are allowed", rule="R-015")
    return data


def decode_manifest(data: bytes, *, file: str = MANIFEST) -> Manifest:
    """Return what the bytes of a ``manifest.json`` say, every rule that it alone can break checked.

    Raises
    ------
    FormatError
        A rule is broken; `rule` names it.
    """
    try:
        with collector_paused():
            return _decode(unseal(data, file=file))
    except FormatError as error:
        raise error.located(file=file) from None


_MEMBERS = frozenset(
    ("bag", "extra", "extra_files", "format", "requires", "root", "shards", "step", "tensors", "tree")
)
_SMALL_MEMBERS = ("bag", "extra", "extra_files", "root", "step")


def _decode(document: dict[str, JSON]) -> Manifest:
    _check_versions(document)
    if unknown := set(document) ^ _MEMBERS:
        raise FormatError(f"members missing or unknown: {', '.join(sorted(unknown))}", rule="R-014")
    for name in _SMALL_MEMBERS:  # rows and the tree have limits of their own
        check_nesting(document[name], MAX_NESTING - 1)
    step = document["step"]
    if step is not None and (type(step) is not int or not 0 <= step <= MAX_BYTES):
        raise FormatError("step is no number of a step", rule="R-014")
    extra = document["extra"]
    if not isinstance(extra, dict):
        raise FormatError("extra is not an object", rule="R-014")
    shards = tuple(_shard_row(form) for form in _list(document["shards"], "shards"))
    rows = _rows(_list(document["tensors"], "tensors"), shards)
    tree, places = _tree(document["tree"], rows)
    manifest = Manifest(
        document["tree"],
        tree,
        places,
        rows,
        shards,
        decode_digest(document["root"], "R-014"),
        decode_digest(document["bag"], "R-014"),
        step,
        extra,
        _extra_files(_list(document["extra_files"], "extra_files")),
    )
    if (document["requires"] == [CODED]) != manifest.coded:
        raise FormatError('"coded" is required where a shard is coded, and only there', rule="R-034")
    return manifest


def _check_versions(document: dict[str, JSON]) -> None:
    version, requires = document.get("format"), document.get("requires")
    if not isinstance(version, list) or len(version) != 2 or not all(type(part) is int for part in version):
        raise FormatError("format is no version", rule="R-014")
    if version[0] != VERSION[0]:
        raise UnsupportedVersionError(
            f"the checkpoint is of version {version[0]}.{version[1]}; this release reads {VERSION[0]}",
            rule="R-012",
        )
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        raise FormatError("requires is not a list of names", rule="R-014")
    if unknown := [name for name in requires if name != CODED]:
        raise UnsupportedVersionError(
            f"the checkpoint requires {unknown}, which this release lacks", rule="R-013"
        )
    if len(requires) > 1 or version[1] < 0:  # type: ignore[operator] # checked above
        raise FormatError("requires is not sorted, or format no version", rule="R-014")


def _list(value: JSON, name: str) -> list[JSON]:
    if not isinstance(value, list):
        raise FormatError(f"{name} is not a list", rule="R-014")
    return value


def _shard_row(form: JSON) -> ShardRow:
    match form:
        case [str(name), int(size), header] if is_size(size):
            return ShardRow(name, size, decode_digest(header, "R-014"))
    raise FormatError("a malformed shard row", rule="R-014")


def _extra_files(forms: list[JSON]) -> tuple[ExtraFile, ...]:
    files = []
    for form in forms:
        match form:
            case [str(name), int(size), digest] if is_size(size):
                files.append(ExtraFile(name, size, decode_digest(digest, "R-014")))
            case _:
                raise FormatError("a malformed row of an extra file", rule="R-014")
        if not extra_name_allowed(name):
            raise FormatError(f"an extra file may not be called {name[:200]!r}", rule="R-004")
    if any(low.name >= high.name for low, high in pairwise(files)):
        raise FormatError("extra files are not sorted by name", rule="R-014")
    return tuple(files)


def _rows(forms: list[JSON], shards: Sequence[ShardRow]) -> tuple[TensorRow, ...]:
    if len(forms) > MAX_ROWS:
        raise LimitError(f"more than {MAX_ROWS} tensors", rule="R-015")
    for index, shard in enumerate(shards):
        if shard.name not in (shard_name(index, len(shards), coded=c) for c in (False, True)):
            raise FormatError(f"a shard may not be called {shard.name[:200]!r}", rule="R-004")
    coded = [shard.name.endswith(".ckz") for shard in shards]
    reader = RowReader(coded)
    rows = tuple(reader.row(form, ordinal) for ordinal, form in enumerate(forms))
    reader.check_sizes(shards)
    return rows


class _NoSource:
    """Stands for bytes while only the structure of a tree is looked at."""

    def view(self, start: int, stop: int) -> memoryview | None:
        """Have none."""
        raise AssertionError(start, stop)

    def readinto(self, start: int, out: memoryview) -> None:
        """Have none."""
        raise AssertionError(start, out)


def _tree(document: JSON, rows: Sequence[TensorRow]) -> tuple[Tree, tuple[Place, ...]]:
    """Return the tree and its tensors; check that tree and rows refer to each other as they must."""
    source, owner = _NoSource(), object()
    tensors = [
        Tensor(row.dtype, row.shape, source, identity=(owner, ordinal), digest=row.digest)
        for ordinal, row in enumerate(rows)
    ]
    tree, places = _decode_tree(document, tensors)
    first: list[Path | None] = [None] * len(rows)
    for place in places:
        ordinal = ordinal_of(place.tensor)
        earlier = first[ordinal]
        first[ordinal] = place.path if earlier is None else min(earlier, place.path, key=encode_path)
    for path, row in zip(first, rows, strict=True):
        if path is None:
            raise FormatError("nothing refers to the row", rule="R-023", tensor=display(row.path))
        if not _same_path(path, row.path):
            raise FormatError(
                f"the row's path is not the first that refers to it, {display(path)}",
                rule="R-025",
                tensor=display(row.path),
            )
    return tree, places


def _decode_tree(document: JSON, tensors: Sequence[Tensor]) -> tuple[Tree, tuple[Place, ...]]:
    tree, references = decode_document(document, tensors)
    if references is None or len(references) != len(tensors):  # shared containers or ties
        return tree, tuple(survey(tree))
    return tree, tuple(Place(path, tensor, 1) for path, tensor in references)


def ordinal_of(tensor: Tensor) -> int:
    """Return the ordinal of the row of a tensor of a decoded manifest."""
    ordinal: int = tensor.identity[1]  # type: ignore[index] # set by _tree
    return ordinal


def _same_path(one: Path, other: Path) -> bool:
    return one == other and (
        all(type(key) is str for key in one + other) or encode_path(one) == encode_path(other)
    )


def check_digests(manifest: Manifest) -> list[FormatError]:
    """Return what is wrong with root and bag, given the digests of the rows."""
    rows = manifest.rows

    def of(tensor: Tensor) -> bytes:
        return rows[ordinal_of(tensor)].digest

    problems: list[FormatError] = []
    if root_digest(manifest.tree, of) != manifest.root:
        problems.append(ChecksumError("the root is not that of the tree", rule="R-060", file=MANIFEST))
    if tree_bag(manifest.places, of) != manifest.bag:
        problems.append(ChecksumError("the bag is not that of the tree", rule="R-061", file=MANIFEST))
    return problems


def shard_entries(manifest: Manifest, index: int) -> list[bytes]:
    """Return the members of the header of shard `index` that its rows imply."""
    if manifest.shards[index].name.endswith(".ckz"):
        return []
    return [
        header_entry(row.name, row.dtype, row.shape, row.offset, row.nbytes)
        for row in manifest.rows
        if row.shard == index
    ]
