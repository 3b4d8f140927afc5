"""npy headers and elements: judged by numpy, which writes and reads them; hostile ones by a table."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import warnings
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptfmt.containers.npy.header import MAX_HEADER, decode_header, encode_header
from ckptfmt.containers.npy.literal import parse_literal
from ckptfmt.containers.npy.objects import NONE_PICKLE
from ckptfmt.containers.npy.values import node_of
from ckptfmt.errors import FormatError, LimitError, TruncatedError, UnsupportedVersionError
from ckptfmt.storage.reader import FileReader, MemoryReader
from ckptfmt.tree.arrays import numpy_node
from ckptfmt.tree.nodes import Composite, Strings
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 0), (0, 3), (3,), (2, 3, 4), (1, 1), (5, 1, 2)]
TYPES = ["?", "i1", "u1", "<i2", ">u2", "<i4", ">i4", "<u8", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
TYPES += ["<c8", ">c8", "<c16", ">c16", "S1", "S5"]


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of version 2 headers and of metadata
        np.save(file, array)
    return file.getvalue()


def node(data: bytes) -> Tree:
    reader = MemoryReader(data, "a.npy")
    return node_of(reader, decode_header(reader))


def tensor(data: bytes) -> Tensor:
    found = node(data)
    assert isinstance(found, Tensor)
    return found


def filled(shape: tuple[int, ...], kind: str) -> np.ndarray:
    count = int(np.prod(shape))
    dtype = np.dtype(kind)
    data = np.random.default_rng(7).integers(0, 256, count * dtype.itemsize, np.uint8)
    return (data % 2 if kind == "?" else data).view(dtype).reshape(shape)


def canonical(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_saves_is_read_as_it_is_in_memory(shape: tuple[int, ...], kind: str, order: str) -> None:
    array = np.asarray(filled(shape, kind), order=order)  # type: ignore[call-overload] # "C" or "F"
    found = tensor(saved(array))
    expected = Tensor.of(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert bytes(found.bytes()) == canonical(array)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [*TYPES, "<V2", "|V1", "<U3", ">U3", "<M8[ns]", ">m8[3D]", "<f16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_headers_are_written_byte_for_byte_as_numpy_writes_them(
    shape: tuple[int, ...], kind: str, order: str
) -> None:
    array = np.zeros(shape, kind, order=order)  # type: ignore[call-overload] # "C" or "F"
    data = saved(array)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = encode_header(array.dtype.str, array.shape, fortran_order=fortran)
    assert header == data[: len(data) - array.nbytes]


@pytest.mark.parametrize("digits", range(1, 17))
@pytest.mark.parametrize("ndim", range(1, 30, 3))
def test_header_padding_is_numpys_at_every_length(digits: int, ndim: int) -> None:
    array = np.zeros((0, 10 ** (digits - 1), *((1,) * ndim)), "f4")
    assert encode_header("<f4", array.shape) == saved(array)
    assert encode_header("<f4", array.T.shape) == saved(array.T.copy())


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)), st.booleans())
def test_any_scalar_type_is_read_as_in_memory(array: np.ndarray, fortran: bool) -> None:  # noqa: FBT001
    array = np.asfortranarray(array) if fortran and array.ndim else array
    found, expected = node(saved(array)), numpy_node(np.asarray(array))
    assert same(found, expected)


def same(left: Tree, right: Tree) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (left.dtype, left.shape, bytes(left.bytes())) == (
            right.dtype,
            right.shape,
            bytes(right.bytes()),
        )
    if isinstance(left, Strings) and isinstance(right, Strings):
        return (left.shape, left.values) == (right.shape, right.values)
    if isinstance(left, Composite) and isinstance(right, Composite):
        return (
            left.name == right.name
            and left.attributes == right.attributes
            and list(left.parts) == list(right.parts)
            and all(same(left.parts[name], right.parts[name]) for name in left.parts)
        )
    return False


STRUCTURES = {
    "plain": np.dtype([("a", "<f4"), ("b", ">i2")]),
    "nested": np.dtype([("a", [("x", "<u4"), ("y", "S3")]), ("b", "?")]),
    "array member": np.dtype([("a", "<f4", (2, 3)), ("b", "i1")]),
    "aligned": np.dtype([("a", "i1"), ("b", "<f8")], align=True),
    "padded": np.dtype({"names": ["a", "b"], "formats": ["i1", "f4"], "offsets": [1, 8], "itemsize": 20}),
    "titled": np.dtype([(("long title", "a"), "<i4")]),
    "names to escape": np.dtype([("a b", "<f4"), ("é'\n\"\\", "<i2"), ("\u0100", "<i2")]),
    "times": np.dtype([("t", "<M8[ns]"), ("u", "<U2")]),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_structures_are_composites_of_their_members(name: str, shape: tuple[int, ...], order: str) -> None:
    array = np.zeros(shape, STRUCTURES[name], order=order)  # type: ignore[call-overload] # "C" or "F"
    if array.size:
        array[(0,) * array.ndim] = np.ones((), STRUCTURES[name])
    found = node(saved(array))
    assert isinstance(found, Composite)
    expected = numpy_node(array)
    assert isinstance(expected, Composite)
    assert list(found.parts) == list(expected.parts)
    assert all(same(found.parts[key], expected.parts[key]) for key in found.parts)


@pytest.mark.parametrize("order", ["C", "F"])
def test_types_of_ml_dtypes_are_raw_bytes_without_a_note(order: str) -> None:
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    found = node(saved(np.asarray(array, order=order)))  # type: ignore[call-overload] # "C" or "F"
    assert isinstance(found, Composite)
    part = found.parts["bytes"]
    assert isinstance(part, Tensor)
    assert (found.name, part.dtype.name, part.shape) == ("numpy.void", "u8", (2, 3, 2))
    assert bytes(part.bytes()) == array.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_what_ml_dtypes_calls_f1_is_its_one_type_of_that_name(order: str) -> None:
    array = np.arange(6, dtype=ml_dtypes.float8_e5m2).reshape(2, 3)
    data = saved(np.asarray(array, order=order))  # type: ignore[call-overload] # "C" or "F"
    assert b"'<f1'" in data
    assert tensor(data).dtype.name == "f8_e5m2"
    assert bytes(tensor(data).bytes()) == array.tobytes()


def test_long_doubles_are_raw_bytes_with_their_type() -> None:
    array = np.arange(3, dtype=np.longdouble)
    if array.dtype.itemsize == 8:
        pytest.skip("this platform has no long double of its own")
    found = node(saved(array))
    assert isinstance(found, Composite)
    part = found.parts["bytes"]
    assert isinstance(part, Tensor)
    assert (found.name, found.attributes) == ("numpy.longdouble", {"descr": array.dtype.str})
    assert bytes(part.bytes()) == array.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_unicode_arrays_are_strings(order: str) -> None:
    array = np.array([["a", "bé"], ["", "\U0001f600"], ["x\0y", "z"]])
    found = node(saved(np.asarray(array, order=order)))  # type: ignore[call-overload] # "C" or "F"
    assert isinstance(found, Strings)
    assert (found.shape, list(found.values)) == ((3, 2), array.reshape(-1).tolist())


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<c8", ">c8", "S5"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_range_of_canonical_bytes_is_the_same(
    tmp_path: Path, *, mapped: bool, kind: str, order: str
) -> None:
    array = np.asarray(filled((3, 4, 2), kind), order=order)  # type: ignore[call-overload] # "C" or "F"
    np.save(tmp_path / "a.npy", array)
    expected = canonical(array)
    with FileReader(tmp_path / "a.npy", mapped=mapped) as reader:
        found = node_of(reader, decode_header(reader))
        assert isinstance(found, Tensor)
        for start in range(0, len(expected), 7):
            for stop in range(start + 1, len(expected) + 1, 5):
                out = memoryview(bytearray(stop - start))
                found.source.readinto(start, out)
                assert bytes(out) == expected[start:stop]
        assert np.array_equal(found[1:3, 2], array[1:3, 2])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header_is_read(version: tuple[int, int]) -> None:
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(file, array, version=version)
    assert np.array_equal(tensor(file.getvalue()).numpy(), array)


# ---------------------------------------------------------------------- None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_the_none_pickle_is_none(protocol: int, module: bytes) -> None:
    text = pickle.dumps(np.asarray(None), protocol)
    here = b"numpy._core.multiarray" if b"numpy._core" in text else b"numpy.core.multiarray"
    if protocol >= 4:  # the name is framed by its length
        text = text.replace(bytes([len(here)]) + here, bytes([len(module)]) + module)
        length = struct.unpack_from("<Q", text, 3)[0] + len(module) - len(here)
        text = text[:3] + struct.pack("<Q", length) + text[11:]
    text = text.replace(here, module)
    assert node(encode_header("|O", ()) + text) is None


def test_the_none_pickle_of_ours_is_what_numpy_reads_and_of_python_2_too() -> None:
    member = encode_header("|O", ()) + NONE_PICKLE
    assert node(member) is None
    assert np.load(io.BytesIO(member), allow_pickle=True).item() is None
    python2 = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03"
        b"(K\x01)cnumpy\ndtype\nq\x04U\x02O8K\x00K\x01\x87Rq\x05(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff"
        b"\xffK?tb\x89]q\x06Natb."
    )
    assert np.load(io.BytesIO(encode_header("|O", ()) + python2), allow_pickle=True).item() is None
    assert node(encode_header("|O", ()) + python2) is None


class Sentinel:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


def objects(values: Iterator[object] | object, shape: tuple[int, ...] = ()) -> bytes:
    array = np.empty(shape, object)
    array[...] = values
    return saved(array) if shape else encode_header("|O", ()) + pickle.dumps(array, 3)


def test_other_objects_are_refused_and_never_made(tmp_path: Path) -> None:
    sentinel = tmp_path / "executed"
    hostile = {
        "a value": objects(1),
        "an empty array": objects(None, (0,)),
        "two Nones": objects(None, (2,)),
        "one None in a list": objects(None, (1,)),
        "a text": objects("None"),
        "a call": encode_header("|O", ()) + pickle.dumps(Sentinel(str(sentinel))),
        "a call in the array": objects(Sentinel(str(sentinel))),
        "just None": encode_header("|O", ()) + pickle.dumps(None),
        "a call after the end": encode_header("|O", ()) + NONE_PICKLE + pickle.dumps(Sentinel(str(sentinel))),
        "an os.system": encode_header("|O", ()) + b"cos\nsystem\n(S'touch " + bytes(sentinel) + b"'\ntR.",
        "another function": encode_header("|O", ()) + NONE_PICKLE.replace(b"_reconstruct", b"_reconstrucT"),
        "another value": encode_header("|O", ()) + NONE_PICKLE.replace(b"]q\x0cNa", b"]q\x0cK\x01a"),
        "two values": encode_header("|O", ()) + NONE_PICKLE.replace(b"]q\x0cNa", b"]q\x0cNaNa"),
        "another shape": encode_header("|O", ()) + NONE_PICKLE.replace(b"K\x01)c", b"K\x01K\x02\x85c"),
        "no pickle": encode_header("|O", ()) + b"garbage",
        "nothing": encode_header("|O", ()),
        "a bomb": encode_header("|O", ()) + b"(" * 100_000,
        "a structure": saved(np.zeros(1, [("a", "i4")])).replace(b"<i4", b"|O "),
    }
    for case, data in hostile.items():
        with pytest.raises(FormatError) as caught:
            node(data)
        assert caught.value.file == "a.npy", case
    assert not sentinel.exists()


def test_every_truncation_of_the_none_pickle_is_refused() -> None:
    member = encode_header("|O", ()) + NONE_PICKLE
    for length in range(len(member)):
        with pytest.raises(FormatError):
            node(member[:length])


# ---------------------------------------------------------------------- hostile headers


def header(text: str | bytes, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    text = text if isinstance(text, bytes) else text.encode()
    form = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, len(text) if length is None else length) + text


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


EIGHT = bytes(8)
HOSTILE: dict[str, tuple[bytes, type[FormatError]]] = {
    "empty": (b"", TruncatedError),
    "other magic": (b"\x93NUMPX\x01\x00", FormatError),
    "magic only": (b"\x93NUMPY", TruncatedError),
    "version 4": (header(described(), (4, 0)), UnsupportedVersionError),
    "version 1.1": (header(described(), (1, 1)), UnsupportedVersionError),
    "length over the file": (header(described(), length=1000), TruncatedError),
    "length 4 GiB": (header(described(), (2, 0), length=2**32 - 1), LimitError),
    "no text": (header(""), FormatError),
    "code": (header("__import__('os').system('true')\n"), FormatError),
    "code in a dict": (header(described("__import__('os')")), FormatError),
    "a sum": (header(described(shape="(1+1,)")), FormatError),
    "nested": (header("(" * 5000), LimitError),
    "nested, version 2": (header("[" * 500_000, (2, 0)), LimitError),
    "not UTF-8": (header(b"{'descr': '\xff'}", (3, 0)), FormatError),
    "a list": (header("[]"), FormatError),
    "a key missing": (header("{'descr': '<f4', 'shape': ()}"), FormatError),
    "a key too many": (header(described()[:-3] + "'more': 1}"), FormatError),
    "a key twice": (
        header("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}"),
        FormatError,
    ),
    "something after": (header(described() + "x"), FormatError),
    "NUL padding": (header(described() + "\0\0"), FormatError),
    "order a number": (header(described(order="1")) + EIGHT, FormatError),
    "shape a list": (header(described(shape="[2]")) + EIGHT, FormatError),
    "shape a number": (header(described(shape="(2)")) + EIGHT, FormatError),
    "negative": (header(described(shape="(-2,)")) + EIGHT, FormatError),
    "a fraction": (header(described(shape="(2.0,)")) + EIGHT, FormatError),
    "True as one": (header(described(shape="(True,)")) + bytes(4), FormatError),
    "octal": (header(described(shape="(02,)")) + EIGHT, FormatError),
    "a huge extent": (header(described(shape="(18446744073709551616,)")) + EIGHT, LimitError),
    "thousands of digits": (header(described(shape=f"({'9' * 5000},)")), FormatError),
    "overflow to zero": (header(described(shape="(4294967296, 4294967296)")), LimitError),
    "65 dimensions": (header(described(shape=f"({'1,' * 65})")) + bytes(4), LimitError),
    "137 GB": (header(described(shape="(34359738368,)")), TruncatedError),
    "an object": (header(described("'|O'", shape="(2,)")), UnsupportedVersionError),
    "unknown type": (header(described("'<x4'")) + EIGHT, FormatError),
    "no such width": (header(described("'<f3'")) + bytes(6), FormatError),
    "no byte order": (header(described("'|f4'")) + EIGHT, FormatError),
    "native order": (header(described("'=f4'")) + EIGHT, FormatError),
    "width 0": (header(described("'|S0'", shape="(1099511627776,)")), FormatError),
    "void of width 0": (header(described("'|V0'", shape="(1099511627776,)")), FormatError),
    "width 2^31": (header(described("'|S2147483648'", shape="(0,)")), LimitError),
    "width overflow": (header(described("'<U1073741824'", shape="(0,)")), LimitError),
    "a comma list": (header(described("'f4,f4'")) + EIGHT, FormatError),
    "strings": (header(described("'<U1'", shape="(1048577,)")) + bytes(4 * 1048577), LimitError),
    "no character": (header(described("'<U1'")) + b"\xff" * 8, FormatError),
    "half a character": (header(described("'<U1'", shape="(1,)")) + b"\x00\xd8\x00\x00", FormatError),
    "short": (header(described()) + bytes(7), TruncatedError),
    "long": (header(described()) + bytes(9), FormatError),
    "long, empty": (header(described(shape="(0,)")) + b"x", FormatError),
    "an empty structure": (header(described("[]")), FormatError),
    "a member that is none": (header(described("['<f4']")) + EIGHT, FormatError),
    "a member of objects": (header(described("[('a', '|O')]")) + bytes(16), UnsupportedVersionError),
    "a name twice": (header(described("[('a', '<f4'), ('a', '<f4')]")) + bytes(16), FormatError),
    "no name": (header(described("[('', '<f4')]")) + EIGHT, FormatError),
    "a name of numbers": (header(described("[(1, '<f4')]")) + EIGHT, FormatError),
    "a member of 2^40": (header(described("[('a', '<f4', (1048576, 1048576))]")), LimitError),
    "a member's empty overflow": (header(described("[('a', '<f4', (0, 9999999999))]")), LimitError),
    "members nested": (header(described("[('a', " * 20 + "'<f4'" + ")]" * 20), (2, 0)), LimitError),
    "a structure of long doubles": (
        header(described("[('a', '<f16')]")) + bytes(32),
        UnsupportedVersionError,
    ),
    "an escape": (header(described("[('\\q', '<f4')]")) + EIGHT, FormatError),
    "no character as a name": (header(described("[('\\U00110000', '<f4')]")) + EIGHT, FormatError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_malformed_file_is_refused_by_type(case: str) -> None:
    data, error = HOSTILE[case]
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            node(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert caught.value.file == "a.npy"
    assert peak < 64 << 20


def test_python_2_headers_are_read() -> None:
    data = header(described(shape="(2L,)")) + EIGHT
    assert tensor(data).shape == (2,)


def test_every_truncation_is_refused() -> None:
    data = saved(np.arange(4, dtype="<f4"))
    for length in range(len(data)):
        with pytest.raises(FormatError):
            node(data[:length])


def test_headers_longer_than_the_limit_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(LimitError):
        node(header(" " * (MAX_HEADER + 1), (2, 0)))


@settings(max_examples=400)
@given(st.text(alphabet="(){}[],:'\"\\ 0123456789LTrueFalsx<f4|", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_literal(text)
    except FormatError:
        return


values = st.recursive(
    st.booleans()
    | st.integers(0, 10**19)
    | st.text(st.characters(exclude_categories=["Cs"]).filter(str.isprintable), max_size=4),
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab'\"", max_size=2), below, max_size=3)
    ),
    max_leaves=10,
)


@given(values)
def test_what_python_would_show_is_parsed_to_the_same(value: object) -> None:
    assert parse_literal(repr(value)) == value


@settings(max_examples=400)
@given(st.data())
def test_any_flip_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(saved(np.arange(4, dtype="<f4").reshape(2, 2)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        node(bytes(good))
    except FormatError:
        return
