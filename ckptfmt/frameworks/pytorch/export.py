"""Reads the archives of `torch.export.save` (``.pt2``): the weights and constants of a program.

Needs no PyTorch. The program itself (``models/``) and its sample inputs are not kept. Facts from
``torch/export/pt2_archive/_package.py`` of 2.13: the present form, in which each storage is a raw member; one
with a file of `torch.save` for all weights; and that of 2.7 and before, without a folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.nodes import Call, Global, PersistentId
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import FormatError, LimitError, MissingFileError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.archives import check_version, is_big_endian, root_of
from ckptfmt.frameworks.pytorch.keys import torch_function
from ckptfmt.frameworks.pytorch.reader import read_zip, tree_of
from ckptfmt.frameworks.pytorch.rebuild import Tensors
from ckptfmt.frameworks.pytorch.storages import ZipStorages
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.collector import collector_paused
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Opaque

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key

__all__ = ["read"]

_OLD = {"serialized_state_dict": "state_dict", "serialized_constants": "constants"}
_FOLDERS = {"state_dict": ("data/weights", "weights"), "constants": ("data/constants", "constants")}
_MOST_JSON = 64 << 20
_STRIDED = 7  # Layout of torch/_export/serde/schema.py
_SCALARS = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
"""ScalarType of torch/_export/serde/schema.py."""


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an archive of `torch.export.save`.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        ``state_dict`` and ``constants``, each a mapping of the program's own names to tensors; where there
        are several programs, or one not called ``model``, each below its name. Tensors are read when they
        are asked for.

    Raises
    ------
    FormatError
        The file is damaged, hostile or of another kind.
    UnsupportedVersionError
        It is of a newer version, or holds compiled code alone.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    reader = FileReader(path)
    try:
        with collector_paused():
            archive = ZipArchive(reader)
            old = "serialized_exported_program.json" in archive.entries
            tree, findings = _old(archive) if old else _tree(archive)
    except BaseException:
        reader.close()
        raise
    told = (*archive.findings(), *findings, _PROGRAM)
    return Checkpoint(tree, format="torch-export", findings=told, close=reader.close)


_PROGRAM = Finding(
    "program", "", Severity.INFO, "the program is no part of a checkpoint and is not read, nor are its inputs"
)


def _tree(archive: ZipArchive) -> tuple[Tree, tuple[Finding, ...]]:
    root = root_of(archive)
    kind = archive.open(f"{root}/archive_format")
    if kind.read(0, min(kind.size, 8)) != b"pt2":
        raise FormatError("an archive of another kind than pt2", file=archive.name)
    if f"{root}/.data/version" in archive.entries:
        check_version(archive, f"{root}/.data/version")
    names = [
        name.removeprefix(f"{root}/models/").removesuffix(".json")
        for name in archive.entries
        if name.startswith(f"{root}/models/") and name.endswith(".json")
    ]
    if not names:
        message = "it holds compiled code and no exported program"
        raise UnsupportedVersionError(message, file=archive.name)
    package = _Package(archive, root)
    programs: dict[Key, Tree] = {name: package.program(name) for name in names}
    tree = programs["model"] if names == ["model"] else programs
    return tree, tuple(package.findings)


def _old(archive: ZipArchive) -> tuple[Tree, tuple[Finding, ...]]:
    """Return what an archive of 2.7 and before has."""
    made: dict[Key, Tree] = {}
    findings: list[Finding] = []
    for stem, name in _OLD.items():
        if f"{stem}.pt" not in archive.entries:
            what = "JSON" if f"{stem}.json" in archive.entries else "nothing"
            message = f"{what} where {stem}.pt must be"
            raise MissingFileError(message, file=archive.name)
        made[name] = _nested(archive.open(f"{stem}.pt"), findings)
    return made, tuple(findings)


def _nested(member: ByteReader, findings: list[Finding]) -> Tree:
    """Return what a file of `torch.save` inside the archive has; nothing where the program has none."""
    if member.size == 0:
        return {}
    tree, found = read_zip(member)
    findings += found
    return tree


class _Package:
    """The programs of one archive."""

    def __init__(self, archive: ZipArchive, root: str) -> None:
        self.findings: list[Finding] = []
        self._archive = archive
        self._root = root
        self._big_endian = is_big_endian(archive, root)
        self._makes = {
            part: Tensors(ZipStorages(archive, root, big_endian=self._big_endian, folder=folder))
            for part, (folder, _) in _FOLDERS.items()
        }

    def program(self, name: str) -> Tree:
        """Return the weights and the constants of a program."""
        made: dict[Key, Tree] = {}
        for part, (folder, word) in _FOLDERS.items():
            whole = f"{self._root}/{folder}/{name}.pt"
            if whole in self._archive.entries:
                made[part] = _nested(self._archive.open(whole), self.findings)
            else:
                made[part] = self._configured(part, f"{self._root}/{folder}/{name}_{word}_config.json")
        return made

    def _configured(self, part: str, config: str) -> Tree:
        member = self._archive.open(config)
        folder = config.rpartition("/")[0]
        nodes: dict[str, object] = {}
        ready: dict[Key, Tree] = {}
        for name, payload in _payloads(member):
            path = payload.get("path_name")
            if not isinstance(path, str):
                raise FormatError(f"{name!r} has no file", file=member.name)
            entry = self._archive.entries.get(f"{folder}/{path}")
            if entry is None:
                raise MissingFileError(f"there is no member {path!r}, of {name!r}", file=self._archive.name)
            if payload.get("use_pickle") is True:
                ready[name] = self._object(f"{folder}/{path}", path)
            else:
                nodes[name] = _rebuilt(name, path, entry.size, payload, member.name)
        tree, found = tree_of(nodes, self._makes[part], file=member.name)
        self.findings += found
        assert isinstance(tree, dict)  # noqa: S101 - as it was given
        return {**tree, **ready}

    def _object(self, member: str, path: str) -> Tree:
        """Return a tensor of a special class; of objects that are none, nothing but that they are there."""
        if path.startswith(("custom_obj_", "opaque_obj_")):
            message = "an object of a custom class is not read"
            self.findings.append(Finding("opaque", "", Severity.LOSS, message, file=member))
            return Opaque(f"torch.export.{path}", {})
        return _nested(self._archive.open(member), self.findings)


def _payloads(member: ByteReader) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the entries of a configuration: names, and what it says of them."""
    if member.size > _MOST_JSON:
        raise LimitError(f"a configuration of {member.size} bytes", file=member.name)
    try:
        value = json.loads(member.read(0, member.size))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a configuration that is no JSON: {error}", file=member.name) from None
    config = value.get("config") if isinstance(value, dict) else None
    if not isinstance(config, dict):
        raise FormatError("a configuration without entries", file=member.name)
    for name, payload in config.items():
        if not isinstance(payload, dict):
            raise FormatError(f"{name!r} has no description", file=member.name)
        yield name, payload


