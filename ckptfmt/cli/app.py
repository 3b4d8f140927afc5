"""The program: commands, and what becomes of a result, an error, a Ctrl-C or a reader that has gone.

Each command returns a `Result`; here it is printed, and here an error becomes a message and an exit code.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ckptfmt.cli import output
from ckptfmt.cli.convert import convert_path
from ckptfmt.cli.diff import diff_paths
from ckptfmt.cli.digest import digest_paths
from ckptfmt.cli.documents import of_error
from ckptfmt.cli.exits import Exit, exit_of
from ckptfmt.cli.extract import extract_tensors
from ckptfmt.cli.formats import list_formats
from ckptfmt.cli.info import show_info
from ckptfmt.cli.recover import recover_path
from ckptfmt.cli.slots import show_slots
from ckptfmt.cli.verify import verify_path
from ckptfmt.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["invoke", "main", "program"]

program = typer.Typer(
    name="ckptfmt",
    help="Look into checkpoints of deep learning, convert, verify and compare them.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.command("info")(show_info)
program.command("extract")(extract_tensors)
program.command("convert")(convert_path)
program.command("verify")(verify_path)
program.command("digest")(digest_paths)
program.command("diff")(diff_paths)
program.command("slots")(show_slots)
program.command("recover")(recover_path)
program.command("formats")(list_formats)

# typer has brought its own click since 0.20 or so: whichever it is, usage errors derive from this.
_UsageError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        output.show_text(f"ckptfmt {__version__}")
        raise typer.Exit


@program.callback()
def _common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    del version, debug  # the first acts when it is parsed; the second is looked for by `main`


def main() -> NoReturn:
    """Run the program with the arguments of the process, and end the process."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code.

    Parameters
    ----------
    arguments : sequence of str
        Without the program's name.
    """
    given = list(arguments)
    before = given[: given.index("--")] if "--" in given else given
    try:
        code = _run(given, as_json="--json" in before, debug="--debug" in before)
    except BrokenPipeError:
        code = Exit.BROKEN_PIPE
    return code if output.flushed() else code or Exit.IO


def _run(arguments: list[str], *, as_json: bool, debug: bool) -> int:
    try:
        command = typer.main.get_command(program)
        result = command.main(arguments, prog_name="ckptfmt", standalone_mode=False)
        if isinstance(result, output.Result):
            output.show(result, as_json=as_json)
            code: int = result.exit
        else:  # --help, --version and the like return an exit code, or nothing
            code = result or Exit.OK
            if code == Exit.INTERRUPTED:  # some versions of typer take Ctrl-C for themselves
                raise KeyboardInterrupt
        output.flush()
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place where it can be told
        if debug:
            output.show_traceback()
        return _tell(error, as_json=as_json, debug=debug)
    else:
        return code


def _tell(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Print an error; return the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, _UsageError):
        command = getattr(getattr(error, "ctx", None), "command_path", "ckptfmt")
        message = f"{error.format_message()}\nTry '{command} --help'."  # type: ignore[attr-defined] # as all have
        document = output.error_document("usage", error.format_message(), Exit.USAGE, {})  # type: ignore[attr-defined]
        output.show_error(message, document, as_json=as_json)
        return Exit.USAGE
    code = Exit.INTERRUPTED if isinstance(error, typer.Abort) else exit_of(error)
    message, document = of_error(error, code)
    output.show_error(_explained(message, error, code, debug=debug), document, as_json=as_json)
    return code


def _explained(message: str, error: BaseException, code: Exit, *, debug: bool) -> str:
    if code is Exit.INTERRUPTED:
        return "interrupted; nothing is half written"
    if code is not Exit.BUG:
        return message
    again = "" if debug else ", and what the same command prints with `ckptfmt --debug ...`"
    return f"an error of ours: {type(error).__name__}: {message}\nPlease report it, with this message{again}."
