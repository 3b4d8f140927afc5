"""``ckptfmt extract``: tensors, or boxes of them, as NumPy files."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptfmt.cli.documents import plural
from ckptfmt.cli.options import AsJson, From, Source
from ckptfmt.cli.output import Result
from ckptfmt.cli.sizes import show_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptfmt.cli.picking import Picked
    from ckptfmt.tree.canonical import JSON

__all__ = ["extract_tensors"]

_PIECE = 1 << 20


def extract_tensors(
    path: Source,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Paths or globs of tensors; a box of one as 'a/b[0:10,:]'."),
    ],
    *,
    source_format: From = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="What to write; - is standard output. [extracted.npy]"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> Result:
    """Write one tensor as .npy, or several as .npz. Only the bytes that are asked for are read."""
    del as_json
    if out == "-":
        return Result(None, data=_to_pipe(path, names, source_format))
    from ckptfmt.cli.picking import pick
    from ckptfmt.conversion import read

    with read(path, format=source_format) as checkpoint:
        picked = pick(checkpoint.tree, names)
        single = len(picked) == 1 and not (out or "").lower().endswith(".npz")
        target = out or ("extracted.npy" if single else "extracted.npz")
        _write(picked, target, single=single, overwrite=overwrite)
        return _result(picked, target)


def _to_pipe(path: str, names: list[str], source_format: str | None) -> "Iterator[bytes | memoryview]":
    """Yield the bytes of the file; the checkpoint is open as long as they are taken."""
    import tempfile
    from pathlib import Path

    from ckptfmt.cli.picking import npy_pieces, pick
    from ckptfmt.conversion import read
    from ckptfmt.storage.reader import FileReader

    with read(path, format=source_format) as checkpoint:
        picked = pick(checkpoint.tree, names)
        if len(picked) == 1:
            yield from npy_pieces(picked[0])
            return
        with tempfile.TemporaryDirectory(prefix="ckptfmt-") as folder:
            target = str(Path(folder, "extracted.npz"))
            _write(picked, target, single=False, overwrite=False)
            with FileReader(target) as reader:
                for start in range(0, reader.size, _PIECE):
                    yield reader.read(start, min(_PIECE, reader.size - start))


def _write(picked: "list[Picked]", target: str, *, single: bool, overwrite: bool) -> None:
    from ckptfmt.cli.picking import npy_pieces
    from ckptfmt.registry import write_foreign
    from ckptfmt.storage.replace import replacing

    if not single:
        write_foreign({one.path: one.tensor for one in picked}, target, "npz", overwrite=overwrite)
        return
    with replacing(target, overwrite=overwrite) as file:
        for piece in npy_pieces(picked[0]):
            file.write(piece)


def _result(picked: "list[Picked]", target: str) -> Result:

    nbytes = sum(one.tensor.nbytes for one in picked)
    document: JSON = {
        "target": target,
        "tensors": [
            {
                "path": one.path,
                "box": one.box or None,
                "type": one.tensor.dtype.name,
                "shape": list(one.tensor.shape),
                "nbytes": one.tensor.nbytes,
            }
            for one in picked
        ],
    }
    return Result(document, (f"wrote {target}: {plural(len(picked), 'tensor')}, {show_size(nbytes)}",))
