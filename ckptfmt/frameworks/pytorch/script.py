"""Reads the archives of `torch.jit.save`: the attributes of a TorchScript program, and its constants.

Needs no PyTorch. The program itself (``code/``) is neither run nor kept: a checkpoint is what it computes
with. Facts from ``torch/csrc/jit/serialization/{export_module,import,pickler}.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.interpreter import interpret
from ckptfmt.containers.pickle.nodes import Call, Global
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import FormatError, MissingFileError
from ckptfmt.frameworks.pytorch.archives import check_version, is_big_endian, root_of
from ckptfmt.frameworks.pytorch.opening import opened
from ckptfmt.frameworks.pytorch.reader import limits_for, tree_of
from ckptfmt.frameworks.pytorch.rebuild import Tensors
from ckptfmt.frameworks.pytorch.storages import ZipStorages
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import Tag, tagged

if TYPE_CHECKING:
    import os

    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

__all__ = ["CONSTANTS", "read"]

CONSTANTS = "constants.pkl"
"""Key of the program's constants, where it has any: no attribute can be called that."""

_JIT = "torch.jit._pickle"
_LISTS = frozenset(
    Global(_JIT, name) for name in ("build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")
)
_TYPED = Global(_JIT, "restore_type_tag")
_READ = frozenset(("data.pkl", "data", CONSTANTS, "constants", "tensors", "version", "byteorder", ".data"))
_READ |= {".format_version", ".storage_alignment"}


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open an archive of `torch.jit.save`.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        The attributes of the program's module as nested mappings, each tagged with its class
        (``__torch__...``); the constants of its code, if there are any, as a tuple under `CONSTANTS`: all
        that a frozen program has. Tensors are read when they are asked for.

    Raises
    ------
    FormatError
        The file is damaged, hostile or of another kind.
    UnsupportedVersionError
        It is encrypted or of a newer version.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    return opened(path, "torchscript", _tree)


def _tree(reader: ByteReader) -> tuple[Tree, tuple[Finding, ...]]:
    archive = ZipArchive(reader)
    root = root_of(archive)
    for name in ("data.pkl", CONSTANTS, "version"):
        if f"{root}/{name}" not in archive.entries:
            message = f"not a file of torch.jit.save: there is no member {name!r} in {root!r}"
            raise MissingFileError(message, file=archive.name)
    check_version(archive, f"{root}/version")
    module, findings = _pickle(archive, root, "data", reader)
    constants, more = _pickle(archive, root, "constants", reader)
    told = (*archive.findings(), *findings, *more, *_program(archive, root))
    if constants in ((), [], None):
        return module, told
    if not isinstance(module, dict) or CONSTANTS in module:
        return {"data.pkl": module, CONSTANTS: constants}, told
    tag = getattr(module, "tag", Tag("builtins.dict"))
    return tagged({**module, CONSTANTS: constants}, tag), told


def _pickle(
    archive: ZipArchive, root: str, name: str, reader: ByteReader
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of one of the pickles, whose storages lie in the folder of its name."""
    member = archive.open(f"{root}/{name}.pkl")
    data = member.read(0, member.size)
    node, end = interpret(data, file=member.name, limits=limits_for(reader))
    if end != len(data):
        raise FormatError("bytes follow the end of the pickle", file=member.name, offset=end)
    storages = ZipStorages(archive, root, big_endian=is_big_endian(archive, root), folder=name)
    objects = _Objects(Tensors(storages))
    return tree_of(node, objects.makes, file=member.name, adapt=objects.adapt)


class _Objects:
    """The meaning of what only programs have: objects of their classes, and lists with a type."""

    def __init__(self, makes: Tensors) -> None:
        self.makes = makes

    def adapt(self, value: object) -> object:
        """Return what a node stands for, or NotImplemented; for `as_tree`."""
        if isinstance(value, Call) and isinstance(value.function, Global):
            made = self._call(value, value.function)
            if made is not NotImplemented:
                return made
        return self.makes.values.adapt(value)

    def _call(self, call: Call, function: Global) -> object:
        if function.module == "__torch__" or function.module.startswith("__torch__."):
            state = call.state
            if call.args or not isinstance(state, dict) or not all(type(key) is str for key in state):
                return NotImplemented  # an object with a state of its own: opaque
            return tagged(dict(state), Tag(str(function)))
        if call.state is not None or call.items is not None or call.pairs is not None:
            return NotImplemented
        if function in _LISTS and len(call.args) == 1 and isinstance(call.args[0], list):
            return call.args[0]
        if function == _TYPED and len(call.args) == 2 and isinstance(call.args[0], dict | list):
            return call.args[0]
        return NotImplemented


def _program(archive: ZipArchive, root: str) -> tuple[Finding, ...]:
    below = {name.removeprefix(f"{root}/").partition("/")[0] for name in archive.entries}
    others = sorted(below - _READ)
    if not others:
        return ()
    message = f"the program is no part of a checkpoint and is not read: {', '.join(others[:8])}"
    return (Finding("program", "", Severity.INFO, message),)
