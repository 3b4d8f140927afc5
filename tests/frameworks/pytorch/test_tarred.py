"""Tar archives of before 0.1.10, made by hand: read as PyTorch's own loader does, refused where damaged."""

from __future__ import annotations

import io
import pickle
import resource
import struct
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import CkptError, FormatError, MissingFileError, TruncatedError
from ckptfmt.frameworks.pytorch.tarred import read
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptfmt.tree.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "torch" / "tar" / "state.pt"


def entry(key: int, second: object, cls: str) -> bytes:
    """Return the pickle of a key, a place or another key, and a class of torch."""
    value = b"X%b%b" % (struct.pack("<I", len(second)), second.encode()) if isinstance(second, str) else b""
    if isinstance(second, int):
        value = b"J" + struct.pack("<i", second)
    return b"\x80\x02(J%b%bctorch\n%b\nt." % (struct.pack("<i", key), value, cls.encode())


def stored(key: int, cls: str, data: bytes, count: int) -> bytes:
    return entry(key, "cpu", cls) + struct.pack("<q", count) + data


def described(
    key: int,
    storage: int,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    cls: str = "FloatTensor",
) -> bytes:
    numbers = struct.pack(f"<{2 * len(shape) + 1}q", *shape, *strides, offset)
    return entry(key, storage, cls) + struct.pack("<ii", len(shape), 0) + numbers


def listing(entries: Sequence[bytes]) -> bytes:
    return pickle.dumps(len(entries), 2) + b"".join(entries)


SIX = struct.pack("<6f", *range(6))
FLOATS = [stored(100, "FloatStorage", SIX, 6)]
ONE = [described(1, 100, (2, 3), (3, 1), 0)]


def archive(
    pickled: bytes = b"U\x011Q.",
    storages: Sequence[bytes] = FLOATS,
    tensors: Sequence[bytes] = ONE,
    *,
    views: object = (),
    leave_out: str = "",
) -> bytes:
    listed = pickle.dumps(list(views) if isinstance(views, tuple) else views, 2)
    members = {"storages": listing(storages) + listed, "tensors": listing(tensors), "pickle": pickled}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as made:
        for name, data in members.items():
            if name != leave_out:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                made.addfile(info, io.BytesIO(data))
    return file.getvalue()


def opened(data: bytes, folder: Path) -> Checkpoint:
    path = folder / "m.pt"
    path.write_bytes(data)
    return read(path)


def test_the_plain_case_is_read(tmp_path: Path) -> None:
    with opened(archive(), tmp_path) as checkpoint:
        assert isinstance(checkpoint.tree, Tensor)
        assert checkpoint.tree.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert ckptfmt.detect(tmp_path / "m.pt").name == "torch-tar"
    with pytest.raises(ckptfmt.ConversionError, match="write torch"):
        ckptfmt.write({}, tmp_path / "x.pt", to="torch-tar")


def test_every_storage_has_its_own_type(tmp_path: Path) -> None:
    doubles = stored(200, "DoubleStorage", struct.pack("<2d", 1.5, -2), 2)
    longs = stored(300, "LongStorage", struct.pack("<q", -7), 1)
    tensors = [*ONE, described(2, 200, (2,), (1,), 0), described(3, 300, (1,), (1,), 0, "LongTensor")]
    pickled = b"(U\x011QU\x012QU\x013QU\x011Qt."
    with opened(archive(pickled, [*FLOATS, doubles, longs], tensors), tmp_path) as checkpoint:
        found = checkpoint.tensors()
        assert [tensor.dtype.name for tensor in found.values()] == ["f32", "f64", "i64", "f32"]
        assert found["2"].numpy().tolist() == [-7]
        assert found["0"].identity == found["3"].identity


def test_a_view_of_a_storage_shares_its_memory(tmp_path: Path) -> None:
    tensors = [described(1, 150, (3,), (1,), 0), described(2, 100, (3,), (1,), 2)]
    data = archive(b"(U\x011QU\x012Qt.", FLOATS, tensors, views=((150, 100, 2, 3),))
    with opened(data, tmp_path) as checkpoint:
        one, other = checkpoint.tensors().values()
        assert one.numpy().tolist() == other.numpy().tolist() == [2, 3, 4]
        assert one.identity == other.identity


