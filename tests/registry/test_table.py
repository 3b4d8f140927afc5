from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from ckptfmt.errors import UnknownFormatError
from ckptfmt.registry import Format, format_named, formats
from ckptfmt.registry.table import NATIVE


def test_formats_are_sorted_and_their_names_are_unique() -> None:
    names = [row.name for row in formats()]
    assert names == sorted(set(names))
    assert NATIVE in names


def test_no_two_formats_want_one_extension() -> None:
    endings = [ending for row in formats() for ending in row.extensions]
    assert len(endings) == len(set(endings))
    assert all(ending == ending.lower() and ending[:1] in {"", "."} for ending in endings)


@pytest.mark.parametrize("row", formats(), ids=lambda row: row.name)
def test_a_row_points_to_functions_that_exist(row: object) -> None:
    assert isinstance(row, Format)
    if row.extra is not None:
        pytest.importorskip("h5py", reason=f'reads files of {row.name}: needs the extra "{row.extra}"')
    for dotted in (row.reader, row.writer, row.slots):
        if dotted is not None:
            module, _, function = dotted.partition(":")
            assert callable(getattr(import_module(module), function))


def test_only_our_own_format_has_no_reader() -> None:
    assert [row.name for row in formats() if row.reader is None] == [NATIVE]


def test_a_format_that_is_only_read_says_what_to_write() -> None:
    written = {row.name for row in formats() if row.writable}
    for row in formats():
        assert row.writable == (row.instead is None)
        assert row.writable or row.extensions == ()
        assert row.instead is None or row.instead in written


def test_a_name_that_is_none_lists_those_there_are() -> None:
    with pytest.raises(UnknownFormatError, match=", ".join(row.name for row in formats())):
        format_named("onnx")


def test_listing_formats_imports_no_reader() -> None:
    code = (
        "import sys, ckptfmt.registry as r; r.formats();"
        "print([m for m in sys.modules if m.startswith('ckptfmt.frameworks')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