def _rebuilt(name: str, path: str, nbytes: int, payload: dict[str, object], file: str) -> Call:
    """Return the call by which a pickle would make the same tensor."""
    meta = payload.get("tensor_meta")
    if not isinstance(meta, dict):
        raise FormatError(f"{name!r} has no shape", file=file)
    code = meta.get("dtype")
    element = _SCALARS.get(code) if type(code) is int else None
    if element is None or meta.get("layout") != _STRIDED:
        message = f"{name!r} is of type {code!r} and layout {meta.get('layout')!r}, which is not read"
        raise UnsupportedVersionError(message, file=file)
    sizes, strides = _ints(meta.get("sizes")), _ints(meta.get("strides"))
    offset = _int(meta.get("storage_offset"))
    storage = PersistentId(("storage", keys.UNTYPED_STORAGE, path, "cpu", nbytes))
    grad = meta.get("requires_grad") is True
    is_parameter = payload.get("is_param") is True
    arguments = (storage, offset, sizes, strides, grad and not is_parameter, None, Global("torch", element))
    call = Call(torch_function("_rebuild_tensor_v3"), arguments)
    return Call(torch_function("_rebuild_parameter"), (call, grad, None)) if is_parameter else call


def _ints(node: object) -> object:
    return tuple(map(_int, node)) if isinstance(node, list) else node


def _int(node: object) -> object:
    """Return an integer out of its place in a union; anything else is refused later."""
    return node.get("as_int") if isinstance(node, dict) else node