def test_storages_and_classes_can_be_values(tmp_path: Path) -> None:
    cls = b"(cnet\nNet\nU\x06net.pyU\x0cclass Net: 0tQ"
    pickled = b"(U\x03100Q" + cls + b")\x81}U\x01wU\x011Qsbt."
    with opened(archive(pickled), tmp_path) as checkpoint:
        storage, node = checkpoint.at((0,)), checkpoint.at((1,))
        assert isinstance(storage, Tensor)
        assert storage.numpy().tolist() == list(range(6))
        assert isinstance(node, Opaque)
        assert node.name == "net.Net"
        assert "source-dropped" in {finding.kind for finding in checkpoint.findings}


def test_an_empty_tensor_had_no_dimensions(tmp_path: Path) -> None:
    data = archive(storages=[stored(100, "FloatStorage", b"", 0)], tensors=[described(1, 100, (), (), 0)])
    with opened(data, tmp_path) as checkpoint:
        assert isinstance(checkpoint.tree, Tensor)
        assert checkpoint.tree.shape == (0,)


HUGE = 1 << 40_000  # more digits than Python writes down
REFUSED = {
    "no pickle": (archive(leave_out="pickle"), MissingFileError, "'pickle'"),
    "no tensors": (archive(leave_out="tensors"), MissingFileError, "'tensors'"),
    "a number of entries that is none": (archive(storages=[], tensors=[]), FormatError, "not in the archive"),
    "a reference to nothing": (archive(b"U\x019Q."), FormatError, "not in the archive"),
    "a reference of many digits": (
        archive(pickle.dumps(HUGE, 2)[:-1] + b"Q."),
        FormatError,
        "in the archive",
    ),
    "a key of many digits": (
        archive(storages=[b"\x80\x02(" + pickle.dumps(HUGE, 2)[2:-1] + b"NNt."]),
        FormatError,
        "not a storage's key",
    ),
    "a view of many digits": (archive(views=((HUGE, 100, 0, 1),)), FormatError, "not a view"),
    "a view of nothing, of many digits": (archive(views=((1, 100, HUGE, 1),)), FormatError, "not a view"),
    "a reference that is none": (archive(b"NQ."), FormatError, "not in the archive"),
    "not a storage class": (archive(storages=[stored(100, "Tensor", SIX, 6)]), FormatError, "storage class"),
    "two storages of one key": (archive(storages=FLOATS * 2), FormatError, "two storages"),
    "two tensors of one key": (archive(tensors=ONE * 2), FormatError, "the key 1"),
    "a tensor of no storage": (
        archive(tensors=[described(1, 7, (1,), (1,), 0)]),
        FormatError,
        "a storage 7 that is not there",
    ),
    "a storage too short": (archive(storages=[stored(100, "FloatStorage", SIX, 99)]), TruncatedError, "396"),
    "a negative storage": (archive(storages=[stored(100, "FloatStorage", SIX, -1)]), FormatError, "-1"),
    "a tensor beyond its storage": (
        archive(tensors=[described(1, 100, (7,), (1,), 0)]),
        FormatError,
        "reaches to element 7",
    ),
    "a negative shape": (archive(tensors=[described(1, 100, (-1,), (1,), 0)]), FormatError, "shape"),
    "a negative offset": (archive(tensors=[described(1, 100, (1,), (1,), -1)]), FormatError, "view"),
    "too many dimensions": (
        archive(tensors=[entry(1, 100, "FloatTensor") + struct.pack("<ii", 10**6, 0)]),
        FormatError,
        "1000000 dimensions",
    ),
    "a view of nothing": (archive(views=((150, 7, 0, 1),)), FormatError, "storage 7"),
    "a view beyond its storage": (archive(views=((150, 100, 5, 2),)), FormatError, "a view of bytes"),
    "views that are no list": (archive(views=None), FormatError, "no list of views"),
    "a view that is none": (archive(views=("x",)), FormatError, "not a view"),
    "an unknown call of a tensor": (archive(b"U\x011Q)R."), FormatError, "not the name"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused(kind: str, tmp_path: Path) -> None:
    data, error, match = REFUSED[kind]
    with pytest.raises(error, match=match) as caught:
        opened(data, tmp_path)
    assert isinstance(caught.value, FormatError)
    assert "m.pt" in str(caught.value.file)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evil = b"cposix\nsystem\nU\x0etouch sentinel\x85R."
    for data in (archive(evil), archive(storages=[evil]), archive(tensors=[evil])):
        try:
            opened(data, tmp_path).close()
        except FormatError:
            continue
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_an_archive_that_ends_early_is_truncated_wherever_it_ends(tmp_path: Path) -> None:
    data = archive()
    for length in range(0, len(data.rstrip(b"\0")), 13):
        with pytest.raises(TruncatedError):
            opened(data[:length], tmp_path)


def test_a_member_that_ends_early_is_truncated(tmp_path: Path) -> None:
    listed, views = listing(FLOATS), pickle.dumps([], 2)
    whole = {"storages": listed + views, "tensors": listing(ONE), "pickle": b"U\x011Q."}
    for cut, content in whole.items():
        for length in range(len(content)):
            members = {**whole, cut: content[:length]}
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w:") as made:
                for name, data in members.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    made.addfile(info, io.BytesIO(data))
            with pytest.raises(TruncatedError) as caught:
                opened(file.getvalue(), tmp_path)
            assert cut in str(caught.value.file)


def test_every_changed_byte_of_a_member_gives_a_tree_or_a_typed_error(tmp_path: Path) -> None:
    data = archive()
    for at in [index for index, byte in enumerate(data) if byte]:
        changed = bytes([*data[:at], data[at] ^ 0x15, *data[at + 1 :]])
        try:
            with opened(changed, tmp_path) as checkpoint:
                ckptfmt.digest(checkpoint)
        except CkptError as error:
            assert isinstance(error, FormatError)  # noqa: PT017 - any of them


@pytest.mark.framework
def test_pytorch_reads_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    storages = [*FLOATS, stored(200, "HalfStorage", struct.pack("<4e", 1, -2, 0.5, 8), 4)]
    tensors = [
        *ONE,
        described(2, 100, (3, 2), (1, 3), 0),
        described(3, 150, (2,), (2,), 1),
        described(4, 200, (2, 2), (1, 2), 0, "HalfTensor"),
        described(5, 100, (4, 2), (0, 1), 3),
    ]
    pickled = b"}(" + b"".join(b"U\x01%cU\x01%cQ" % (key, key) for key in b"12345") + b"u."
    path = tmp_path / "m.pt"
    path.write_bytes(archive(pickled, storages, tensors, views=((150, 100, 2, 4),)))
    expected = torch.load(path, weights_only=False)
    with pytest.raises(RuntimeError, match=r"legacy \.tar"):
        torch.load(path, weights_only=True)
    with read(path) as checkpoint:
        assert set(checkpoint.tree) == set(expected)  # type: ignore[arg-type] # a dict
        for name, tensor in checkpoint.tensors().items():
            assert np.array_equal(tensor.numpy(), expected[name.strip('"')].numpy()), name


def test_the_golden_archive_has_headers_of_pax(tmp_path: Path) -> None:
    data = GOLDEN.read_bytes()
    assert b"PaxHeader" in data
    assert ckptfmt.detect(GOLDEN).name == "torch-tar"
    ckptfmt.convert(GOLDEN, tmp_path / "x.pt")
    with ckptfmt.read(tmp_path / "x.pt") as ours, read(GOLDEN) as old:
        assert ckptfmt.digest(ours).root == ckptfmt.digest(old).root


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what Linux tells of a process")
def test_listing_four_gibibytes_reads_little(tmp_path: Path) -> None:
    """The large storage is a hole in the file; the small one lies behind it."""
    count = 1 << 30
    first = entry(200, "cpu", "FloatStorage") + struct.pack("<q", count)
    head, tail = pickle.dumps(2, 2) + first, FLOATS[0] + pickle.dumps([], 2)
    tensors = listing([*ONE, described(2, 200, (count,), (1,), 0)])
    path = tmp_path / "m.pt"
    with path.open("wb") as file:
        for name, parts in (
            ("storages", (head, 4 * count, tail)),
            ("tensors", (tensors, 0, b"")),
            ("pickle", (b"(U\x011QU\x012Qt.", 0, b"")),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(parts[0]) + parts[1] + len(parts[2])
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.write(parts[0])
            file.seek(parts[1], 1)
            file.write(parts[2])
            file.seek(-info.size % 512, 1)
        file.write(bytes(1024))
    read(path).close()  # what is imported is imported now
    before = _touched()
    with ckptfmt.read(path) as checkpoint:
        assert {name: tensor.shape for name, tensor in checkpoint.tensors().items()} == {
            "0": (2, 3),
            "1": (count,),
        }
        assert checkpoint.tensors()["0"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _touched() - before < 16 << 20


def _touched() -> int:
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines())
    faults = resource.getrusage(resource.RUSAGE_SELF)
    return int(rows["rchar"]) + (faults.ru_minflt + faults.ru_majflt) * resource.getpagesize()
