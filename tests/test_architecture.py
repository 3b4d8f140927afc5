"""The rules of the house that no import contract and no linter can express, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ckptfmt"

# Each third party, and where it may be imported, lazily or not. "" is everywhere.
THIRD_PARTIES = {
    "numpy": ("",),
    "ml_dtypes": ("tree/dtypes.py", "frameworks/"),
    "blake3": ("format/", "parallel/", "verify/", "saving.py"),
    "zstandard": ("format/", "saving.py"),
    "typer": ("cli/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "google_crc32c": ("containers/crc32c.py",),
    "isal": ("containers/zip/checksum.py",),
    "h5py": ("containers/hdf5/",),
    "chainer": ("frameworks/chainer/live.py",),
    "keras": ("frameworks/keras/live.py",),
    "tensorflow": ("frameworks/tensorflow/live.py",),
    "torch": ("frameworks/pytorch/live.py", "frameworks/pytorch/objects.py"),
    "typing_extensions": ("tree/",),  # for the type checker; typer brings it
    "hypothesis": ("testing/",),  # for the tests of plug-ins
    "pytest": ("testing/",),  # the same
}
FRAMEWORKS = ("torch", "tensorflow", "chainer", "keras", "jax", "h5py", "mpi4py", "typer", "click", "rich")
VAGUE = {"utils", "util", "helpers", "common", "core", "shared", "misc", "base"}


@lru_cache(maxsize=1)
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path inside it."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def places(wrong: Callable[[ast.AST], bool], *, allowed: tuple[str, ...] = ()) -> list[str]:
    """Where nodes for which `wrong` holds stand, outside of allowed paths."""
    return [
        f"ckptfmt/{name}:{getattr(node, 'lineno', 0)}"
        for name, module in modules().items()
        if not name.startswith(allowed or ("\0",))
        for node in ast.walk(module)
        if wrong(node)
    ]


def called(*names: str) -> Callable[[ast.AST], bool]:
    """Whether a node calls one of the dotted names."""
    return lambda node: isinstance(node, ast.Call) and ast.unparse(node.func) in names


def imported(node: ast.AST) -> Iterator[str]:
    """The top-level packages that an import statement brings."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module.split(".")[0]


def imports(*packages: str) -> Callable[[ast.AST], bool]:
    return lambda node: not set(packages).isdisjoint(imported(node))


def attribute(*names: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Attribute) and ast.unparse(node) in names


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_functions_and_files_are_small() -> None:
    command = [sys.executable, "tools/check_size.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_command_line_prints_or_exits() -> None:
    leaves = called("print", "exit", "quit", "sys.exit", "os._exit", "os.abort", "input")
    assert places(leaves, allowed=("cli/", "testing/")) == []
    assert places(attribute("sys.stdout", "sys.stderr", "sys.stdin"), allowed=("cli/",)) == []


def test_nothing_reads_or_sets_the_environment() -> None:
    named = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv")
    assert places(attribute(*named)) == []

    def from_os(node: ast.AST) -> bool:
        wanted = {name.removeprefix("os.") for name in named}
        return isinstance(node, ast.ImportFrom) and any(alias.name in wanted for alias in node.names)

    assert places(from_os) == []


def test_nothing_of_an_input_is_executed() -> None:
    assert places(imports("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle")) == []
    loads = called("torch.load", "np.load", "numpy.load", "joblib.load", "torch.jit.load")
    assert places(loads) == []
    runs = called("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "os.system")
    assert places(runs) == []
    assert places(imports("subprocess", "runpy", "code")) == []
    assert places(lambda node: isinstance(node, ast.keyword) and node.arg == "allow_pickle") == []


def test_a_third_party_is_imported_only_where_it_belongs() -> None:
    ours = set(sys.stdlib_module_names) | {"ckptfmt"}
    wrong = [
        f"ckptfmt/{name}:{getattr(node, 'lineno', 0)} imports {package}"
        for name, module in modules().items()
        for node in ast.walk(module)
        for package in imported(node)
        if package not in ours and not name.startswith(THIRD_PARTIES.get(package, ("\0",)))
    ]
    assert wrong == []


def test_a_module_is_imported_by_name_only_where_the_registry_says_so() -> None:
    by_name = called("import_module", "importlib.import_module")
    assert places(by_name, allowed=("__init__.py", "registry/calling.py")) == []


def test_importing_the_package_loads_no_framework() -> None:
    code = "import sys, ckptfmt; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint(FRAMEWORKS)


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_says_what_it_is(name: str) -> None:
    docstring = ast.get_docstring(modules()[name])
    assert docstring is not None
    assert docstring.strip()


def public_names(module: ast.Module) -> set[str]:
    """The public functions and classes that a module defines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in module.body if isinstance(node, kinds) and node.name[0] != "_"}


def exported(module: ast.Module) -> list[str] | None:
    """What `__all__` lists, or None where there is none."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            listed = ast.literal_eval(node.value)
            assert isinstance(listed, list)
            return listed
    return None


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_with_public_names_lists_them(name: str) -> None:
    listed = exported(modules()[name])
    if public_names(modules()[name]):
        assert listed is not None
    if listed is not None:
        assert len(listed) == len(set(listed))
        assert [entry for entry in listed if entry[0] == "_" and entry != "__version__"] == []


def test_no_function_takes_whatever_comes() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert places(lambda node: isinstance(node, functions) and node.args.kwarg is not None) == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {part.removesuffix(".py") for name in modules() for part in name.split("/")}
    assert parts & VAGUE == set()


def test_nothing_of_the_package_is_unfinished() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")  # split, so that this file does not find itself
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for mark in marks
        if mark in path.read_text(encoding="utf-8")
    ]
    assert found == []

    def gives_up(node: ast.AST) -> bool:
        return isinstance(node, ast.Raise) and "NotImplemented" in ast.unparse(node)

    assert places(gives_up) == []
