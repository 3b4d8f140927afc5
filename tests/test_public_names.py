from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import ckptfmt

SOURCE = Path(ckptfmt.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ckptfmt.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ckptfmt, name) is not None
    assert name in dir(ckptfmt)


def test_types_and_values_come_from_the_same_homes() -> None:
    """What mypy sees is what `__getattr__` returns."""
    seen: dict[str, str] = {}
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ckptfmt."):
            seen |= {alias.name: node.module or "" for alias in node.names}
    assert set(seen) == set(ckptfmt.__all__)
    for name, home in seen.items():
        assert getattr(import_module(home), name) is getattr(ckptfmt, name)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ckptfmt' has no attribute 'nothing'"):
        ckptfmt.nothing  # noqa: B018 - the access is the test
