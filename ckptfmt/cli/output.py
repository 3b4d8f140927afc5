"""The only place that prints: results as text or JSON, errors, bytes, and the progress bar.

On a terminal tables are drawn; piped they are plain columns. Whatever comes from a file is shown without
control characters, so that no name in a checkpoint can steer a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO, TypeAlias

from ckptfmt.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptfmt.tree.canonical import JSON

__all__ = [
    "Block",
    "Result",
    "Table",
    "error_document",
    "flush",
    "flushed",
    "progress_bar",
    "show",
    "show_error",
    "show_text",
    "show_traceback",
]

_DRAWN_ROWS = 2000  # drawing measures every cell first


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Attributes
    ----------
    columns : tuple of str
        Headings.
    rows : sequence of tuple of str
    right : frozenset of str
        Columns whose cells are aligned to the right.
    title : str
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[str] = frozenset()
    title: str = ""


Block: TypeAlias = "Table | str"


@dataclass(frozen=True, slots=True)
class Result:
    """What a command has to say.

    Attributes
    ----------
    document : JSON
        Everything, for programs.
    blocks : tuple of Block
        The same for a person.
    exit : Exit
    data : iterable of bytes, optional
        What goes to standard output in place of both.
    notes : tuple of str
        What goes to standard error, unless JSON was asked for.
    """

    document: JSON
    blocks: tuple[Block, ...] = ()
    exit: Exit = Exit.OK
    data: Iterable[bytes | memoryview] | None = None
    notes: tuple[str, ...] = field(default=())


def show(result: Result, *, as_json: bool) -> None:
    """Print a result."""
    if not as_json:
        for note in result.notes:
            _line(sys.stderr, note)
    if result.data is not None:
        for piece in result.data:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    elif as_json:
        show_json(result.document)
    else:
        for index, block in enumerate(result.blocks):
            if isinstance(block, str):
                _line(sys.stdout, block)
            else:
                _table(block, first=index == 0)


def show_json(document: JSON) -> None:
    """Print a document; beyond ASCII everything is escaped, so any encoding of the output will do."""
    _line(sys.stdout, json.dumps(document, indent=2, allow_nan=False))


def show_text(text: str) -> None:
    """Print a text as it is."""
    _line(sys.stdout, text)


def error_document(kind: str, message: str, code: Exit, places: dict[str, JSON]) -> JSON:
    """Return an error for programs."""
    return {"error": {"kind": kind, "message": message, **places}, "exit": int(code)}


def show_error(message: str, document: JSON, *, as_json: bool) -> None:
    """Print an error: to standard error, or as JSON to standard output."""
    if as_json:
        show_json(document)
    else:
        for number, line in enumerate(message.splitlines() or [""]):
            _line(sys.stderr, f"ckptfmt: {line}" if number == 0 else line)


def show_traceback() -> None:
    """Print where the error at hand came from."""
    traceback.print_exc(file=sys.stderr)


def flush() -> None:
    """Hand on what was printed; OSError where that fails."""
    if sys.stdout is not None:
        sys.stdout.flush()


def flushed() -> bool:
    """Hand on what was printed, or let go of an output that takes nothing, so that the end is quiet."""
    try:
        flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _line(stream: TextIO | None, text: str) -> None:
    if stream is None:  # it was closed before we began
        return
    text = "\n".join(map(_clean, text.split("\n")))
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _clean(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def _table(table: Table, *, first: bool) -> None:
    if not table.rows:
        return
    drawn = _is_terminal(sys.stdout) and len(table.rows) <= _DRAWN_ROWS
    if not (first or (drawn and not table.title)):
        _line(sys.stdout, "")
    if table.title:
        _line(sys.stdout, table.title)
    if drawn:
        _draw(table)
    else:
        _columns(table)


def _columns(table: Table) -> None:
    rows = [table.columns, *(tuple(map(_clean, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [name in table.right for name in table.columns]
    for row in rows:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        _line(sys.stdout, "  ".join(cells).rstrip())


def _draw(table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=SIMPLE_HEAD, pad_edge=False)
    for name in table.columns:
        drawn.add_column(name, justify="right" if name in table.right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_clean(cell)) for cell in row))
    Console(file=sys.stdout).print(drawn)


@contextlib.contextmanager
def progress_bar(what: str, *, unit: str = "") -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback that shows what is done on standard error; None where that is no terminal.

    Without a unit, what is counted is bytes.
    """
    if not _is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    counted = TextColumn("{task.completed} " + unit) if unit else DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), counted)
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)
