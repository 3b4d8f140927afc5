"""Pickles in files: read through a window, told by the offset in the file, long bytes left where they are."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from ckptfmt.containers.pickle.interpreter import interpret, interpret_from
from ckptfmt.containers.pickle.nodes import FileBytes, LegacyText
from ckptfmt.errors import FormatError, TruncatedError
from ckptfmt.storage.reader import FileReader, MemoryReader

if TYPE_CHECKING:
    from pathlib import Path

LONG: dict[object, object] = {
    "numbers": list(range(200_000)),
    "texts": [str(i) * 20 for i in range(5_000)],
    "mapping": {i: (i, float(i), str(i)) for i in range(20_000)},
    "line": "x" * 3_000_000,
    "int": 7**100,
}


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_many_windows_is_the_one_in_memory(protocol: int) -> None:
    data = pickle.dumps(LONG, protocol)
    found = interpret_from(MemoryReader(b"before" + data + b"after"), start=6)
    assert found.value == LONG == interpret(data)[0]
    assert found.end == 6 + len(data)


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("length", [65_535, 65_536, 3_000_000])
def test_long_bytes_stay_in_the_file(protocol: int, length: int) -> None:
    value = [b"x" * length, "after", b"short"]
    data = pickle.dumps(value, protocol)
    found = interpret_from(MemoryReader(data)).value
    assert isinstance(found, list)
    first = found[0]
    assert isinstance(first, FileBytes) is (length >= 65_536)
    assert (first.read() if isinstance(first, FileBytes) else first) == value[0]
    assert found[1:] == value[1:]


def test_long_strings_of_python_2_stay_in_the_file_as_what_they_are() -> None:
    data = b"(lT\x00\x00\x02\x00" + b"\xe9" * 0x20000 + b"aU\x01aa."
    found = interpret_from(MemoryReader(data)).value
    assert isinstance(found, list)
    assert isinstance(found[0], FileBytes)
    text = found[0].read()
    assert isinstance(text, LegacyText)
    assert text.text() == "é" * 0x20000
    assert found[1] == b"a"


def test_a_file_that_ends_early_is_truncated_wherever_it_ends() -> None:
    data = pickle.dumps({"a": [1, 2.5, "text", b"bytes"], "b": (2**70, None, {3})}, 4)
    for length in range(len(data)):
        with pytest.raises(TruncatedError) as caught:
            interpret_from(MemoryReader(data[:length], "x"))
        assert caught.value.file == "x"
    with pytest.raises(TruncatedError):
        interpret_from(MemoryReader(b""), start=1)


@pytest.mark.parametrize("filler", [10, 5_000, 3_000_000])
def test_an_error_tells_the_offset_in_the_file(filler: int) -> None:
    data = b"junk" + b"N0" * filler + b"\xff."
    with pytest.raises(FormatError, match="0xff") as caught:
        interpret_from(MemoryReader(data, "x"), start=4)
    assert (caught.value.file, caught.value.offset) == ("x", 4 + 2 * filler)


def test_bytes_that_are_not_there_are_not_asked_for() -> None:
    for code in (
        b"\x8e" + b"\xff" * 7 + b"\x7f",
        b"B\xff\xff\xff\xff",
        b"\x8d" + b"\xff" * 8,
        b"\x95" + b"\xff" * 8,
    ):
        with pytest.raises(TruncatedError):
            interpret_from(MemoryReader(code + b"abc."))


def test_what_follows_a_pickle_is_hardly_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(pickle.dumps([1, 2]))
        file.truncate(1 << 32)
    count = 0
    real = FileReader.readinto

    def counted(reader: FileReader, offset: int, out: memoryview) -> None:
        nonlocal count
        count += len(out)
        real(reader, offset, out)

    monkeypatch.setattr(FileReader, "readinto", counted)
    with FileReader(path) as reader:
        assert interpret_from(reader).value == [1, 2]
    assert count <= 4096


def test_references_are_listed_in_the_order_of_the_pickle() -> None:
    found = interpret_from(MemoryReader(b"(K\x01QK\x02QPthree\nt."))
    assert [node.value for node in found.outside] == [1, 2, "three"]
    assert found.value == found.outside
