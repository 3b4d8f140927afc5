"""A tree as the pickle of a `torch.save` file.

Every call that is written is one that ``torch.load(weights_only=True)`` allows, so whatever has no such call
is written as plain containers, and told of. Mappings and lists that are shared stay so, cycles too.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ckptfmt.containers.pickle.emitter import BATCH, Emitter
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.frameworks.pytorch.emit_tensors import TensorEmitter
from ckptfmt.tree.canonical import dumps
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, tag_of
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ckptfmt.frameworks.pytorch.carried import Carried
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["TreeEmitter"]

_SHOWN = 5
_ATOMS = (str, int, float, complex, bytes, type(None))
_QSCHEMES = frozenset(
    f"torch.per_{of}_{how}" for of in ("tensor", "channel") for how in ("affine", "symmetric")
)


class TreeEmitter:
    """Writes one tree.

    Parameters
    ----------
    legacy : bool
        Whether for a stream of before 1.6, not for a zip archive.

    Attributes
    ----------
    findings : list of Finding
        What is not in the file as it is in the tree.
    """

    def __init__(self, *, legacy: bool = False) -> None:
        self.findings: list[Finding] = []
        self._out = Emitter()
        self._tensors = TensorEmitter(self._out, self._plain_dict, self._tell, legacy=legacy)
        self._made: list[Tree] = []  # kept, so that no later node has the id of one of them
        self._open: list[Hashable | None] = []  # for each key of the present path, what it leads out of

    @property
    def storages(self) -> list[Carried]:
        """The storages by number."""
        return self._tensors.storages

    def emit(self, tree: Tree) -> bytes:
        """Return the pickle of a tree."""
        self._node(tree, ())
        return self._out.finish()

    def _tell(self, kind: str, path: Path, message: str, severity: Severity = Severity.LOSS) -> None:
        self.findings.append(Finding(kind, display(path), severity, message))

    def _node(self, node: Tree, path: Path) -> None:
        if isinstance(node, Tensor):
            self._tensors.tensor(node, path)
        elif isinstance(node, dict):
            self._mapping(node, path)
        elif isinstance(node, list | tuple):
            self._sequence(node, path)
        elif isinstance(node, set | frozenset):
            self._set(node, path)
        elif isinstance(node, Composite):
            self._composite(node, path)
        elif isinstance(node, Opaque):
            self._opaque(node, path)
        elif isinstance(node, Strings):
            self._strings(node, path)
        else:
            self._scalar(node, path)

    def _scalar(self, node: complex | str | bytes | None, path: Path) -> None:
        out = self._out
        if node is None:
            out.none()
        elif isinstance(node, bool):
            out.boolean(node)
        elif isinstance(node, int):
            try:
                out.integer(node)
            except OverflowError:
                out.text(hex(node))
                self._tell("int-as-text", path, "an integer of more than 255 bytes is written as text")
        elif isinstance(node, float):
            out.real(node)
        elif isinstance(node, str):
            out.text(node)
        elif isinstance(node, complex):
            out.name("__builtin__", "complex")
            out.real(node.real)
            out.real(node.imag)
            out.call(2)
        else:
            self._bytes(node)

    def _bytes(self, node: bytes) -> None:
        tag = tag_of(node)
        if tag is None or tag.name != "builtins.bytearray":
            self._out.data(node)
            return
        self._out.name("__builtin__", "bytearray")
        self._out.data(node)
        self._out.call(1)

    # --- containers -----------------------------------------------------------------------------

    def _mapping(self, node: dict[Key, Tree], path: Path) -> None:
        out, key = self._out, ("node", id(node))
        if out.recall(key):
            return
        tag = tag_of(node)
        name = None if tag is None else tag.name
        if name in ("collections.OrderedDict", "collections.Counter"):
            out.name(*name.rsplit(".", 1))
            out.call(0)
        else:
            self._tag_dropped(tag, path)
            out.op(b"}")
        out.remember(key)
        self._open.append(key)
        self._entries(node, path)
        self._open.pop()
        if name == "collections.OrderedDict" and tag is not None and tag.attributes:
            self._plain_dict(tag.attributes, path)
            out.op(b"b")

    def _entries(self, node: dict[Key, Tree], path: Path) -> None:
        pairs = list(node.items())
        for start in range(0, len(pairs), BATCH):
            self._out.op(b"(")
            for key, child in pairs[start : start + BATCH]:
                self._key(key)
                self._node(child, (*path, key))
            self._out.op(b"u")

    def _plain_dict(self, node: dict[Key, Tree], path: Path) -> None:
        """Write a dict that nothing refers to."""
        self._out.op(b"}")
        self._entries(node, path)

    def _key(self, key: Key) -> None:
        if isinstance(key, tuple):
            self._out.begin_tuple(len(key))
            for part in key:
                self._key(part)
            self._out.end_tuple(len(key))
        else:
            self._scalar(key, ())

    def _sequence(self, node: list[Tree] | tuple[Tree, ...], path: Path) -> None:
        if isinstance(node, tuple):
            self._tuple(node, path)
            return
        out, key = self._out, ("node", id(node))
        if out.recall(key):
            return
        self._tag_dropped(tag_of(node), path)
        out.op(b"]")
        out.remember(key)
        self._open.append(key)
        self._items(node, path)
        self._open.pop()

    def _tuple(self, node: tuple[Tree, ...], path: Path) -> None:
        out, tag = self._out, tag_of(node)
        is_size = tag is not None and tag.name == "torch.Size" and all(type(part) is int for part in node)
        if is_size:
            out.name("torch", "Size")
        else:
            self._tag_dropped(tag, path)
        self._open.append(None)
        out.begin_tuple(len(node))
        for index, child in enumerate(node):
            self._node(child, (*path, index))
        out.end_tuple(len(node))
        self._open.pop()
        if is_size:
            out.call(1)

    def _items(self, items: Sequence[Tree], path: Path) -> None:
        for start in range(0, len(items), BATCH):
            self._out.op(b"(")
            for index in range(start, min(start + BATCH, len(items))):
                self._node(items[index], (*path, index))
            self._out.op(b"e")

    def _set(self, node: set[Tree] | frozenset[Tree], path: Path) -> None:
        elements = _in_order(node)
        plain = all(_is_plain(element) for element in elements)
        if not plain:
            self._tell("set-as-list", path, "a set of what PyTorch's reader cannot hash is written as a list")
        elif isinstance(node, frozenset):
            self._tell("frozenset-as-set", path, "a frozenset is written as a set")
        if plain:
            self._out.name("__builtin__", "set")
        self._open.append(None)
        self._out.op(b"]")
        self._items([_hashable(element) for element in elements] if plain else elements, path)
        self._open.pop()
        if plain:
            self._out.call(1)

    def _strings(self, node: Strings, path: Path) -> None:
        self._tell("strings-as-list", path, f"an array of strings of shape {node.shape} is written as lists")
        nested = _nested(node.values, node.shape)
        self._made.append(nested)
        self._open.append(None)
        self._node(nested, path)
        self._open.pop()

    def _tag_dropped(self, tag: Tag | None, path: Path) -> None:
        if tag is not None:
            kept = ", ".join(str(name)[:40] for name in islice(tag.attributes, _SHOWN))
            with_them = f", without its {kept}" if kept else ""
            message = f"a {tag.name} is written as the plain kind that it is of{with_them}"
            self._tell("class-dropped", path, message)

    # --- what is more than a value --------------------------------------------------------------

    def _composite(self, node: Composite, path: Path) -> None:
        if self._tensors.composite(node, path):
            return
        self._tell("composite-as-dict", path, f"a {node.name} is written as a dict of its parts")
        form: dict[Key, Tree] = {"class": node.name, "attributes": node.attributes, "parts": node.parts}
        self._open.append(None)
        self._plain_dict(form, path)
        self._open.pop()

    def _opaque(self, node: Opaque, path: Path) -> None:
        if node.name == CYCLE and self._cycle(node.parts.get("up")):
            return
        if self._constant(node):
            return
        self._tell("opaque-as-dict", path, f"a {node.name} is written as a dict of its arguments and state")
        key = ("node", id(node))
        if self._out.recall(key):
            return
        self._out.op(b"}")
        self._out.remember(key)
        self._open.append(key)
        self._entries({"class": node.name, **node.parts}, path)
        self._open.pop()

    def _cycle(self, up: Tree) -> bool:
        """Refer to an enclosing container; return whether it can be referred to."""
        if not isinstance(up, int) or not 1 <= up <= len(self._open):
            return False
        key = self._open[-up]
        return key is not None and self._out.recall(key)

    def _constant(self, node: Opaque) -> bool:
        """Write a type, device, layout or scheme of quantisation; return whether the node is one."""
        module, _, name = node.name.rpartition(".")
        if not node.parts and (node.name in _QSCHEMES or (module == "torch" and name in keys.BY_NAME)):
            self._out.name(module, name)
            return True
        args = node.parts.get("args")
        if node.name not in ("torch.device", "torch.serialization._get_layout") or node.parts.get("state"):
            return False
        if not isinstance(args, tuple) or not 1 <= len(args) <= 2:
            return False
        if not all(type(part) in (str, int) for part in args):
            return False
        self._out.name(module, name)
        for part in args:
            self._scalar(part, ())  # type: ignore[arg-type] # str or int
        self._out.call(len(args))
        return True


def _no_row(_: Tensor) -> int:
    return 0  # encode_tree refuses tensors in sets before it would ask


def _in_order(elements: set[Tree] | frozenset[Tree]) -> list[Tree]:
    """Return the elements of a set in an order that depends on nothing but them."""
    return sorted(elements, key=lambda element: dumps(encode_tree(element, _no_row)))


def _hashable(element: Tree) -> Tree:
    """Return an element of a set with tuples for the sets inside, which PyTorch's reader cannot hash."""
    if isinstance(element, frozenset):
        element = tuple(_in_order(element))
    return tuple(map(_hashable, element)) if isinstance(element, tuple) else element


def _is_plain(element: Tree) -> bool:
    if isinstance(element, tuple | frozenset):
        return all(map(_is_plain, element))
    return isinstance(element, _ATOMS)


def _nested(values: Sequence[str] | Sequence[bytes], shape: tuple[int, ...]) -> Tree:
    """Return values in C order as lists within lists; a single value for the empty shape."""
    if not shape:
        return values[0]
    step = len(values) // shape[0] if shape[0] else 0
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
