"""The format ``keras``: a zip archive with a model's configuration, its weights, and its assets.

Entries of the tree are called as the members are: ``metadata.json`` and ``config.json`` are texts,
``model.weights.h5`` is a tree as `weights` reads it, ``assets`` are bytes by their paths. Nothing of it is
run: a `Lambda` layer is a text. Needs h5py (the extra ``hdf5``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.containers.hdf5.writer import Hdf5Writer
from ckptfmt.containers.noted.planning import pieces
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.containers.zip.members import StoredMember
from ckptfmt.containers.zip.writer import ZipWriter
from ckptfmt.errors import FormatError, LimitError, MissingFileError, UnsupportedVersionError
from ckptfmt.frameworks.keras.emit import Told, check_name, refuse_leaf
from ckptfmt.frameworks.keras.emit_weights import PlannedWeights
from ckptfmt.frameworks.keras.groups import MAX_LEVELS, Untyped, natural
from ckptfmt.frameworks.keras.h5 import known_layers
from ckptfmt.frameworks.keras.optimizer import CONFIG, METADATA, WEIGHTS
from ckptfmt.frameworks.keras.variables import layer_names, names_finding, weights_of
from ckptfmt.storage.reader import FileReader, RangeSource
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.dtypes import dtype
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ckptfmt.containers.zip.window import Window
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key
    from ckptfmt.tree.paths import Path as TreePath

__all__ = ["ASSETS", "read", "write"]

ASSETS = "assets"
_MAX_TEXT = 64 << 20
_VERIFIED = 8 << 20  # up to that length the checksum of the weights is compared when the file is opened
_MEMBERS = frozenset({METADATA, CONFIG, WEIGHTS, ASSETS})
_METADATA = '{"keras_version": "3.0.0"}'


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a ``.keras`` file.

    Tensors and assets stay in the file until they are read. The zip archive has one checksum for all weights:
    it is compared where they are no more than 8 MiB (else finding ``unverified``), and by
    `Checkpoint.verify_whole`.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    FormatError, TruncatedError, ChecksumError, LimitError, UnsupportedVersionError, MissingFileError
        The archive or its weights are malformed or hostile, or a member is missing.
    NotFoundError, StorageError
        It cannot be opened.
    """
    reader = FileReader(path)
    try:
        archive = ZipArchive(reader)
        tree, findings = _tree(archive, reader)
        member = archive.open(WEIGHTS)
    except BaseException:
        reader.close()
        raise
    verify = member.verify if isinstance(member, StoredMember) else None
    return Checkpoint(tree, format="keras", findings=findings, verify=verify, close=reader.close)


def write(tree: Tree, target: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Finding, ...]:
    """Write a tree as a ``.keras`` file, which Keras 3 loads in its safe mode.

    Members are stored, dates fixed: the bytes depend on the tree alone.

    Parameters
    ----------
    tree : Tree
        As the reader returns it; it must hold ``config.json`` and ``model.weights.h5``.
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced.

    Returns
    -------
    tuple of Finding
        As those of `weights.write`.

    Raises
    ------
    ConversionError
        The tree is no such tree; names the path that does not fit.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    if not isinstance(tree, dict) or CONFIG not in tree or not _MEMBERS.issuperset(tree):
        why = f"a .keras file holds {', '.join(sorted(_MEMBERS))}, and always {CONFIG} and {WEIGHTS}"
        refuse_leaf((), f"{why}: weights without a configuration are written as keras-weights")
    told = Told(loads_bfloat16=True)
    planned = PlannedWeights(tree.get(WEIGHTS), told, (WEIGHTS,))
    texts = {name: _encoded(tree.get(name, _METADATA), name) for name in (METADATA, CONFIG)}
    assets = list(_assets(tree.get(ASSETS, {})))
    with replacing(target, overwrite=overwrite) as file:
        archive = ZipWriter(file)
        for name, data in texts.items():
            archive.add(name, len(data), (data,))
        archive.add_written(WEIGHTS, partial(_write_weights, planned), most=planned.most)
        for name, asset in assets:
            archive.add(name, asset.nbytes, pieces(asset))
        archive.close()
    return tuple(told.findings())


def _encoded(text: Tree, name: str) -> bytes:
    if not isinstance(text, str):
        refuse_leaf((name,), "a text must be")
    return text.encode()


def _assets(assets: Tree) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and bytes of all assets in canonical order."""
    pending: list[tuple[TreePath, Tree]] = [((ASSETS,), assets)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, Tensor) and node.dtype.name == "u8" and node.ndim == 1 and len(path) > 1:
            yield "/".join(map(str, path)), node
            continue
        if not isinstance(node, dict):
            refuse_leaf(path, "an asset is a row of bytes (u8)")
        for key in sorted(node, key=natural, reverse=True):
            if not isinstance(key, str):
                refuse_leaf((*path, key), "a key that is no text")
            check_name(key, (*path, key))
            pending.append(((*path, key), node[key]))


