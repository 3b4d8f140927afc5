"""Readers, writers and live objects behind dotted names: imported when they are first called.

A third party that is not installed is told as the extra that brings it. Nothing here looks at bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from ckptfmt.errors import ConversionError, MissingExtraError
from ckptfmt.registry.table import NATIVE, Format, format_named

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.findings import Finding
    from ckptfmt.tree.nodes import Tree

__all__ = ["adapt", "optimizer_slots", "read_foreign", "write_foreign"]

Reader: TypeAlias = "Callable[[str | os.PathLike[str]], Checkpoint]"
Writer: TypeAlias = "Callable[..., tuple[Finding, ...]]"
Slots: TypeAlias = "Callable[..., dict[str, dict[str, Tree]]]"

_TENSORFLOW = ("ckptfmt.frameworks.tensorflow.live:adapt", "tensorflow")
_LIVE = {
    "chainer": ("ckptfmt.frameworks.chainer.live:adapt", "chainer"),
    "chainermn": ("ckptfmt.frameworks.chainer.live:adapt", "chainer"),
    "keras": _TENSORFLOW,
    "tensorflow": _TENSORFLOW,
    "tf_keras": _TENSORFLOW,
    "torch": ("ckptfmt.frameworks.pytorch.live:adapt", "torch"),
}
"""By the package that an object's class comes from: who understands it, and the extra that this needs."""


def adapt(value: object) -> object:
    """Return what stands for a framework's own object in a tree, or NotImplemented.

    The class tells where the object comes from; no framework is imported unless one of its objects is
    here, and then it is imported already.

    Raises
    ------
    MissingExtraError
        The object says that it is of a framework that cannot be imported.
    """
    for kind in type(value).__mro__:
        known = _LIVE.get(kind.__module__.partition(".")[0])
        if known is not None:
            dotted, extra = known
            function = cast("Callable[[object], object]", _resolved(dotted, extra, "keeping its objects"))
            return function(value)
    return NotImplemented


def read_foreign(path: str | os.PathLike[str], name: str) -> Checkpoint:
    """Read a file of a foreign format.

    Parameters
    ----------
    path : str or os.PathLike
    name : str
        The format's name.

    Raises
    ------
    UnknownFormatError
        No foreign format is called that.
    MissingExtraError
        Its reader needs an extra.
    FormatError, StorageError
        As its reader says.
    """
    found = format_named(name)
    reader = cast("Reader", _resolved(_required(found, found.reader), found.extra, f"reading {name}"))
    return reader(path)


def optimizer_slots(
    tree: Tree,
    name: str,
    *,
    variables: Sequence[str] | None = None,
    optimizer: str | None = None,
) -> dict[str, dict[str, Tree]]:
    """Return the values of an optimizer by displayed path of their parameter, and by their own name.

    Parameters
    ----------
    tree : Tree
        As the reader of the format returns it, or the part of it that has the optimizer.
    name : str
        The format's name.
    variables : sequence of str, optional
        The parameters in the order in which the optimizer has them, where the file does not tell it.
    optimizer : str, optional
        Its class, where the file does not tell it and it is needed.

    Raises
    ------
    ConversionError
        It is not certain what belongs to what, or the files of this format name the values themselves.
    """
    found = format_named(name)
    if found.slots is None:
        raise ConversionError(f"what a file of {name} keeps of an optimizer has names already: see `info`")
    join = cast("Slots", _resolved(found.slots, found.extra, f"reading {name}"))
    return join(tree, variables=variables, optimizer=optimizer)


def write_foreign(
    tree: Tree,
    target: str | os.PathLike[str],
    name: str,
    *,
    codec: str | None = None,
    shard_size: int | None = None,
    overwrite: bool = False,
) -> tuple[Finding, ...]:
    """Write a tree in a foreign format.

    Parameters
    ----------
    tree : Tree
    target : str or os.PathLike
    name : str
        The format's name.
    codec : str, optional
        One of the format's; its first by default.
    shard_size : int, optional
        Bytes of data at which a file is closed, for formats that can be spread.
    overwrite : bool

    Returns
    -------
    tuple of Finding
        What the format could not carry.

    Raises
    ------
    UnknownFormatError, ConversionError
        No foreign format is called that, or it has no such option.
    MissingExtraError
        Its writer needs an extra.
    CkptError
        As its writer says.
    """
    found = format_named(name)
    check_options(found, codec=codec, shard_size=shard_size)
    writer = cast("Writer", _resolved(_required(found, found.writer), found.extra, f"writing {name}"))
    options: dict[str, bool | int | None] = {"overwrite": overwrite}
    if "deflate" in found.codecs:
        options["compressed"] = codec == "deflate"
    if found.shards:
        options["shard_size"] = shard_size
    return writer(tree, target, **options)


def check_options(found: Format, *, codec: str | None, shard_size: int | None) -> None:
    """Raise ConversionError unless a format is written, with the codec and the size of shards if given."""
    if not found.writable:
        _required(found, found.writer)
    if codec is not None and codec not in found.codecs:
        known = " or ".join(found.codecs)
        raise ConversionError(f"{found.name} cannot store data as {codec!r}, only as {known}")
    if shard_size is not None and not found.shards:
        raise ConversionError(f"{found.name} is one file; it has no size of shards")
    if shard_size is not None and shard_size < 1:
        raise ConversionError(f"a shard cannot have {shard_size} bytes")


def _required(found: Format, dotted: str | None) -> str:
    if dotted is None and found.name == NATIVE:
        raise ConversionError(f"{found.name} is our own format: load and save do it")
    if dotted is None:
        raise ConversionError(f"{found.name} is read, never written; write {found.instead or NATIVE}")
    return dotted


def _resolved(dotted: str, extra: str | None, why: str) -> object:
    module, _, function = dotted.partition(":")
    try:
        return getattr(import_module(module), function)
    except ImportError as error:
        if extra is None or (error.name or "").partition(".")[0] == "ckptfmt":
            raise
        raise MissingExtraError(extra, why) from error
