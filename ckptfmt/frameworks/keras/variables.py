"""The layout of ``.weights.h5``: groups that follow a model's attributes, each with variables in ``vars``.

A tree is those groups as they are. What the user calls a layer is the attribute ``name`` of its ``vars``: it
is part of the tag of that mapping. What a number in ``optimizer/vars`` belongs to is not said here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.walk import Dataset
from ckptfmt.errors import FormatError
from ckptfmt.frameworks.keras.groups import VARS, mapping_of, natural, with_tag
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ckptfmt.containers.hdf5.reader import Hdf5File
    from ckptfmt.frameworks.keras.config import Layer
    from ckptfmt.frameworks.keras.groups import Untyped
    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["OLD_LAYERS", "layer_names", "merged", "names_finding", "placed", "weights_of"]

OLD_LAYERS = "_layer_checkpoint_dependencies"
"""What ``layers`` was called in Keras 2.13."""
_SHOWN = 8
_NO_LAYERS = (("optimizer",), ("optimizer", "inner_optimizer"))


def placed(known: Iterable[Layer], weights: Mapping[Key, Tree]) -> tuple[Layer, ...]:
    """Return layers with the paths that they have in a file, which may be of Keras 2.13."""
    if OLD_LAYERS not in weights:
        return tuple(known)
    return tuple(
        replace(layer, path=tuple(OLD_LAYERS if part == "layers" else part for part in layer.path))
        for layer in known
    )


def weights_of(
    file: Hdf5File, untyped: Untyped, known: Iterable[Layer], findings: list[Finding]
) -> dict[Key, Tree]:
    """Return the tree of a file.

    Parameters
    ----------
    file : Hdf5File
    untyped : Untyped
        Is told of raw bytes.
    known : iterable of Layer
        What a configuration says of the layers.
    findings : list of Finding
        Is added to.

    Raises
    ------
    LimitError
        Groups are too deep.
    """
    brain = {layer.path for layer in known if layer.dtype == "bfloat16" and not layer.nested}
    root = mapping_of(file, findings)
    pending: list[tuple[Path, dict[Key, Tree | Dataset]]] = [((), root)]
    while pending:
        path, group = pending.pop()
        for key, node in group.items():
            below = (*path, key)
            if isinstance(node, Dataset):
                group[key] = untyped.node(below, node, sure=_is_brain(below, brain))
            elif isinstance(node, dict):
                pending.append((below, node))  # type: ignore[arg-type] # datasets are replaced
    return root  # type: ignore[return-value] # no dataset is left


def _is_brain(path: Path, brain: set[tuple[str, ...]]) -> bool:
    """Whether a variable is of a layer of bfloat16, or of the optimizer of a model with such layers."""
    if path[:1] == ("optimizer",):
        return bool(brain)
    spelled = tuple("layers" if key == OLD_LAYERS else str(key) for key in path)
    return any(spelled[:length] in brain for length in range(len(spelled)))


def layer_names(weights: Mapping[Key, Tree], known: Iterable[Layer] = ()) -> dict[Path, str]:
    """Return what the user calls each layer of a tree, by the path of its group.

    Parameters
    ----------
    weights : mapping
        The tree of ``.weights.h5``.
    known : iterable of Layer, optional
        What the configuration says, for files without names (of Keras 2).
    """
    names: dict[Path, str] = {layer.path: layer.name for layer in placed(known, weights) if layer.name}
    names = {path: name for path, name in names.items() if _group_at(weights, path) is not None}
    names.update(_tagged_names(weights))
    return names


def _group_at(weights: Mapping[Key, Tree], path: Path) -> Tree:
    node: Tree = dict(weights)
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _tagged_names(weights: Mapping[Key, Tree]) -> Iterator[tuple[Path, str]]:
    pending: list[tuple[Path, Mapping[Key, Tree]]] = [((), weights)]
    while pending:
        path, group = pending.pop()
        tag = tag_of(group)
        name = None if tag is None else tag.attributes.get("name")
        if path[-1:] == (VARS,) and isinstance(name, str):
            yield path[:-1], name
        pending += [((*path, key), node) for key, node in group.items() if isinstance(node, dict)]


def names_finding(names: Mapping[Path, str], file: str) -> tuple[Finding, ...]:
    """Return a finding that says what the user calls the layers that a file calls otherwise."""
    told = {
        path: name for path, name in names.items() if path and path not in _NO_LAYERS and path[-1] != name
    }
    if not told:
        return ()
    ordered = sorted(told, key=lambda path: (len(path), [natural(key) for key in path]))
    shown = ", ".join(f"{display(path)} is {told[path]!r}" for path in ordered[:_SHOWN])
    more = f", and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return (Finding("layer-names", "", Severity.INFO, f"names of layers: {shown}{more}", file=file),)


def merged(parts: Iterable[tuple[str, dict[Key, Tree]]]) -> dict[Key, Tree]:
    """Return one tree of those of several files, of which each holds some variables.

    Raises
    ------
    FormatError
        Two files hold the same variable; names the second.
    """
    whole: dict[Key, Tree] = {}
    for file, part in parts:
        pending: list[tuple[Path, dict[Key, Tree], dict[Key, Tree]]] = [((), whole, part)]
        while pending:
            path, into, group = pending.pop()
            for key, node in group.items():
                there = into.get(key)
                if key not in into:
                    into[key] = _copied(node)
                elif isinstance(there, dict) and isinstance(node, dict):
                    pending.append(((*path, key), there, node))
                else:
                    message = "another file of the set holds it, too"
                    raise FormatError(message, file=file, tensor=display((*path, key)))
    return _sorted(whole)


def _copied(node: Tree) -> Tree:
    if not isinstance(node, dict):
        return node
    tag = tag_of(node)
    copy = {key: _copied(below) for key, below in node.items()}  # as deep as a reader lets it be
    return with_tag(copy, tag.attributes) if tag is not None else copy


def _sorted(group: dict[Key, Tree]) -> dict[Key, Tree]:
    tag = tag_of(group)
    made: dict[Key, Tree] = {}
    for key in sorted(group, key=natural):
        node = group[key]
        made[key] = _sorted(node) if isinstance(node, dict) else node
    return with_tag(made, tag.attributes) if tag is not None else made
