"""The structure note of a DCP directory: one more item, a text, that says what the flattened tree really is.

It is bound to the names, types and shapes of all tensors as they are read without it, named by their
displayed paths; those inside of items that are no tensors, too. PyTorch loads it as any other item, or leaves
it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.noted.entries import Entry
from ckptfmt.containers.noted.note import NOTE, decode_note
from ckptfmt.errors import FormatError
from ckptfmt.tree.findings import Finding, Severity
from ckptfmt.tree.paths import display, encode_path
from ckptfmt.tree.walk import survey

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.paths import Path
    from ckptfmt.tree.tensor import Tensor

__all__ = ["NOTE", "with_note"]


def with_note(
    tree: Tree, note: str, findings: tuple[Finding, ...], *, file: str
) -> tuple[Tree, tuple[Finding, ...]]:
    """Return the tree that a note describes, or the given one with a finding where they do not match.

    Parameters
    ----------
    tree : Tree
        What was read without the note.
    note : str
    findings : tuple of Finding
        What was found while reading that; what the note makes good is not told.
    file : str
        What to call the checkpoint in findings.
    """
    try:
        return decode_note(note.encode(errors="surrogatepass"), _entries(tree)), ()
    except FormatError as error:
        message = f"the structure note is ignored: {error.message}"
        return tree, (*findings, Finding("note-mismatch", "", Severity.LOSS, message, file=file))


def _entries(tree: Tree) -> list[Entry]:
    """Return the tensors of a tree under the first of their paths; ties are one."""
    firsts: dict[Hashable, tuple[Path, Tensor]] = {}
    for path, tensor, _ in survey(tree):
        identity = id(tensor) if tensor.identity is None else tensor.identity
        earlier = firsts.get(identity)
        if earlier is None or encode_path(path) < encode_path(earlier[0]):
            firsts[identity] = path, tensor
    return [Entry(display(path), tensor.dtype.name, tensor.shape, tensor) for path, tensor in firsts.values()]
