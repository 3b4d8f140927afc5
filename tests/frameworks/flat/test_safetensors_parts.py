"""Files whose tensors are parts of larger ones, as the ranks of torch.distributed write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.containers.safetensors import Entry, encode_header
from ckptfmt.containers.safetensors_index import encode_index
from ckptfmt.frameworks.flat.safetensors import read

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"float32": "F32", "int64": "I64", "bfloat16": "BF16", "uint8": "U8"}
WHOLE = np.arange(15, dtype="f4").reshape(5, 3)

Parts = dict[str, tuple[np.ndarray, tuple[int, ...]]]


def put(folder: Path, number: int, parts: Parts, *, info: object = None) -> Path:
    """Write one rank's file: parts with their offsets, and what it tells of them."""
    folder.mkdir(exist_ok=True)
    entries, data = [], b""
    for name, (array, _) in parts.items():
        begin = len(data)
        data += array.tobytes()
        entries.append(Entry(name, KINDS[array.dtype.name], array.shape, begin, len(data)))
    told = {name: {"saved_offsets": list(offset)} for name, (_, offset) in parts.items()}
    text = json.dumps(told if info is None else info) if not isinstance(info, str) else info
    metadata = {"DCP_SHARDING_INFO": text, "DCP_VERSION": "1.0", "format": "pt"}
    path = folder / f"shard-{number:05d}-model-00001-of-00001.safetensors"
    path.write_bytes(encode_header(entries, metadata, align=8) + data)
    return path


def test_parts_are_joined_whatever_their_order(tmp_path: Path) -> None:
    half = WHOLE.astype(ml_dtypes.bfloat16)
    put(tmp_path / "a", 2, {"w": (WHOLE[3:], (3, 0)), "h": (np.ascontiguousarray(half[:, :2]), (0, 0))})
    put(tmp_path / "a", 1, {"w": (WHOLE[:3], (0, 0)), "h": (np.ascontiguousarray(half[:, 2:]), (0, 2))})
    put(tmp_path / "a", 9, {"s": (np.array(7), ())})
    assert ckptfmt.detect(tmp_path / "a").name == "safetensors"
    with ckptfmt.read(tmp_path / "a") as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["parts-joined"]
        wanted = {"w": WHOLE, "h": half, "s": np.array(7)}
        assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(wanted).root
        assert checkpoint.tensors()["w"][2:4, 1].tolist() == [7, 10]


def test_parts_without_elements_may_lie_anywhere(tmp_path: Path) -> None:
    put(tmp_path / "a", 1, {"w": (WHOLE, (0, 0))})
    put(tmp_path / "a", 2, {"w": (WHOLE[:0], (5, 0))})
    put(tmp_path / "a", 3, {"w": (WHOLE[:0], (5, 0))})
    with read(tmp_path / "a") as checkpoint:
        assert checkpoint.tensors()["w"].numpy().tolist() == WHOLE.tolist()


def test_what_was_joined_is_written_as_whole_tensors(tmp_path: Path) -> None:
    put(tmp_path / "a", 1, {"w": (WHOLE[:3], (0, 0))})
    put(tmp_path / "a", 2, {"w": (WHOLE[3:], (3, 0))})
    report = ckptfmt.convert(tmp_path / "a", tmp_path / "b.safetensors")
    assert report.same_root
    assert b"DCP_" not in (tmp_path / "b.safetensors").read_bytes()


