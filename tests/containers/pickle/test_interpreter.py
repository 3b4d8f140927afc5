from __future__ import annotations

import collections
import decimal
import enum
import os
import pathlib
import pickle
import struct
from pathlib import Path

import pytest

from ckptfmt.containers.pickle.interpreter import Limits, interpret
from ckptfmt.containers.pickle.nodes import Call, Global, LegacyText, PersistentId
from ckptfmt.errors import FormatError, LimitError, TruncatedError, UnsupportedVersionError

PLAIN: dict[object, object] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, 1, 255, 256, 65_536, -1, -(2**31), 2**31, 2**70, -(2**2100)],
    "floats": [0.0, -0.0, 1.5, float("inf"), 1e-320],
    "text": ["", "é\n\\u1234", "x" * 300, "𝄞"],
    "nested": ([[]], (), ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), {"a": {1: {"b": []}}}),
    (1, ("k", None)): {2.5: "float", None: 1, True: 0},
    "many": list(range(3000)),
    "mapping": {i: str(i) for i in range(3000)},
}


class Nasty:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch sentinel",)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_of_every_protocol_are_those_of_pickle(protocol: int) -> None:
    data = pickle.dumps(PLAIN, protocol)
    value, end = interpret(data)
    assert value == PLAIN
    assert repr(value) == repr(PLAIN)
    assert end == len(data)


@pytest.mark.parametrize("protocol", range(3, 6))
def test_bytes_are_bytes(protocol: int) -> None:
    values = [b"", b"abc", b"x" * 300]
    assert interpret(pickle.dumps(values, protocol))[0] == values


def test_streams_follow_each_other() -> None:
    data = pickle.dumps(1, 2) + pickle.dumps("two", 2)
    first, end = interpret(data)
    assert (first, interpret(data, start=end)) == (1, ("two", len(data)))


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_described_and_not_made(protocol: int) -> None:
    values = [pathlib.PurePosixPath("a/b"), decimal.Decimal("1.5"), collections.OrderedDict(a=1), {1, 2}]
    nodes, _ = interpret(pickle.dumps(values, protocol))
    assert isinstance(nodes, list)
    assert all(type(node) is Call for node in nodes)
    assert nodes[1].function == Global("decimal", "Decimal")
    assert nodes[2].function == Global("collections", "OrderedDict")
    assert nodes[3].function == Global("builtins", "set")


@pytest.mark.parametrize("protocol", range(6))
def test_shared_and_recursive_objects_stay_so(protocol: int) -> None:
    inner: list[object] = [1]
    outer: list[object] = [inner, inner]
    outer.append(outer)
    nodes, _ = interpret(pickle.dumps(outer, protocol))
    assert isinstance(nodes, list)
    assert nodes[0] is nodes[1]
    assert nodes[2] is nodes


def test_a_recursive_tuple_is_read() -> None:
    inner: list[object] = []
    value = (inner,)
    inner.append(value)
    for protocol in range(6):
        node, _ = interpret(pickle.dumps(value, protocol))
        assert isinstance(node, tuple)
        assert node[0][0] is node


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        node, _ = interpret(pickle.dumps([Nasty()], protocol))
        assert isinstance(node, list)
        assert node[0].function == Global(os.system.__module__, "system")
    chains = [
        b"cbuiltins\ngetattr\ncos\npath\nS'system'\n\x86R(S'touch sentinel'\ntR.",
        b"\x8c\x05torch\x8c\x17serialization.os.system\x93\x8c\x0etouch sentinel\x85R.",
        b"(S'touch sentinel'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch sentinel'\no.",
        b"\x80\x02cos\nsystem\n)\x81}S'x'\nS'y'\nsb.",
        b'c__builtin__\neval\nS\'__import__("os").system("touch sentinel")\'\n\x85R.',
    ]
    for chain in chains:
        interpret(chain)
    assert list(Path().iterdir()) == []


