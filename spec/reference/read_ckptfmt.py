"""A reader of ckptfmt 1.0 written from the specification alone: ``python read_ckptfmt.py DIR [--json]``.

It reads a checkpoint completely, verifies all that section 12 lists, and prints what it holds, or exits with
status 1 and the broken rule. It needs blake3 and, for coded shards, zstandard. Canonical bytes are kept of
small tensors only, so that memory is bounded. Sections and rules are those of ``ckptfmt-1.0.md``.
"""
# ruff: noqa: INP001  # a script beside its package

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from refreader.document import JSON, RejectedError
from refreader.files import Tensor, read_document, read_files
from refreader.manifest import read_manifest

__all__ = ["RejectedError", "State", "Tensor", "main", "read", "show"]


class State(NamedTuple):
    """What a checkpoint holds: `tree` in the forms of section 5.3, `tensors` by ordinal."""

    root: JSON
    bag: JSON
    step: JSON
    extra: JSON
    tree: JSON
    tensors: list[Tensor]


def read(path: str | Path, *, keep: int = 64) -> State:
    """Read and verify a checkpoint; RejectedError if it breaks a rule.

    The canonical bytes of tensors of at most `keep` bytes are kept.
    """
    manifest = read_manifest(read_document(Path(path) / "manifest.json", "R-001"))
    root, bag, step, extra, tree = (manifest.members[name] for name in State._fields[:5])
    return State(root, bag, step, extra, tree, read_files(Path(path), manifest, keep))


def show(form: JSON, tensors: list[Tensor]) -> JSON:
    """Return a node or key as an object of its type and value."""

    def pairs(entries: list[JSON]) -> list[JSON]:
        return [[show(item, tensors) for item in entry] for entry in entries if isinstance(entry, list)]

    match form:
        case ["tensor", int(ordinal)]:
            kind, shape, own, data = tensors[ordinal]
            value: JSON = {"dtype": kind, "shape": list[JSON](shape), "digest": own}
            return {"type": "tensor", "value": value, "bytes": None if data is None else data.hex()}
        case ["map", [*entries]]:
            return {"type": "map", "value": pairs(entries)}
        case ["list" | "tuple" | "set" | "frozenset" as kind, [*items]]:
            return {"type": kind, "value": [show(item, tensors) for item in items]}
        case ["composite", name, [*attributes], [*parts]]:
            halves: JSON = [pairs(attributes), pairs(parts)]
            return {"type": "composite", "name": name, "value": halves}
        case ["opaque", name, [*parts]]:
            return {"type": "opaque", "name": name, "value": pairs(parts)}
        case ["tagged", name, [*attributes], node]:
            tag: JSON = [name, pairs(attributes)]
            return {"type": "tagged", "tag": tag, "value": show(node, tensors)}
        case ["strings", shape, of, values]:
            return {"type": "strings", "shape": shape, "of": of, "value": values}
        case [str(kind), value]:
            return {"type": kind, "value": value}
    return {"type": "none" if form is None else type(form).__name__, "value": form}


def main(arguments: list[str]) -> int:
    """Print a checkpoint, or say on the error stream which rule it breaks."""
    paths = [argument for argument in arguments if argument != "--json"]
    if len(paths) != 1:
        sys.stderr.write("usage: read_ckptfmt.py DIR [--json]\n")
        return 2
    try:
        state = read(paths[0])
    except RejectedError as error:
        report = {"rule": error.rule, "kind": error.kind, "message": error.message}
        sys.stderr.write(json.dumps(report) + "\n")
        return 1
    shown = {"root": state.root, "bag": state.bag, "step": state.step, "extra": state.extra}
    shown["tree"] = show(state.tree, state.tensors)
    sys.stdout.write(json.dumps(shown, indent=None if "--json" in arguments else 1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
