"""Files made to harm: each gives data or a typed error, runs nothing, and stays small. Needs no PyTorch."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import FormatError, LimitError
from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
SIX = np.arange(6, dtype=np.float32).tobytes()


def file_of(
    path: Path,
    pickled: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    method: int = zipfile.ZIP_STORED,
    extra: Mapping[str, bytes] | None = None,
    leave_out: str = "",
) -> Path:
    members = {"m/data.pkl": pickled, "m/version": b"3\n", "m/byteorder": b"little"}
    members |= {f"m/data/{key}": data for key, data in ({"0": SIX} if storages is None else storages).items()}
    members |= dict(extra or {})
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            if name != leave_out:
                archive.writestr(zipfile.ZipInfo(name), data, method)
    return path


def integer(value: int) -> bytes:
    return b"\x8a\x0a" + value.to_bytes(10, "little", signed=True)


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(
    key: bytes = b"0", count: int = 6, cls: bytes = b"ctorch\nFloatStorage\n", kind: bytes = b"storage"
) -> bytes:
    return b"(U%c%b%bU%c%bU\x03cpu%btQ" % (len(kind), kind, cls, len(key), key, integer(count))


def tensor(
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    *,
    source: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    view = integer(offset) + numbers(*shape) + numbers(*strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(%b%b\x89}%btR" % (source or storage(), view, more)


def read_fully(path: Path) -> object:
    with read(path) as checkpoint:
        for found in checkpoint.tensors().values():
            found.numpy()
        return checkpoint.tree


def test_the_plain_case_is_read(tmp_path: Path) -> None:
    tree = read_fully(file_of(tmp_path / "m.pt", tensor() + b"."))
    assert isinstance(tree, Tensor)
    with read(tmp_path / "m.pt") as checkpoint:
        assert isinstance(checkpoint.tree, Tensor)
        assert checkpoint.tree.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


class Command:
    def __init__(self, *args: object) -> None:
        self.args = args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return eval, (f"open({str(Path('sentinel').resolve())!r}, 'w')",)


@pytest.mark.parametrize("protocol", range(6))
def test_calls_become_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = file_of(tmp_path / "m.pt", pickle.dumps({"x": [Command()]}, protocol))
    with read(path) as checkpoint:
        node = checkpoint.at(("x", 0))
        assert isinstance(node, Opaque)
        assert node.name == "builtins.eval"
        assert [f.kind for f in checkpoint.findings] == ["opaque"]
    assert not (tmp_path / "sentinel").exists()


TOUCH = b"U\x0etouch sentinel\x85R"
NOTHING_RUN = {
    "system": b"cposix\nsystem\n" + TOUCH + b".",
    "dotted": b"\x8c\x05torch\x8c\x17serialization.os.system\x93" + TOUCH + b".",
    "old instance": b"(U\x0etouch sentinelios\nsystem\n.",
    "object": b"(cos\nsystem\nU\x0etouch sentinelo.",
    "load from bytes": b"ctorch.storage\n_load_from_bytes\nC\x10cos\nsystem\nX(t\x85R\x85R.",
    "nested pickle": b"cpickle\nloads\nC\x0dcos\nsystem\nR.\x85R.",
    "gadget": b"ctorch.utils.collect_env\nrun\n" + TOUCH + b".",
    "state": b"cos\nsystem\n)\x81}U\x01xcos\nsystem\n" + TOUCH + b"sb.",
    "set state on a module": b"ccollections\nOrderedDict\n)R}U\x09__class__cos\nsystem\nsb.",
    "key": b"}cos\nsystem\n" + TOUCH + b"K\x01s.",
    "set element": b"c__builtin__\nset\n]cos\nsystem\n" + TOUCH + b"a\x85R.",
    "default factory": b"ccollections\ndefaultdict\ncos\nsystem\n\x85R.",
    "parameter of a call": b"ctorch._utils\n_rebuild_device_tensor_from_numpy\n(cos\nsystem\n"
    + TOUCH
    + b"ctorch\nfloat32\nU\x03cpu\x89tR.",
    "type of a call": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncos\nsystem\nU\x01x\x85}tR.",
}


@pytest.mark.parametrize("pickled", NOTHING_RUN.values(), ids=NOTHING_RUN.keys())
def test_whatever_is_named_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pickled: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    read_fully(file_of(tmp_path / "m.pt", pickled))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt"]


def getattr_of(owner: bytes, name: bytes) -> bytes:
    return b"cbuiltins\ngetattr\n" + owner + b"U%c%b\x86R" % (len(name), name)


HUGE = b"\x8b\x00\x10\x00\x00" + b"\x7f" * 4096  # more digits than Python writes down
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n)C\x01btR(K\x01"
REFUSED = {
    "call of a call": getattr_of(getattr_of(b"ctorch\nserialization\n", b"os"), b"system") + TOUCH + b".",
    "call of text": b"U\x02os" + TOUCH + b".",
    "call of a tensor": tensor() + TOUCH + b".",
    "set items on a tensor": tensor() + b"(K\x01K\x02u.",
    "append to a tensor": tensor() + b"K\x01a.",
    "build a tensor": tensor() + b"(K\x00K\x01K\x02tb.",
    "set items on a storage": storage() + b"K\x01K\x02s.",
    "append to an ordered dict": b"ccollections\nOrderedDict\n)RK\x01a.",
    "reaches beyond": tensor(1) + b".",
    "strides reach beyond": tensor(0, (2, 3), (4, 1)) + b".",
    "huge stride": tensor(0, (2,), (2**62,)) + b".",
    "offset of many digits": b"ctorch._utils\n_rebuild_tensor_v2\n("
    + storage()
    + HUGE
    + b"K\x01\x85K\x01\x85\x89}tR.",
    "shape of many digits": b"ctorch._utils\n_rebuild_tensor_v2\n("
    + storage()
    + b"K\x00"
    + HUGE
    + b"\x85K\x01\x85\x89}tR.",
    "stride of many digits": b"ctorch._utils\n_rebuild_tensor_v2\n("
    + storage()
    + b"K\x00K\x02\x85"
    + HUGE
    + b"\x85\x89}tR.",
    "reference of many digits": HUGE + b"Q.",
    "storage of many digits": tensor(
        source=b"(U\x07storagectorch\nFloatStorage\n" + HUGE + b"U\x03cpuK\x06tQ"
    )
    + b".",
    "element type of many digits": b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(" + HUGE + b"))\x89tR.",
    "metadata of many digits": tensor(more=HUGE) + b".",
    "negative stride": tensor(5, (6,), (-1,)) + b".",
    "negative offset": tensor(-1, (2,), (1,)) + b".",
    "negative size": tensor(0, (-2, -3), (3, 1)) + b".",
    "too many dimensions": tensor(0, (1,) * 100, (1,) * 100) + b".",
    "overflowing empty shape": tensor(0, (2**62, 2**62, 0), (1, 1, 1)) + b".",
    "strides of another length": tensor(0, (2, 3), (1,)) + b".",
    "wrong count": tensor(source=storage(count=5)) + b".",
    "negative count": tensor(source=storage(count=-6)) + b".",
    "no such storage": tensor(source=storage(b"9")) + b".",
    "path as key": tensor(source=storage(b"../data.pkl")) + b".",
    "not a storage class": tensor(source=storage(cls=b"cos\nsystem\n")) + b".",
    "another kind of reference": tensor(source=storage(kind=b"command")) + b".",
    "reference on its own": b"K\x07Q.",
    "storage in place of a tensor": b"ctorch._utils\n_rebuild_parameter\n(" + storage() + b"\x89tR.",
    "no storage": tensor(source=b"K\x01") + b".",
    "unknown metadata": tensor(more=b"}U\x03bad\x88s") + b".",
    "a part that is no tensor": b"ctorch._utils\n_rebuild_nested_tensor\n(K\x01K\x02K\x03K\x04tR.",
    "after the end": tensor() + b".x",
    "empty": b"",
    "array in too few bytes": ARRAY + b"K\x64\x85cnumpy\ndtype\nU\x02f4\x85R\x89C\x02abtb.",
    "text beyond unicode": ARRAY + b"K\x01\x85cnumpy\ndtype\nU\x02U1\x85R\x89C\x04\xff\xff\xff\xfftb.",
    "text of surrogates": ARRAY + b"K\x01\x85cnumpy\ndtype\nU\x02U1\x85R\x89C\x04\x00\xd8\x00\x00tb.",
    "surrogates": b"X\x03\x00\x00\x00\xed\xa0\x80.",
    "not a number as key": b"}G\x7f\xf8\x00\x00\x00\x00\x00\x00K\x01s.",
}


@pytest.mark.parametrize("pickled", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused(tmp_path: Path, pickled: bytes) -> None:
    path = file_of(tmp_path / "m.pt", pickled)
    with pytest.raises(FormatError) as caught:
        read_fully(path)
    assert caught.value.file is not None


def test_errors_name_the_tensor(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.pt", b"}U\x05model}U\x01w" + tensor(1) + b"ss.")
    with pytest.raises(FormatError, match="tensor model/w"):
        read(path)


def test_small_files_cannot_claim_large_tensors(tmp_path: Path) -> None:
    wide = tensor(0, (2**60,), (0,))
    many = b"(" + b"".join(tensor(0, (2**20 + i,), (0,)) for i in range(200)) + b"t."
    for pickled in (wide + b".", many):
        with pytest.raises(LimitError, match="claim more than"):
            read(file_of(tmp_path / "m.pt", pickled))
    honest = tensor(0, (1000, 6), (0, 1)) + b"."
    assert isinstance(read_fully(file_of(tmp_path / "m.pt", honest)), Tensor)


def test_archives_of_other_kinds_are_named(tmp_path: Path) -> None:
    plain = pickle.dumps({}, 2)
    for extra, leave_out, match in (
        ({"m/constants.pkl": b""}, "", "TorchScript"),
        ({"m/archive_format": b"pt2"}, "", "torch.export"),
        ({"other/x": b""}, "", "one folder"),
        ({"x": b""}, "", "one folder"),
        ({"m/DATA.pkl": b""}, "", "case only"),
        ({}, "m/version", "'version'"),
        ({}, "m/data.pkl", "'data.pkl'"),
    ):
        with pytest.raises(FormatError, match=match):
            read(file_of(tmp_path / "m.pt", plain, extra=extra, leave_out=leave_out))
    for name, data, match in (
        ("m/version", b"99\n", "version 99"),
        ("m/version", b"x", "malformed version"),
        ("m/byteorder", b"middle", "byte order"),
        ("m/byteorder", b"little" * 100, "where a word must be"),
    ):
        with pytest.raises(FormatError, match=match):
            read(file_of(tmp_path / "m.pt", plain, extra={name: data}))


def test_every_truncated_pickle_is_one_kind_of_error(tmp_path: Path) -> None:
    pickled = b"\x80\x02}(U\x01a" + tensor() + b"U\x01b](K\x01X\x02\x00\x00\x00yzG" + b"\0" * 8 + b"eu."
    for length in range(len(pickled)):
        with pytest.raises(FormatError):
            read(file_of(tmp_path / "m.pt", pickled[:length]))
    read_fully(file_of(tmp_path / "m.pt", pickled))


def test_every_changed_byte_gives_a_tree_or_a_typed_error(tmp_path: Path) -> None:
    pickled = b"\x80\x02}(U\x01a" + tensor() + b"U\x01b](K\x01X\x02\x00\x00\x00yzeu."
    for at in range(len(pickled)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytes([*pickled[:at], pickled[at] ^ change, *pickled[at + 1 :]])
            try:
                read_fully(file_of(tmp_path / "m.pt", changed))
            except FormatError as error:
                assert error.file is not None  # noqa: PT017 - any of them


def bomb(size: int, name: bytes) -> bytes:
    """Return an archive with one member of zeros, deflated."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(MIB)
    raw = b"".join(engine.compress(zeros) for _ in range(size // MIB)) + engine.flush()
    told = (0, 8, 0, 33, zlib.crc32(b""), len(raw), size, len(name), 0)
    head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, *told) + name
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, *told, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), len(head) + len(raw), 0)
    return head + raw + entry + end


