"""The `.metadata` of a DCP directory: a pickle of a few known classes, read without executing anything.

Names, sizes and chunks of tensors, where each item lies, and the paths that its planner flattened. Classes
are those of ``torch/distributed/checkpoint/{metadata,filesystem}.py`` of 2.13 and, for properties of tensors,
``torch/distributed/_shard/sharded_tensor/metadata.py``, which PyTorch before 2.3 used. Any other class is
refused by name. What files hold is not looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ckptfmt.containers.pickle.arrays import text_of
from ckptfmt.containers.pickle.interpreter import Limits, interpret
from ckptfmt.containers.pickle.nodes import Call, Global, LegacyText, shown
from ckptfmt.containers.shapes import checked_count
from ckptfmt.errors import FormatError, LimitError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.tree.box import Box
from ckptfmt.tree.walk import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptfmt.frameworks.pytorch.keys import ElementType
    from ckptfmt.storage.reader import ByteReader

__all__ = ["MODULE", "Metadata", "Place", "TensorRow", "decode_metadata"]

MODULE = "torch.distributed.checkpoint.metadata"
"""The module of the classes, but for `_StorageInfo` and what older releases had elsewhere."""
STORAGE_MODULE = "torch.distributed.checkpoint.filesystem"

MAX_METADATA = 1 << 30
"""Greatest length in bytes: some three million chunks."""

_OLD_PROPERTIES = "torch.distributed._shard.sharded_tensor.metadata"
_VERSIONS = ("1.0.0",)
_FREE_OBJECTS = 100_000
_BYTES_FOR_AN_OBJECT = 4
_MAX_INDEX = 1 << 24
_PATHS = frozenset({"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"})


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor, whole.

    Attributes
    ----------
    element : ElementType
    layout : str
        Such as ``"strided"``.
    requires_grad : bool
    shape : tuple of int
        As PyTorch counts, which counts pairs of packed elements.
    chunks : tuple of Box
        The parts that it is stored in.
    """

    element: ElementType
    layout: str
    requires_grad: bool
    shape: tuple[int, ...]
    chunks: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item lies.

    Attributes
    ----------
    file : str
        As the metadata names it; not checked here.
    offset, length : int
        In bytes; neither is negative.
    """

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a `.metadata` tells.

    Attributes
    ----------
    rows : dict of str to TensorRow or None
        By name, in their order; None for what is no tensor.
    places : dict
        Where each item lies, by name and, for chunks of tensors, by offset; by None for other items.
    paths : dict of str to tuple
        The path of str and int that each name was made from; names that are not there stand for themselves.
    """

    rows: dict[str, TensorRow | None]
    places: dict[tuple[str, tuple[int, ...] | None], Place]
    paths: dict[str, tuple[str | int, ...]]


