"""Streams of before 1.6, made by hand: what they may hold is read, what they may not is refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import CkptError, FormatError, LimitError, MissingFileError, TruncatedError
from ckptfmt.frameworks.pytorch.stream import MAGIC, PROTOCOL, read
from ckptfmt.frameworks.pytorch.stream_writer import write
from ckptfmt.tree.nodes import Opaque
from ckptfmt.tree.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptfmt.tree.checkpoint import Checkpoint

SIX = struct.pack("<Q6f", 6, *range(6))
MACHINE = {
    "protocol_version": PROTOCOL,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


def stream(
    pickled: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    keys: object = None,
    magic: object = MAGIC,
    version: object = PROTOCOL,
    machine: object = MACHINE,
) -> bytes:
    storages = {"0": SIX} if storages is None else storages
    head = b"".join(pickle.dumps(value, 2) for value in (magic, version, machine))
    listed = pickle.dumps(list(storages) if keys is None else keys, 2)
    return head + pickled + listed + b"".join(storages.values())


def storage(
    key: bytes = b"0",
    count: int = 6,
    cls: bytes = b"ctorch\nFloatStorage\n",
    *,
    kind: bytes = b"storage",
    view: bytes = b"N",
) -> bytes:
    return b"(U%c%b%bU%c%bU\x03cpuK%c%btQ" % (len(kind), kind, cls, len(key), key, count, view)


def tensor(
    offset: int = 0,
    shape: tuple[int, ...] = (2, 3),
    strides: tuple[int, ...] = (3, 1),
    *,
    source: bytes | None = None,
    function: bytes = b"_rebuild_tensor_v2",
) -> bytes:
    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"K%c" % value for value in values) + b"t"

    more = b"\x89}" if function == b"_rebuild_tensor_v2" else b""
    view = b"K%c" % offset + numbers(shape) + numbers(strides)
    return b"ctorch._utils\n%b\n(%b%b%btR" % (function, source or storage(), view, more)


def opened(data: bytes, folder: Path) -> Checkpoint:
    path = folder / "m.pt"
    path.write_bytes(data)
    return read(path)


def numbers_of(data: bytes, folder: Path) -> object:
    with opened(data, folder) as checkpoint:
        assert isinstance(checkpoint.tree, Tensor)
        return checkpoint.tree.numpy().tolist()


def test_the_plain_case_is_read(tmp_path: Path) -> None:
    assert numbers_of(stream(tensor() + b"."), tmp_path) == [[0, 1, 2], [3, 4, 5]]
    assert ckptfmt.detect(tmp_path / "m.pt").name == "torch-legacy"


def test_storages_lie_in_the_order_of_their_list(tmp_path: Path) -> None:
    pickled = b"(" + b"".join(tensor(0, (1,), (1,), source=storage(key, 1)) for key in (b"2", b"10")) + b"t."
    storages = {"10": struct.pack("<Qf", 1, 10), "2": struct.pack("<Qf", 1, 2)}
    with opened(stream(pickled, storages), tmp_path) as checkpoint:
        assert [tensor.numpy().tolist() for tensor in checkpoint.tensors().values()] == [[2], [10]]


def test_a_storage_that_is_a_view_of_another_shares_its_memory(tmp_path: Path) -> None:
    view = storage(view=b"(U\x01vK\x02K\x03t")
    pickled = b"(" + tensor(0, (3,), (1,), source=view) + tensor(2, (3,), (1,)) + tensor() + b"t."
    with opened(stream(pickled), tmp_path) as checkpoint:
        tensors = list(checkpoint.tensors().values())
        assert tensors[0].numpy().tolist() == [2, 3, 4]
        assert tensors[0].identity == tensors[1].identity
        assert [finding.kind for finding in checkpoint.findings] == ["views-apart"]


def test_an_empty_storage_has_a_length_too(tmp_path: Path) -> None:
    pickled = tensor(0, (0,), (1,), source=storage(count=0)) + b"."
    assert numbers_of(stream(pickled, {"0": bytes(8)}), tmp_path) == []


def test_no_dimensions_and_no_elements_were_one_before_0_4(tmp_path: Path) -> None:
    pickled = tensor(0, (), (), source=storage(count=0), function=b"_rebuild_tensor") + b"."
    assert numbers_of(stream(pickled, {"0": bytes(8)}), tmp_path) == []
    pickled = tensor(1, (), (), function=b"_rebuild_tensor") + b"."
    assert numbers_of(stream(pickled), tmp_path) == 1


VARIABLES = {
    "argument": b"\x85\x81(\x88\x89Ntb",
    "state": b"0)\x81(" + tensor() + b"NN\x88\x89tb",
}


@pytest.mark.parametrize("kind", VARIABLES)
@pytest.mark.parametrize(
    "cls", [b"ctorch.nn.parameter\nParameter\n", b"ctorch.autograd.variable\nVariable\n"]
)
def test_parameters_of_before_0_4_are_tensors(kind: str, cls: bytes, tmp_path: Path) -> None:
    pickled = cls + tensor() + VARIABLES[kind] + b"."
    with opened(stream(pickled), tmp_path) as checkpoint:
        assert isinstance(checkpoint.tree, Tensor)
        assert checkpoint.tree.tag is not None
        assert checkpoint.tree.tag.attributes == {"requires_grad": True}
        assert checkpoint.tree.tag.name == cls[1:-1].decode().replace("\n", ".")


def test_classes_of_modules_come_with_their_source_once(tmp_path: Path) -> None:
    cls = b"(U\x06modulecnet\nNet\nU\x06net.pyU\x0cclass Net: 0tQ"
    first = cls + b")\x81}U\x01w" + tensor() + b"sb"
    second = b"cnet\nNet\n)\x81}U\x01w" + tensor() + b"sb"
    with opened(stream(b"(" + first + second + b"t."), tmp_path) as checkpoint:
        nodes = [checkpoint.at((index,)) for index in (0, 1)]
        assert [node.name for node in nodes if isinstance(node, Opaque)] == ["net.Net", "net.Net"]
        assert [f.kind for f in checkpoint.findings] == ["opaque", "source-dropped"]
        assert sorted(checkpoint.tensors()) == ["0/state/w", "1/state/w"]


def test_the_machine_that_wrote_a_stream_does_not_matter(tmp_path: Path) -> None:
    for machine in ({**MACHINE, "little_endian": False}, {}):
        data = stream(tensor() + b".", machine=machine)
        assert numbers_of(data, tmp_path) == [[0, 1, 2], [3, 4, 5]]


def test_what_follows_the_last_storage_is_told(tmp_path: Path) -> None:
    data = stream(tensor() + b".")
    with opened(data + b"more", tmp_path) as checkpoint:
        assert [(f.kind, f.offset) for f in checkpoint.findings] == [("trailing-bytes", len(data))]


PLAIN = tensor() + b"."
HUGE = 1 << 40_000  # more digits than Python writes down
REFUSED = {
    "another number": (stream(PLAIN, magic=MAGIC + 1), FormatError, "begins otherwise"),
    "another version": (stream(PLAIN, version=1002), FormatError, "1002"),
    "another number of many digits": (stream(PLAIN, magic=HUGE), FormatError, "begins otherwise"),
    "a version of many digits": (stream(PLAIN, version=HUGE), FormatError, "an integer of 40001 bits"),
    "a key of many digits": (stream(PLAIN, keys=[HUGE]), FormatError, "no string"),
    "a view of many digits": (
        stream(tensor(source=storage(view=b"(U\x01v" + pickle.dumps(HUGE, 2)[2:-1] + b"K\x01t")) + b"."),
        FormatError,
        "without bounds",
    ),
    "no machine": (stream(PLAIN, machine=[]), FormatError, "machine"),
    "no list of storages": (stream(PLAIN, keys={"0": 1}), FormatError, "list of storages"),
    "a key that is no string": (stream(PLAIN, keys=[None]), FormatError, "no string"),
    "the same storage twice": (stream(PLAIN, {"0": SIX * 2}, keys=["0", "0"]), FormatError, "two storages"),
    "a storage that nothing has": (stream(PLAIN, {"0": SIX, "7": SIX}), FormatError, "nothing refers to"),
    "a storage that is not there": (stream(PLAIN, {}), MissingFileError, "no storage '0'"),
    "a negative length": (stream(PLAIN, {"0": b"\xff" * 8 + SIX}), FormatError, "-1 elements"),
    "a huge length": (stream(PLAIN, {"0": b"\xff" * 7 + b"\x7f"}), TruncatedError, "bytes by its length"),
    "a length that is not the pickle's": (
        stream(tensor(source=storage(count=7)) + b"."),
        FormatError,
        "24 bytes where the pickle says 28",
    ),
    "two types of one storage": (
        stream(b"(" + tensor() + tensor(source=storage(cls=b"ctorch\nDoubleStorage\n")) + b"t."),
        FormatError,
        "24 bytes where the pickle says 48",
    ),
    "a view beyond its storage": (
        stream(tensor(0, (1,), (1,), source=storage(view=b"(U\x01vK\x04K\x03t")) + b"."),
        FormatError,
        "a view of bytes 16 to 28",
    ),
    "a tensor beyond its view": (
        stream(tensor(0, (3,), (1,), source=storage(view=b"(U\x01vK\x04K\x02t")) + b"."),
        FormatError,
        "reaches to element 3",
    ),
    "a view of no bounds": (
        stream(tensor(source=storage(view=b"(U\x01vNNt")) + b"."),
        FormatError,
        "without bounds",
    ),
    "a view that is no tuple": (stream(tensor(source=storage(view=b"K\x01")) + b"."), FormatError, "view"),
    "another kind of reference": (stream(storage(kind=b"command") + b".", {}), FormatError, "no storage"),
    "a tensor beyond its storage": (stream(tensor(1) + b"."), FormatError, "reaches to element 7"),
    "call of a tensor": (stream(tensor() + b")R."), FormatError, "not the name"),
    "items on a tensor": (stream(tensor() + b"K\x01K\x02s."), FormatError, "items"),
    "extension": (stream(b"\x82\x01."), FormatError, "registry"),
    "dotted gadget called": (
        stream(b"cbuiltins\ngetattr\ncbuiltins\ngetattr\nctorch\nx\nU\x01y\x86RU\x06system\x86R)R.", {}),
        FormatError,
        "not the name",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused(kind: str, tmp_path: Path) -> None:
    data, error, match = REFUSED[kind]
    with pytest.raises(error, match=match) as caught:
        opened(data, tmp_path)
    assert isinstance(caught.value, FormatError)
    assert str(tmp_path / "m.pt") in str(caught.value.file)


TOUCH = b"U\x0etouch sentinel\x85R."
NOTHING_RUN = [
    b"cposix\nsystem\n" + TOUCH,
    b"\x8c\x05torch\x8c\x17serialization.os.system\x93" + TOUCH,
    b"(U\x0etouch sentinelios\nsystem\n.",
    b"ctorch.storage\n_load_from_bytes\nC\x10cos\nsystem\nX(t\x85R\x85R.",
    b"(U\x06modulecos\nsystem\nU\x01xU\x01ytQ" + TOUCH,
]


@pytest.mark.parametrize("pickled", NOTHING_RUN)
def test_whatever_is_named_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pickled: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(stream(pickled, {}), tmp_path) as checkpoint:
        assert isinstance(checkpoint.tree, Opaque)
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_code_in_place_of_the_magic_number_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in range(4):
        parts = [pickle.dumps(value, 2) for value in (MAGIC, PROTOCOL, MACHINE, None)]
        parts[place] = b"cposix\nsystem\n" + TOUCH
        try:
            opened(b"".join(parts) + pickle.dumps([]), tmp_path).close()
        except FormatError:
            assert place < 3
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_a_stream_that_ends_early_is_truncated_wherever_it_ends(tmp_path: Path) -> None:
    data = stream(b"}(U\x01a" + tensor() + b"U\x01bX\x02\x00\x00\x00yzu.")
    for length in range(len(data)):
        with pytest.raises(TruncatedError) as caught:
            opened(data[:length], tmp_path)
        assert caught.value.file is not None
    opened(data, tmp_path).close()


def test_every_changed_byte_gives_a_tree_or_a_typed_error(tmp_path: Path) -> None:
    data = stream(b"}(U\x01a" + tensor() + b"U\x01b](K\x01X\x02\x00\x00\x00yzeu.")
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            try:
                with opened(bytes([*data[:at], data[at] ^ change, *data[at + 1 :]]), tmp_path) as checkpoint:
                    ckptfmt.digest(checkpoint)
            except CkptError as error:
                assert isinstance(error, FormatError)  # noqa: PT017 - any of them


def test_small_files_cannot_claim_large_tensors(tmp_path: Path) -> None:
    wide = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage() + b"K\x00J\xff\xff\xff\x7f\x85K\x00\x85\x89}tR."
    )
    with pytest.raises(LimitError, match="claim more than"):
        opened(stream(wide), tmp_path)


def test_a_tensor_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    data = stream(tensor(source=storage(count=6)) + b".", {"0": SIX})
    path.write_bytes(data)
    with read(path) as checkpoint:
        with path.open("r+b") as file:
            file.seek(len(data) - 4)
            file.write(struct.pack("<f", 9))
        assert checkpoint.tree.numpy().tolist() == [[0, 1, 2], [3, 4, 9]]  # type: ignore[union-attr] # a tensor


SCRIPT = """
import sys, numpy
from ckptfmt.frameworks.pytorch.stream_writer import write
tree = {"s": {"x", "yy", "zzz", ("t", 1)}}
import ckptfmt
for i in range(12):
    tree[f"w{i}"] = ckptfmt.Tensor.of(numpy.full(3, i))
write(tree, sys.argv[1])
"""


def test_bytes_do_not_depend_on_the_process_or_the_name(tmp_path: Path) -> None:
    digests = set()
    for seed in ("1", "2", "3"):
        path = tmp_path / f"{seed}.pt"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", SCRIPT, str(path)], env=environment, check=True)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    with read(path) as checkpoint:
        assert [tensor.numpy().tolist() for tensor in checkpoint.tensors().values()] == [
            [i] * 3 for i in range(12)
        ]


def test_what_is_written_is_laid_out_as_pytorch_does(tmp_path: Path) -> None:
    tree: ckptfmt.Tree = {f"w{i}": Tensor.of(np.full(2, i, np.int16)) for i in range(11)}
    write(tree, tmp_path / "m.pt")
    data = (tmp_path / "m.pt").read_bytes()
    assert data.startswith(bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de9032e"))
    order = sorted(map(str, range(11)))
    tail = b"".join(struct.pack("<Qhh", 2, int(key), int(key)) for key in order)
    assert data.endswith(tail)