BROKEN: dict[str, tuple[Parts, Parts, str]] = {
    "a hole": ({"w": (WHOLE[:2], (0, 0))}, {"w": (WHOLE[3:], (3, 0))}, "w"),
    "the first missing": ({"w": (WHOLE[3:], (3, 0))}, {"v": (WHOLE, (0, 0))}, "w"),
    "an overlap": ({"w": (WHOLE[:3], (0, 0))}, {"w": (WHOLE[2:], (2, 0))}, "overlap"),
    "two types": (
        {"w": (WHOLE[:3], (0, 0))},
        {"w": (WHOLE[3:].astype("i8"), (3, 0))},
        "F32 of 2 .* I64 of 2",
    ),
    "two numbers of dimensions": (
        {"w": (WHOLE[:3], (0, 0))},
        {"w": (WHOLE[3], (3,))},
        "F32 of 2 .* F32 of 1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_parts_that_contradict_each_other_are_refused(case: str, tmp_path: Path) -> None:
    first, second, message = BROKEN[case]
    put(tmp_path / "a", 1, first)
    put(tmp_path / "a", 2, second)
    with pytest.raises(ckptfmt.FormatError, match=message) as caught:
        read(tmp_path / "a")
    assert caught.value.tensor == "w"


def test_replicas_must_agree(tmp_path: Path) -> None:
    put(tmp_path / "a", 1, {"w": (WHOLE, (0, 0))})
    put(tmp_path / "a", 2, {"w": (WHOLE + 1, (0, 0))})
    with read(tmp_path / "a") as checkpoint, pytest.raises(ckptfmt.FormatError):
        checkpoint.tensors()["w"].numpy()


MALFORMED: dict[str, object] = {
    "no JSON": "{",
    "a list": [],
    "a name twice": '{"w": {"saved_offsets": [0, 0]}, "w": {"saved_offsets": [0, 0]}}',
    "a ghost": {"w": {"saved_offsets": [0, 0]}, "ghost": {"saved_offsets": [0]}},
    "nobody": {},
    "no offsets": {"w": {}},
    "no object": {"w": [0, 0]},
    "too few": {"w": {"saved_offsets": [0]}},
    "negative": {"w": {"saved_offsets": [-1, 0]}},
    "a fraction": {"w": {"saved_offsets": [0.5, 0]}},
    "a bool": {"w": {"saved_offsets": [True, 0]}},
    "endless": {"w": {"saved_offsets": [2**60, 0]}},
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_offsets_are_refused(case: str, tmp_path: Path) -> None:
    path = put(tmp_path / "a", 1, {"w": (WHOLE, (0, 0))}, info=MALFORMED[case])
    for given in (path, tmp_path / "a"):
        with pytest.raises(ckptfmt.FormatError) as caught:
            read(given)
        assert caught.value.file == str(path)


def test_one_file_of_a_set_says_so_or_is_refused(tmp_path: Path) -> None:
    first = put(tmp_path / "a", 1, {"w": (WHOLE[:3], (0, 0))})
    second = put(tmp_path / "a", 2, {"w": (WHOLE[3:], (3, 0))})
    with read(first) as checkpoint:
        assert [finding.kind for finding in checkpoint.findings] == ["maybe-parts"]
        assert checkpoint.tensors()["w"].shape == (3, 3)
    with pytest.raises(ckptfmt.FormatError):
        read(second)


def test_an_index_over_parts_lists_each_tensor_once(tmp_path: Path) -> None:
    first = put(tmp_path / "a", 1, {"w": (WHOLE[:3], (0, 0)), "v": (WHOLE, (0, 0))})
    second = put(tmp_path / "a", 2, {"w": (WHOLE[3:], (3, 0)), "u": (WHOLE, (0, 0))})
    index = tmp_path / "a" / "model.safetensors.index.json"
    weights = {"w": first.name, "v": first.name, "u": second.name}
    index.write_bytes(encode_index(weights, 3 * WHOLE.nbytes))
    for given in (index, tmp_path / "a"):
        with read(given) as checkpoint:
            assert checkpoint.tensors()["w"].numpy().tolist() == WHOLE.tolist()
    del weights["w"]
    index.write_bytes(encode_index(weights, 3 * WHOLE.nbytes))
    with pytest.raises(ckptfmt.FormatError, match="there but not listed: w in"):
        read(index)


def test_whole_tensors_in_two_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        path = put(tmp_path / "a", number, {"w": (WHOLE, (0, 0))})
        path.write_bytes(path.read_bytes().replace(b"DCP_SHARDING_INFO", b"DCP_SHARDING_NONE"))
    with pytest.raises(ckptfmt.FormatError, match="in several files"):
        read(tmp_path / "a")


def test_links_that_leave_the_directory_are_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a", 1, {"w": (WHOLE, (0, 0))})
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(ckptfmt.FormatError, match="link that leaves"):
        read(tmp_path / "a")