def _write_weights(planned: PlannedWeights, window: Window) -> None:
    with Hdf5Writer(cast("BinaryIO", window)) as writer:
        planned.write(writer)


def _tree(archive: ZipArchive, reader: ByteReader) -> tuple[dict[Key, Tree], tuple[Finding, ...]]:
    if "model.weights.npz" in archive.entries:
        message = "weights in an NPZ inside, an experiment of Keras 3, are not read"
        raise UnsupportedVersionError(message, file=reader.name)
    for name in (CONFIG, WEIGHTS):
        if name not in archive.entries:
            raise MissingFileError(f"not a model of Keras: there is no member {name!r}", file=reader.name)
    made: dict[Key, Tree] = {
        name: _text(archive, name) for name in (METADATA, CONFIG) if name in archive.entries
    }
    config = made[CONFIG]
    assert isinstance(config, str)  # noqa: S101 - as _text has it
    known, told = known_layers(config, f"{reader.name}: {CONFIG}")
    findings: list[Finding] = [*archive.findings(), *told]
    with Hdf5File(_weights(archive, findings)) as file:
        untyped = Untyped(file.name)
        weights = weights_of(file, untyped, known, findings)
        findings += [*file.findings, *untyped.findings()]
    made[WEIGHTS] = weights
    findings += names_finding(layer_names(weights, known), reader.name)
    _add_assets(archive, made, findings)
    return made, tuple(findings)


def _weights(archive: ZipArchive, findings: list[Finding]) -> ByteReader:
    """Return the file of weights; a large one is not read as a whole only to verify its checksum."""
    member = archive.open(WEIGHTS)
    if member.size <= _VERIFIED or not isinstance(member, StoredMember):
        return member
    message = f"the checksum of {WEIGHTS} is one of all its {member.size} bytes: it was not compared"
    findings.append(Finding("unverified", "", Severity.INFO, message, file=archive.name))
    return member.unverified()


def _text(archive: ZipArchive, name: str) -> str:
    member = archive.open(name)
    if member.size > _MAX_TEXT:
        raise LimitError(f"a text of {member.size} bytes", file=member.name)
    try:
        return member.read(0, member.size).decode()
    except UnicodeDecodeError as error:
        raise FormatError("is no text in UTF-8", file=member.name, offset=error.start) from None


def _add_assets(archive: ZipArchive, made: dict[Key, Tree], findings: list[Finding]) -> None:
    for name, entry in archive.entries.items():
        if name in (CONFIG, METADATA, WEIGHTS) or name.endswith("/"):
            continue
        parts = name.split("/")
        if parts[0] != ASSETS or len(parts) < 2:
            message = f"member {name[:200]!r} is none that Keras knows: it is left out"
            findings.append(Finding("unlisted", name[:200], Severity.LOSS, message, file=archive.name))
            continue
        if not all(parts) or {".", ".."} & set(parts) or len(parts) > MAX_LEVELS:
            raise FormatError(f"member {name[:200]!r} has no proper path", file=archive.name)
        into = made
        for part in parts[:-1]:
            below = into.setdefault(part, {})
            if not isinstance(below, dict):
                raise FormatError(f"member {name!r} lies in a file", file=archive.name)
            into = below
        if parts[-1] in into:
            raise FormatError(f"member {name!r} is a folder, too", file=archive.name)
        source = RangeSource(archive.open(name), 0, entry.size)
        into[parts[-1]] = Tensor(dtype("u8"), (entry.size,), source)
