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
    ALIGNMENT,
    CHUNK,
    CODECS,
    CODED,
    DIGEST,
    MANIFEST,
    MAX_BYTES,
    MAX_HEADER,
    MAX_MANIFEST,
    MAX_PATH,
    MAX_ROWS,
    VERSION,
    extra_name_allowed,
    shard_name,
)
from ckptfmt.format.digests import root_digest, tree_bag
from ckptfmt.format.header import header_entry
from ckptfmt.format.planning import alignment_class, chunk_count, unique_name
from ckptfmt.format.sealed import seal, unseal
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.document import decode_document, decode_key, encode_key_json
from ckptfmt.tree.dtypes import DType, dtype
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
    "ShardRow",
    "TensorRow",
    "check_digests",
    "decode_manifest",
    "encode_manifest",
    "ordinal_of",
    "raw_chunk_range",
    "shard_entries",
]


class TensorRow(NamedTuple):
    """A row of the tensor table.

    Attributes
    ----------
    path, name, dtype, shape, nbytes, shard, offset, codec, chunks :
        As in `planning.Row`.
    digest : bytes
        The tensor digest.
    length : int
        Bytes stored: the canonical bytes if raw.
    stored : bytes or None
        The digest of the stored bytes of a coded tensor of one chunk.
    """

    path: Path
    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    digest: bytes
    shard: int
    offset: int
    codec: str
    chunks: int | None
    length: int
    stored: bytes | None

    def as_json(self) -> list[JSON]:
        """Return the row of the manifest."""
        row: list[JSON] = [
            [encode_key_json(key) for key in self.path],
            self.name,
            self.dtype.name,
            list(self.shape),
            self.digest.hex(),
            self.shard,
            self.offset,
            self.codec,
            self.chunks,
        ]
        if self.codec != "raw":
            row += [self.length, None if self.stored is None else self.stored.hex()]
        return row


class ShardRow(NamedTuple):
    """A data file: its name, its size in bytes, and the digest of its header."""

    name: str
    size: int
    header: bytes


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
        return sum(_digests_size(row.nbytes, row.codec) for row in self.rows)


def _digests_size(nbytes: int, codec: str) -> int:
    count = chunk_count(nbytes)
    if count <= 1:
        return 0
    return count * (DIGEST if codec == "raw" else 2 * DIGEST + 8)


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


def _decode(document: dict[str, JSON]) -> Manifest:
    _check_versions(document)
    if unknown := set(document) ^ _MEMBERS:
        raise FormatError(f"members missing or unknown: {', '.join(sorted(unknown))}", rule="R-014")
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
        _digest(document["root"], "R-014"),
        _digest(document["bag"], "R-014"),
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
            f"the checkpoint is of version {version[0]}.{version[1]}; this release reads version {VERSION[0]}",
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


def _digest(text: JSON, rule: str) -> bytes:
    if type(text) is str and len(text) == 64:
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            digest = b""
        if digest.hex() == text:
            return digest
    raise FormatError("a digest is not 64 hexadecimal digits", rule=rule)


def _is_size(value: JSON) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def _shard_row(form: JSON) -> ShardRow:
    match form:
        case [str(name), int(size), header] if _is_size(size):
            return ShardRow(name, size, _digest(header, "R-014"))
    raise FormatError("a malformed shard row", rule="R-014")


def _extra_files(forms: list[JSON]) -> tuple[ExtraFile, ...]:
    files = []
    for form in forms:
        match form:
            case [str(name), int(size), digest] if _is_size(size):
                files.append(ExtraFile(name, size, _digest(digest, "R-014")))
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
    reader = _RowReader(coded)
    rows = tuple(reader.row(form, ordinal) for ordinal, form in enumerate(forms))
    reader.check_sizes(shards)
    return rows