def bombs(folder: Path) -> list[Path]:
    """Return small files that would grow without measure in careless hands."""
    doubling = b"]K\x01a" + b"q\x00]h\x00ah\x00a" * 60 + b"."
    nested = b"]" * 1_000_000 + b"a" * 999_999 + b"."
    calls = b"cf\ng\n)R" + b"q\x000cf\ng\nh\x00\x85R" * 100_000 + b"."
    states = (
        b"ccollections\nOrderedDict\n)R"
        + b"q\x000ccollections\nOrderedDict\n)R}U\x01xh\x00sb" * 20_000
        + b"."
    )
    wide = b"(" + b"K\x01" * 1_000_000 + b"l."
    keys = b"}(" + b"".join(b"J%bN" % struct.pack("<i", i) for i in range(1_000_000)) + b"u."
    made = {
        "doubling": doubling,
        "nested": nested,
        "calls": calls,
        "states": states,
        "wide": wide,
        "keys": keys,
        "sets": b"(" + b"\x8f" * 300_000 + b"t.",
        "fewer sets": b"(" + b"\x8f" * 99_000 + b"t.",
        "old text": b"(" + b"U\x00" * 500_000 + b"t.",
        "integer": b"\x8b" + struct.pack("<i", 4 * MIB) + b"\x7f" * (4 * MIB) + b".",
        "marks": b"(" * 4_000_000 + b".",
        "tuples": b")" + b"\x85" * 4_000_000 + b".",
        "hash": b"}" + b")" + b"2\x86" * 100 + b"K\x01s.",
    }
    paths = [
        file_of(folder / f"{name}.pt", pickled, method=zipfile.ZIP_DEFLATED) for name, pickled in made.items()
    ]
    zeros = tensor(0, (64 * MIB,), (1,), source=storage(count=64 * MIB)) + b"."
    paths.append(file_of(folder / "zeros.pt", zeros, {"0": b""}))
    for name in ("m/data.pkl", "m/data/0"):
        paths.append(folder / f"{name.replace('/', '-')}.pt")
        paths[-1].write_bytes(bomb(1024 * MIB, name.encode()))
    return paths