def test_names_are_known_under_one_name() -> None:
    for raw, name in [
        (b"c__builtin__\nxrange\n.", "builtins.range"),
        (b"cnumpy._core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
        (b"\x8c\x0epathlib._local\x8c\x09PosixPath\x93.", "pathlib.PosixPath"),
        (b"ctorch.tensor\n_rebuild_from_type_v2\n.", "torch._tensor._rebuild_from_type_v2"),
        (b"cnumpy._corex\nf\n.", "numpy._corex.f"),
    ]:
        assert str(interpret(raw)[0]) == name


def test_python_2_is_read() -> None:
    node, _ = interpret(b"(dp0\nS'caf\\xc3\\xa9'\np1\nI140619061185824\nsU\x03\xff\xfe\x00L-5L\ns.")
    assert node == {"café": 140_619_061_185_824, "ÿþ\0": -5}
    text, _ = interpret(b"U\x02\xc3\xa9.")
    assert isinstance(text, LegacyText)
    assert text.text() == "é"
    assert interpret(b"(I01\nI00\nF1.5\nt.")[0] == (True, False, 1.5)


def test_outside_references_are_kept() -> None:
    node, _ = interpret(b"(U\x07storageK\x01tQ.")
    assert isinstance(node, PersistentId)
    assert node.value == (b"storage", 1)
    text, _ = interpret(b"P17\n.")
    assert isinstance(text, PersistentId)
    assert text.value == "17"


@pytest.mark.parametrize("protocol", range(6))
def test_every_truncation_is_one_kind_of_error(protocol: int) -> None:
    class Colour(enum.Enum):
        RED = 1

    values = [*PLAIN.values(), pathlib.PurePosixPath("a"), decimal.Decimal(1), b"bytes", bytearray(b"x"), {1}]
    data = pickle.dumps(values, protocol)
    data = data[:1500] + b"." if len(data) > 1500 else data
    for length in range(min(len(data), 1500)):
        with pytest.raises(FormatError) as caught:
            interpret(data[:length], file="data.pkl")
        assert caught.value.file == "data.pkl"
        assert caught.value.offset is not None


def test_a_short_file_is_truncated() -> None:
    for data in (
        b"",
        b"\x80",
        b"\x80\x02",
        b"X\x05\0\0\0ab",
        b"cos\nsys",
        b"K",
        b"h",
        b"\x80\x04\x95" + b"\xff" * 8,
    ):
        with pytest.raises(TruncatedError):
            interpret(data)


MALFORMED = {
    "unknown opcode": b"\xff.",
    "empty stack": b"0.",
    "no mark": b"t.",
    "below the mark": b"K\x01(a.",
    "memo": b"h\x05.",
    "key without value": b"}(K\x01u.",
    "set items on a tensor": b"cf\ng\n(K\x01K\x02u.",
    "set items on a list": b"](K\x01K\x02u.",
    "append to a dict": b"}K\x01a.",
    "append to a tuple": b")K\x01a.",
    "add to a list": b"](K\x01\x90.",
    "build a dict": b"}}b.",
    "build twice": b"cf\ng\n)R}b}b.",
    "call with a list": b"cf\ng\n]R.",
    "class by a number": b"K\x01K\x02\x93.",
    "list as key": b"}]K\x01s.",
    "dict within a tuple as key": b"}}\x85K\x01s.",
    "bad utf-8": b"X\x01\0\0\0\xff.",
    "bad integer": b"I1_0\n.",
    "endless integer": b"I" + b"9" * 5000 + b"\n.",
    "bad float": b"F1_0\n.",
    "negative length": b"T\xff\xff\xff\xff.",
    "negative long": b"\x8b\xff\xff\xff\xff.",
    "unquoted": b"Sabc\n.",
    "bad escape": b"S'\\x1'\n.",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        interpret(data, file="f")
    assert caught.value.offset is not None
    assert not isinstance(caught.value, LimitError | UnsupportedVersionError)


@pytest.mark.parametrize(
    "data", [b"\x80\x06N.", b"\x82\x01.", b"\x83\x01\0.", b"\x84\1\0\0\0.", b"\x97.", b"N\x98."]
)
def test_what_lies_outside_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedVersionError):
        interpret(data)


def test_limits_hold() -> None:
    with pytest.raises(LimitError, match="opcodes"):
        interpret(b"N0" * 100 + b"N.", limits=Limits(opcodes=50))
    with pytest.raises(LimitError, match="remembered"):
        interpret(
            b"N" + b"".join(b"r" + struct.pack("<L", i) for i in range(20)) + b".", limits=Limits(memo=10)
        )
    with pytest.raises(LimitError, match="open"):
        interpret(b"(" * 10_000 + b".")


def test_bombs_stay_small() -> None:
    doubling = b"]" + b"q\x00h\x00h\x00\x86" * 100 + b"."  # 2^100 leaves, if anyone copied
    assert isinstance(interpret(doubling)[0], tuple)
    with pytest.raises(LimitError, match="key"):
        interpret(b"}" + b"K\x01" + b"2\x86" * 100 + b"K\x01s.")  # a key whose hash would never end
    with pytest.raises(LimitError, match="key"):
        interpret(b"}" + b"K\x01" + b"\x85" * 1_000_000 + b"K\x01s.")  # nor its recursion
    deep, _ = interpret(b"]" + b"\x85" * 1_000_000 + b".")
    calls, _ = interpret(b"cf\ng\n)R" + b"q\x000cf\ng\nh\x00\x85R" * 200_000 + b".")
    assert isinstance(calls, Call)
    del deep, calls  # neither may exhaust the C stack as it goes