class _RowReader:
    """Decodes rows in order and checks what each owes to those before it."""

    def __init__(self, coded: Sequence[bool]) -> None:
        self._coded = coded
        self._ends = [0] * len(coded)
        self._used = [False] * len(coded)
        self._chunks = 0
        self._taken = {"__metadata__"}
        self._last: tuple[int, tuple[bytes, ...]] = (-13, ())
        self._types: dict[str, DType] = {}

    def row(self, form: JSON, ordinal: int) -> TensorRow:
        if not isinstance(form, list) or len(form) not in (9, 11):
            raise FormatError(f"row {ordinal} is malformed", rule="R-030")
        path = _path(form[0])
        try:
            return self._checked(form, ordinal, path)
        except FormatError as error:
            raise error.located(tensor=display(path)) from None

    def _checked(self, form: list[JSON], ordinal: int, path: Path) -> TensorRow:
        _, name, kind, shape, digest, shard, offset, codec, chunks = form[:9]
        known, dims, nbytes = self._type(kind, shape)
        self._check_order(path, nbytes)
        if name != unique_name(path, ordinal, self._taken):
            raise FormatError(f"the header name {str(name)[:200]!r} is not the one of its path", rule="R-032")
        if type(shard) is not int or not 0 <= shard < len(self._coded) or not _is_size(offset):
            raise FormatError("a shard or offset that does not exist", rule="R-030")
        if codec not in CODECS or (codec != "raw") != self._coded[shard]:
            raise FormatError(f"codec {str(codec)[:40]!r} does not fit the shard", rule="R-034")
        first = self._check_chunks(chunks, nbytes, codec)
        length, stored = _stored(form, nbytes, codec)
        if offset != self._ends[shard]:
            raise FormatError(
                f"offset {offset} in shard {shard + 1}, where {self._ends[shard]} follows", rule="R-033"
            )
        self._used[shard] = True
        self._ends[shard] += length
        return TensorRow(
            path,
            name,
            known,
            dims,
            nbytes,
            _digest(digest, "R-030"),
            shard,
            offset,
            codec,
            first,
            length,
            stored,
        )

    def _type(self, kind: JSON, shape: JSON) -> tuple[DType, tuple[int, ...], int]:
        if type(kind) is not str or type(shape) is not list or len(shape) > 64:
            raise FormatError("a malformed type or shape", rule="R-030")
        known = self._types.get(kind)
        if known is None:
            known = self._types[kind] = _known_type(kind)
        for extent in shape:
            if type(extent) is not int or not 0 <= extent <= MAX_BYTES:
                raise FormatError("a malformed shape", rule="R-030")
        dims: tuple[int, ...] = tuple(shape)  # type: ignore[arg-type] # checked above
        nbytes = known.nbytes(dims)
        if nbytes > MAX_BYTES:
            raise FormatError(f"a tensor of {nbytes} bytes", rule="R-030")
        return known, dims, nbytes

    def _check_order(self, path: Path, nbytes: int) -> None:
        encoded = encode_path(path)
        if sum(map(len, encoded)) > MAX_PATH:
            raise LimitError(f"a path of more than {MAX_PATH} bytes", rule="R-015")
        key = (-alignment_class(nbytes), encoded)
        if key <= self._last:
            raise FormatError("rows are not in canonical order", rule="R-031")
        self._last = key

    def _check_chunks(self, chunks: JSON, nbytes: int, codec: str) -> int | None:
        size = _digests_size(nbytes, codec)
        expected = self._chunks if size else None
        if chunks != expected or type(chunks) is bool:
            raise FormatError("an offset into chunks.bin that does not follow", rule="R-035")
        self._chunks += size
        return expected

    def check_sizes(self, shards: Sequence[ShardRow]) -> None:
        for index, shard in enumerate(shards):
            if not self._used[index]:
                raise FormatError(f"shard {shard.name} has no rows", rule="R-033")
            size = shard.size - self._ends[index]
            if size <= 0 or size % ALIGNMENT or size > 2 * MAX_HEADER:
                raise FormatError(
                    f"shard {shard.name} is said to have {shard.size} bytes; its data alone takes {self._ends[index]}",
                    rule="R-040",
                )


def _path(form: JSON) -> Path:
    if not isinstance(form, list) or len(form) > 64:
        raise FormatError("a malformed path", rule="R-030")
    return tuple(key if type(key) is str else decode_key(key, ()) for key in form)


def _known_type(kind: str) -> DType:
    try:
        return dtype(kind)
    except ValueError:
        raise FormatError(f"unknown element type {kind[:40]!r}", rule="R-030") from None


def _stored(form: list[JSON], nbytes: int, codec: str) -> tuple[int, bytes | None]:
    """Return the stored length of a row, and the stored digest of a coded row of one chunk."""
    if (len(form) == 11) != (codec != "raw"):
        raise FormatError("length and stored belong to coded rows, and only to them", rule="R-036")
    if codec == "raw":
        return nbytes, None
    length, stored = form[9:]
    count = chunk_count(nbytes)
    if type(length) is not int or not count <= length <= nbytes or (stored is None) != (count != 1):
        raise FormatError("a stored length or digest that cannot be", rule="R-036")
    return length, None if stored is None else _digest(stored, "R-036")


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


def shard_entries(manifest: Manifest, index: int) -> list[str]:
    """Return the members of the header of shard `index` that its rows imply."""
    if manifest.shards[index].name.endswith(".ckz"):
        return []
    return [
        header_entry(row.name, row.dtype, row.shape, row.offset, row.nbytes)
        for row in manifest.rows
        if row.shard == index
    ]


def raw_chunk_range(row: TensorRow, index: int) -> tuple[int, int]:
    """Return where chunk `index` of a row lies in its canonical bytes."""
    return index * CHUNK, min((index + 1) * CHUNK, row.nbytes)