SCRIPT = """
import json, pathlib, re, sys
from ckptfmt.errors import CkptError
from ckptfmt.frameworks.pytorch.reader import read
outcomes = {}
for path in sys.argv[1:]:
    try:
        with read(path) as checkpoint:
            for tensor in checkpoint.tensors().values():
                tensor.numpy()
        outcomes[path] = "read"
    except CkptError as error:
        outcomes[path] = type(error).__name__
peak = re.search(r"VmHWM:\\s*([0-9]+)", pathlib.Path("/proc/self/status").read_text())
print(json.dumps([outcomes, int(peak[1])]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_bombs_stay_small(tmp_path: Path) -> None:
    paths = bombs(tmp_path)
    outcomes = {}
    for path in paths:
        command = [sys.executable, "-c", SCRIPT, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result, peak_kib = json.loads(done.stdout)
        assert peak_kib < 256 * 1024, path
        outcomes[path.stem] = result[str(path)]
    assert outcomes == {
        "doubling": "LimitError",
        "nested": "LimitError",
        "calls": "LimitError",
        "states": "LimitError",
        "wide": "read",
        "keys": "read",
        "sets": "LimitError",
        "fewer sets": "read",
        "old text": "LimitError",
        "integer": "read",
        "marks": "LimitError",
        "tuples": "LimitError",
        "hash": "LimitError",
        "zeros": "FormatError",
        "m-data.pkl": "LimitError",
        "m-data-0": "LimitError",
    }
