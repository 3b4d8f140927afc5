"""Refuse functions and files that have grown too large; print the figures.

A function's lines are counted without its docstring. The limits are those of CONTRIBUTING.md. Nothing is
exempt; a function that must be long is two functions.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path
from typing import TypeAlias

__all__ = ["MAX_FILE", "MAX_FUNCTION", "MAX_MEDIAN", "function_sizes", "main"]

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION = 60
MAX_FILE = 500
MAX_MEDIAN = 8
FOLDERS = ("ckptfmt", "tests", "tools", "examples", "spec/reference")

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


def own_lines(function: Function) -> int:
    """Return the lines of a function's head and body, less its docstring and decorators."""
    body = function.body
    first = body[0]
    documented = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def function_sizes(source: str) -> dict[str, int]:
    """Return the size of every function of a module by ``line name``."""
    return {
        f"{node.lineno} {node.name}": own_lines(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def problems_of(path: Path, sizes: dict[str, int], lines: int) -> list[str]:
    """Return what is too large in one file."""
    name = path.relative_to(ROOT)
    large = [
        f"{name}:{where} has {size} lines, of at most {MAX_FUNCTION}"
        for where, size in sizes.items()
        if size > MAX_FUNCTION
    ]
    if lines > MAX_FILE:
        large.append(f"{name} has {lines} lines, of at most {MAX_FILE}")
    return large


def main() -> None:
    """Check every Python file."""
    problems: list[str] = []
    in_package: list[int] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            sizes = function_sizes(source)
            problems += problems_of(path, sizes, source.count("\n"))
            in_package += list(sizes.values()) if folder == "ckptfmt" else []
    median = statistics.median(in_package)
    if median > MAX_MEDIAN:
        problems.append(f"the median function of the package has {median} lines, of at most {MAX_MEDIAN}")
    print(f"{len(in_package)} functions in the package: median {median:g}, largest {max(in_package)} lines")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
