"""Reads the zip files of `torch.save` (PyTorch 1.6 and later): ``.pt``, ``.pth``, ``.bin``.

Needs no PyTorch, executes nothing, and keeps tensors in the file until they are asked for. Where PyTorch
does not look (checksums, lengths, bounds, two members of one name), this does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.interpreter import Limits, interpret
from ckptfmt.containers.zip.archive import ZipArchive
from ckptfmt.errors import FormatError, LimitError, MissingFileError, TreeError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch.archives import check_version, is_big_endian, root_of
from ckptfmt.frameworks.pytorch.opening import opened
from ckptfmt.frameworks.pytorch.ranks.shards import local_shards
from ckptfmt.frameworks.pytorch.rebuild import Tensors
from ckptfmt.frameworks.pytorch.storages import ZipStorages
from ckptfmt.frameworks.pytorch.wrappers import wrapped_names
from ckptfmt.tree.capture import as_tree

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ckptfmt.frameworks.pytorch.storages import Storages
    from ckptfmt.storage.reader import ByteReader
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["limits_for", "read", "read_pickle", "read_zip", "tree_of"]

_FREE_OBJECTS = 100_000  # that a pickle may make, however small its file is
_BYTES_FOR_AN_OBJECT = 8  # of the file, for each object beyond; PyTorch's own writer needs some 40


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a zip file of `torch.save`.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    Checkpoint
        Tensors are read from the file when they are asked for, their records verified first; close it
        when done.

    Raises
    ------
    FormatError
        The file is damaged, hostile or of another kind; names the file, the member and the tensor.
    UnsupportedVersionError
        It is a TorchScript or exported program, encrypted, or of a newer version.
    NotFoundError, StorageError
        It is not there, or cannot be read.
    """
    return opened(path, "torch", read_zip)


def read_zip(reader: ByteReader) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree of a zip file of `torch.save`, and what was found; errors as `read`."""
    archive = ZipArchive(reader)
    root = root_of(archive)
    _check_kind(archive, root)
    storages = ZipStorages(archive, root, big_endian=is_big_endian(archive, root))
    member = archive.open(f"{root}/data.pkl")
    data = member.read(0, member.size)
    tree, findings, end = read_pickle(data, storages, file=member.name, limits=limits_for(reader))
    if end != len(data):
        raise FormatError("bytes follow the end of the pickle", file=member.name, offset=end)
    return tree, (*archive.findings(), *findings, *local_shards(tree), *wrapped_names(tree))


def read_pickle(
    data: bytes, storages: Storages, *, file: str, start: int = 0, limits: Limits | None = None
) -> tuple[Tree, tuple[Finding, ...], int]:
    """Return the tree of a pickle whose tensors lie in `storages`, what was found, and where it ends.

    Parameters
    ----------
    data : bytes
    storages : Storages
    file : str
        What to call it in errors.
    start : int
        Where in `data` the pickle begins.
    limits : Limits, optional

    Raises
    ------
    FormatError
        As `read`.
    """
    node, end = interpret(data, start=start, file=file, limits=limits)
    return (*tree_of(node, Tensors(storages), file=file), end)


def limits_for(reader: ByteReader) -> Limits:
    """Return how much the pickles of a file may ask for, by its size."""
    return Limits(objects=_FREE_OBJECTS + reader.size // _BYTES_FOR_AN_OBJECT)


def tree_of(
    node: object, makes: Tensors, *, file: str, adapt: Callable[[object], object] | None = None
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree that a pickle describes, and what was found.

    Parameters
    ----------
    node : object
        What the interpreter made of the pickle.
    makes : Tensors
        What makes its tensors; of this file, for it remembers them.
    file : str
        What to call it in errors.
    adapt : callable, optional
        What values stand for, where that is more than `makes` knows.

    Raises
    ------
    FormatError
        As `read`.
    """
    try:
        tree, findings = as_tree(node, adapt=adapt or makes.values.adapt)
        return tree, (*findings, *makes.finish(tree))
    except FormatError as error:
        raise error.located(file=file) from None
    except TreeError as error:
        raise FormatError(str(error), file=file) from None
    except RecursionError:
        raise LimitError("objects are nested too deeply", file=file) from None


def _check_kind(archive: ZipArchive, root: str) -> None:
    members = archive.entries
    for sign, kind in (
        ("constants.pkl", "a TorchScript program"),
        ("archive_format", "a program of torch.export"),
        ("models/model.json", "a program of torch.export"),
    ):
        if f"{root}/{sign}" in members:
            message = f"the file is {kind}, not one of torch.save"
            raise UnsupportedVersionError(message, file=archive.name)
    for name in ("data.pkl", "version"):
        if f"{root}/{name}" not in members:
            message = f"not a file of torch.save: there is no member {name!r} in {root!r}"
            raise MissingFileError(message, file=archive.name)
    check_version(archive, f"{root}/version")
