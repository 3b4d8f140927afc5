"""What wrappers of modules leave in names: DataParallel, compile, FSDP, activation checkpoints.

A reader keeps names as they are, and tells of such parts; `unwrapped` says what the names are without them.
Parts that no layer would be called go wherever they stand. A leading ``module`` goes only where every name
has it, for a layer may be called that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.errors import ConversionError
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.paths import display
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Key, Path

__all__ = ["WRAPPERS", "unwrapped", "wrapped_names"]

WRAPPERS = frozenset(
    ("_checkpoint_wrapped_module", "_dp_wrapped_module", "_fpw_module", "_fsdp_wrapped_module", "_orig_mod")
)
"""Parts of names that ``torch.compile``, FSDP and the checkpoint wrapper add, in any order and depth."""
_DATA_PARALLEL = "module"


def unwrapped(names: Iterable[str]) -> dict[str, str]:
    """Return what each of the names of one state dict is without its wrappers.

    Parameters
    ----------
    names : iterable of str
        All names of the state dict, with ``.`` between their parts.

    Raises
    ------
    ConversionError
        Two names become one.
    """
    parts = {name: [part for part in name.split(".") if part not in WRAPPERS] for name in names}
    if parts and all(len(each) > 1 and each[0] == _DATA_PARALLEL for each in parts.values()):
        parts = {name: each[1:] for name, each in parts.items()}
    made = {name: ".".join(each) for name, each in parts.items()}
    known: dict[str, str] = {}
    for name, short in made.items():
        if known.setdefault(short, name) != name:
            raise ConversionError(f"{known[short]!r} and {name!r} are both {short!r} without wrappers")
    return made


def wrapped_names(tree: Tree) -> tuple[Finding, ...]:
    """Return a finding for the first state dict of a tree whose names have parts of wrappers."""
    for path, mapping in _mappings(tree):
        names = [key for key, value in mapping.items() if type(key) is str and isinstance(value, Tensor)]
        found = sorted(
            {part for name in names if "_" in name for part in name.split(".") if part in WRAPPERS}
        )
        if len(names) > 1 and all(name.startswith("module.") for name in names):
            found.append(_DATA_PARALLEL)
        if found:
            message = f"names have parts that wrappers of modules added ({', '.join(found)}); they are kept"
            return (Finding("wrapped-names", display(path), Severity.INFO, message),)
    return ()


def _mappings(tree: Tree) -> Iterator[tuple[Path, dict[Key, Tree]]]:
    """Yield the mappings that are in mappings, with their paths."""
    stack: list[tuple[Path, Tree]] = [((), tree)]
    seen = {id(tree)}
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, child in node.items():
            if isinstance(child, dict) and child and id(child) not in seen:
                seen.add(id(child))
                stack.append(((*path, key), child))