def decode_metadata(reader: ByteReader) -> Metadata:
    """Read a `.metadata`.

    Parameters
    ----------
    reader : ByteReader
        All of it.

    Raises
    ------
    FormatError, TruncatedError, LimitError
        It is malformed or hostile; the error names the class or the tensor.
    UnsupportedVersionError
        It is of a version, or has parts of a kind, that this release does not know.
    """
    file = reader.name
    if reader.size > MAX_METADATA:
        raise LimitError(f"metadata of {reader.size} bytes; at most {MAX_METADATA}", file=file)
    data = reader.read(0, reader.size)
    limits = Limits(objects=_FREE_OBJECTS + len(data) // _BYTES_FOR_AN_OBJECT)
    node, end = interpret(data, file=file, limits=limits)
    try:
        if end != len(data):
            raise FormatError("bytes follow the end of the pickle", offset=end)
        return _metadata(node)
    except FormatError as error:
        raise error.located(file=file) from None


def _metadata(node: object) -> Metadata:
    state = _state(node, "Metadata", MODULE)
    version = state.pop("version", None)
    if version is not None and _text(version) not in _VERSIONS:
        raise UnsupportedVersionError(f"metadata of version {shown(version)}; 1.0.0 is read")
    rows = _mapping(state.pop("state_dict_metadata", None), "state_dict_metadata")
    places = _mapping(state.pop("storage_data", None), "storage_data")
    planner = state.pop("planner_data", None)
    paths = {} if planner is None else _mapping(planner, "planner_data")
    for value in state.values():  # storage_meta, and what releases to come may add
        _check_harmless(value, 0)
    return Metadata(
        {name: _row(name, value) for name, value in _named(rows)},
        {_key(key): _place(value) for key, value in places.items()},
        {name: _path(value, name) for name, value in _named(paths)},
    )


# --- objects of known classes -----------------------------------------------------------------------


def _object(node: object, name: str, *modules: str) -> Call:
    """Return a node that must be an object of a class, made without arguments."""
    if isinstance(node, Call) and node.function in [Global(module, name) for module in modules]:
        if node.args or node.items is not None or node.pairs is not None:
            raise FormatError(f"a {name} is made with what it cannot be")
        return node
    raise FormatError(f"{_shown(node)} where a {name} must be")


def _state(node: object, name: str, *modules: str) -> dict[str, object]:
    """Return the attributes of an object of a class."""
    state = _object(node, name, *modules).state
    if state is None:
        return {}
    return dict(_named(_mapping(state, f"the state of a {name}")))


def _shown(node: object) -> str:
    """Name what a node is, for errors."""
    if isinstance(node, Call):
        return f"an object of {node.function}"[:200] if isinstance(node.function, Global) else "a call"
    return str(node)[:200] if isinstance(node, Global) else f"a {type(node).__name__}"


def _mapping(node: object, what: str) -> Mapping[object, object]:
    if not isinstance(node, dict):
        raise FormatError(f"{what} is {_shown(node)}, not a dict")
    return node


def _named(mapping: Mapping[object, object]) -> list[tuple[str, object]]:
    """Return the items of a mapping whose keys must be text."""
    pairs = [(key if type(key) is str else _text(key), value) for key, value in mapping.items()]
    if len(dict(pairs)) != len(pairs):
        raise FormatError("a name is there twice")
    return pairs


def _text(node: object) -> str:
    found = text_of(node)
    if found is None:
        raise FormatError(f"{_shown(node)} where a text must be")
    return found


def _refuse(message: str, name: str) -> NoReturn:
    raise FormatError(message, tensor=name[:200])


def _shape(node: object, name: str) -> tuple[int, ...]:
    """Return a torch.Size, a tuple or a list of non-negative integers."""
    if isinstance(node, Call) and node.function == Global("torch", "Size") and len(node.args) == 1:
        node = node.args[0]
    if not isinstance(node, tuple | list) or not all(type(part) is int and part >= 0 for part in node):
        _refuse("a size or an offset that is no tuple of non-negative integers", name)
    shape = tuple(node)
    checked_count(shape, file="", tensor=name)
    return shape


def _row(name: str, node: object) -> TensorRow | None:
    if isinstance(node, Call) and node.function == Global(MODULE, "BytesStorageMetadata"):
        if _state(node, "BytesStorageMetadata", MODULE):
            _refuse("BytesStorageMetadata with attributes", name)
        return None
    state = _state(node, "TensorStorageMetadata", MODULE)
    element, layout, grad = _properties(state.get("properties"), name)
    chunks = state.get("chunks")
    if not isinstance(chunks, list):
        _refuse("its chunks are no list", name)
    shape = _shape(state.get("size"), name)
    boxes = tuple(_chunk(chunk, name) for chunk in chunks)
    outside = next((box for box in boxes if not box.fits(shape)), None)
    if outside is not None:
        message = f"a chunk of {list(outside.shape)} at {list(outside.offset)} is not inside {list(shape)}"
        _refuse(message, name)
    return TensorRow(element, layout, grad, shape, boxes)


def _chunk(node: object, name: str) -> Box:
    state = _state(node, "ChunkStorageMetadata", MODULE)
    return Box(_shape(state.get("offsets"), name), _shape(state.get("sizes"), name))


def _properties(node: object, name: str) -> tuple[ElementType, str, bool]:
    state = _object(node, "TensorProperties", MODULE, _OLD_PROPERTIES).state
    if not isinstance(state, tuple) or len(state) != 5:
        _refuse("its properties are not five", name)
    kind, layout, grad, order, pinned = state
    if not isinstance(kind, Global) or kind.module != "torch" or kind.name not in keys.BY_NAME:
        _refuse(f"{_shown(kind)} is no element type", name)
    if not isinstance(grad, bool) or not isinstance(pinned, bool):
        _refuse("requires_grad or pin_memory is no bool", name)
    _check_order(order, name)
    return keys.BY_NAME[kind.name], _layout(layout, name), grad


def _layout(node: object, name: str) -> str:
    known = isinstance(node, Call) and node.function == Global("torch.serialization", "_get_layout")
    if not isinstance(node, Call) or not known or len(node.args) != 1:
        _refuse(f"{_shown(node)} is no layout", name)
    return _text(node.args[0]).removeprefix("torch.")


def _check_order(node: object, name: str) -> None:
    """Check that a memory format is one, called with its number or, as Python 3.11 may, got by its name."""
    known = [Global(MODULE, "_MEM_FORMAT_ENCODING"), Global(_OLD_PROPERTIES, "MEM_FORMAT_ENCODING")]
    if isinstance(node, Call):
        by_number = node.function in known and len(node.args) == 1 and type(node.args[0]) is int
        by_name = node.function == Global("builtins", "getattr") and node.args[:1] in [(k,) for k in known]
        if by_number or by_name:
            return
    _refuse(f"{_shown(node)} is no memory format", name)


# --- where items lie, and where they belong ---------------------------------------------------------


def _key(node: object) -> tuple[str, tuple[int, ...] | None]:
    state = _state(node, "MetadataIndex", MODULE)
    name = _text(state.get("fqn"))
    offset = state.get("offset")
    return name, None if offset is None else _shape(offset, name)


def _place(node: object) -> Place:
    state = _state(node, "_StorageInfo", STORAGE_MODULE)
    file, offset, length = (state.get(key) for key in ("relative_path", "offset", "length"))
    name = _text(file)
    if state.get("transform_descriptors"):
        raise UnsupportedVersionError(f"an item of {name[:80]} that an extension has transformed")
    if not all(type(value) is int and value >= 0 for value in (offset, length)):
        raise FormatError(f"an item of {name[:80]} without an offset and a length")
    return Place(name, offset, length)  # type: ignore[arg-type] # integers, see above


def _path(node: object, name: str) -> tuple[str | int, ...]:
    if not isinstance(node, tuple) or not 0 < len(node) <= MAX_DEPTH:
        _refuse(f"its path is no tuple of at most {MAX_DEPTH} keys", name)
    path = tuple(key if type(key) is int else _text(key) for key in node)
    if not all(isinstance(key, str) or 0 <= key < _MAX_INDEX for key in path) or isinstance(path[0], int):
        _refuse("its path has an index that no list has", name)
    return path


def _check_harmless(node: object, depth: int) -> None:
    """Check that what is not looked at has no classes but those that such metadata has there."""
    if depth > 8:
        raise LimitError("attributes that are nested too deeply")
    if node is None or isinstance(node, bool | int | float | str | bytes | LegacyText):
        return
    if isinstance(node, dict):
        parts = [*node.keys(), *node.values()]
    elif isinstance(node, list | tuple):
        parts = list(node)
    elif isinstance(node, Call) and node.function == Global(MODULE, "StorageMeta") and not node.args:
        parts = [node.state]
    elif isinstance(node, Call) and _is_path(node.function):
        parts = [*node.args, node.state]
    else:
        raise FormatError(f"{_shown(node)}, which no such metadata has")
    for part in parts:
        _check_harmless(part, depth + 1)


def _is_path(function: object) -> bool:
    return isinstance(function, Global) and function.module == "pathlib" and function.name in _PATHS
