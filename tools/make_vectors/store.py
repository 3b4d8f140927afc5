"""Cases on disk: ``<topic>/<case>/checkpoint/`` and ``case.json``; and how a test makes them whole.

What version control keeps badly (links, folders, pipes, long runs of zeros) is a recipe in ``case.json``.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, TypeAlias

from .cases import Invalid
from .trees import TreeDigests, pairs

if TYPE_CHECKING:
    from pathlib import Path

    from .cases import Files, Valid
    from .trees import JSON
    from .writer import Draft

__all__ = ["case_files", "expected_tree", "materialise", "stored_case"]

RUN = 64 << 10
"""A file that ends in more zeros than this is stored without them."""
Stored: TypeAlias = "tuple[dict[str, bytes], dict[str, JSON]]"


def case_files(files: Files) -> tuple[dict[str, bytes], list[JSON]]:
    """Return what is stored of the files of a case, and the recipe for the rest."""
    kept: dict[str, bytes] = {}
    recipe: list[JSON] = []
    for name, content in sorted(files.items()):
        if isinstance(content, tuple):
            recipe.append({"name": name, "make": content[0], "target": content[1] if content[1:] else None})
            continue
        short = content.rstrip(b"\0")
        cut = len(content) - len(short) > RUN
        kept[name] = short if cut else content
        if cut:
            recipe.append({"name": name, "make": "zeros", "target": len(content)})
    return kept, recipe


def materialise(case: Path, target: Path) -> Path:
    """Copy the checkpoint of a case, and follow its recipe; return the directory."""
    told = json.loads((case / "case.json").read_text(encoding="utf-8"))
    target.mkdir(parents=True)
    if (case / "checkpoint").is_dir():
        shutil.copytree(case / "checkpoint", target, dirs_exist_ok=True)
    for step in told.get("recipe", []):
        path = target / step["name"]
        if step["make"] == "symlink":
            path.symlink_to(step["target"])
        elif step["make"] == "fifo":
            os.mkfifo(path)
        elif step["make"] == "folder":
            path.mkdir()
        else:
            path.touch()
            os.truncate(path, int(step["target"]))
    return target


def stored_case(case: Valid | Invalid) -> Stored:
    """Return the files to store of a case, and its ``case.json``."""
    if isinstance(case, Invalid):
        files, recipe = case_files(case.build())
        told: dict[str, JSON] = {"title": case.title, "rule": case.rule, "kind": case.kind}
    else:
        planned = case.build()
        files, recipe = case_files(planned.seal())
        told = {"title": case.title, **expected(planned)}
    return files, told | ({"recipe": recipe} if recipe else {})


def expected(planned: Draft) -> dict[str, JSON]:
    """Return what a reader must find."""
    tensors = [bytes.fromhex(str(row.form[4])) for row in planned.rows]
    digests = TreeDigests(planned.tree, tensors)
    return {
        "root": digests.root(),
        "bag": digests.bag(),
        "step": planned.step,
        "extra": planned.extra,
        "tree": expected_tree(planned.tree, [tensor_form(planned, index) for index in range(len(tensors))]),
    }


def tensor_form(planned: Draft, ordinal: int) -> JSON:
    """Return a tensor as a reader shows it, with its canonical bytes if they are few."""
    row = planned.rows[ordinal]
    few = len(row.original) <= 64
    value: JSON = {"dtype": row.form[2], "shape": row.form[3], "digest": row.form[4]}
    return {"type": "tensor", "value": value, "bytes": row.original.hex() if few else None}


def expected_tree(form: JSON, tensors: list[JSON]) -> JSON:
    """Return a tree with every node as an object of its type and value."""
    if not isinstance(form, list):
        return {"type": "none" if form is None else type(form).__name__, "value": form}
    kind, *rest = form
    if kind == "tensor":
        return tensors[rest[0]] if isinstance(rest[0], int) else None
    if kind == "strings":
        return {"type": kind, "shape": rest[0], "of": rest[1], "value": rest[2]}
    if kind == "tagged":
        tag: JSON = [rest[0], expected_pairs(rest[1], tensors)]
        return {"type": kind, "tag": tag, "value": expected_tree(rest[2], tensors)}
    if kind in {"list", "tuple", "set", "frozenset"}:
        return {"type": kind, "value": expected_items(rest[0], tensors)}
    if kind == "composite":
        halves: JSON = [expected_pairs(half, tensors) for half in rest[1:]]
        return {"type": kind, "name": rest[0], "value": halves}
    if kind in {"map", "opaque"}:
        value: JSON = expected_pairs(rest[-1], tensors)
        return {"type": kind, "value": value} | ({"name": rest[0]} if kind == "opaque" else {})
    return {"type": kind, "value": rest[0]}


def expected_items(forms: JSON, tensors: list[JSON]) -> list[JSON]:
    """Return several nodes or keys."""
    return [expected_tree(item, tensors) for item in forms] if isinstance(forms, list) else []


def expected_pairs(entries: JSON, tensors: list[JSON]) -> list[JSON]:
    """Return the entries of a map, or named nodes."""
    return [expected_items([key, node], tensors) for key, node in pairs(entries)]
