"""Indices of sharded safetensors: names that must not be followed, and both ways of disagreement."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ckptfmt.containers.names import contained_path
from ckptfmt.containers.safetensors import Entry, Header
from ckptfmt.containers.safetensors_index import (
    Index,
    check_index,
    check_shard_name,
    decode_index,
    encode_index,
    stray_shards,
)
from ckptfmt.errors import FormatError, LimitError, MissingFileError
from ckptfmt.storage.reader import MemoryReader

if TYPE_CHECKING:
    from pathlib import Path

TRAVERSALS = [
    "../x.safetensors",
    "..",
    ".",
    "",
    "/etc/passwd",
    "/etc/x.safetensors",
    "a/../../b.safetensors",
    "a/b.safetensors",
    "./a.safetensors",
    "C:\\x.safetensors",
    "C:x.safetensors",
    "\\\\server\\x.safetensors",
    "a\\..\\b.safetensors",
    "..\\b.safetensors",
    "a\0b.safetensors",
    "a\nb.safetensors",
    "x" * 300 + ".safetensors",
    "é" * 130 + ".safetensors",
    "CON",
    "con.safetensors",
    "NUL.safetensors",
    "com1.x.safetensors",
    "LPT9.safetensors",
    "a.safetensors.",
    "a.safetensors ",
    "a.safetensors:stream",
    "*.safetensors",
    "~\ud800.safetensors",
    "config.json",
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_names_that_could_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match="cannot be the name of a shard"):
        check_shard_name(name, file="i")
    text = json.dumps({"weight_map": {"w": name}}).encode()
    with pytest.raises(FormatError) as caught:
        decode_index(MemoryReader(text, "i.json"))
    assert caught.value.file == "i.json"


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "a b.safetensors", "é.safetensors"])
def test_plain_names_pass(name: str) -> None:
    check_shard_name(name, file="i")


def test_links_that_leave_the_directory_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "model", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.safetensors").write_bytes(b"")
    (inside / "real.safetensors").write_bytes(b"")
    (inside / "beside.safetensors").symlink_to("real.safetensors")
    (inside / "out.safetensors").symlink_to(outside / "secret.safetensors")
    (inside / "relative.safetensors").symlink_to("../other/secret.safetensors")
    (inside / "twice.safetensors").symlink_to("relative.safetensors")
    real = contained_path(inside, "real.safetensors", file="i")
    assert real == (inside / "real.safetensors").resolve()
    assert contained_path(inside, "beside.safetensors", file="i") == real
    for name in ("out", "relative", "twice"):
        with pytest.raises(FormatError, match="link that leaves"):
            contained_path(inside, f"{name}.safetensors", file="i")


def test_the_cache_of_huggingface_hub_is_understood(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for blobs in (repository / "blobs", tmp_path / "models--other" / "blobs"):
        blobs.mkdir(parents=True)
        (blobs / "abc").write_bytes(b"")
    (snapshot / "ours.safetensors").symlink_to("../../blobs/abc")
    (snapshot / "foreign.safetensors").symlink_to("../../../models--other/blobs/abc")
    assert contained_path(snapshot, "ours.safetensors", file="i").name == "abc"
    with pytest.raises(FormatError, match="link that leaves"):
        contained_path(snapshot, "foreign.safetensors", file="i")


def test_a_directory_reached_by_a_link_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.safetensors").write_bytes(b"")
    (tmp_path / "link").symlink_to("real")
    assert contained_path(tmp_path / "link", "a.safetensors", file="i").parent.name == "real"


def test_an_index_is_written_as_huggingface_hub_does() -> None:
    data = encode_index({"b": "x.safetensors", "a": "y.safetensors"}, 12)
    assert data == (
        b'{\n  "metadata": {\n    "total_size": 12\n  },\n  "weight_map": {\n'
        b'    "a": "y.safetensors",\n    "b": "x.safetensors"\n  }\n}\n'
    )
    assert decode_index(MemoryReader(data)) == Index({"b": "x.safetensors", "a": "y.safetensors"}, 12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('{"weight_map":{}}', None),
        ('{"weight_map":{},"metadata":{"total_size":7,"more":1.5}}', 7),
        ('{"weight_map":{},"metadata":{"total_size":7.0}}', 7),
        ('{"weight_map":{},"metadata":null}', None),
    ],
)
def test_what_others_write_about_sizes_is_read(text: str, size: int | None) -> None:
    assert decode_index(MemoryReader(text.encode())).total_size == size


MALFORMED = {
    "empty": b"",
    "not UTF-8": b'{"\xff":1}',
    "a list": b"[]",
    "no map": b"{}",
    "map a list": b'{"weight_map":[]}',
    "a number": b'{"weight_map":{"a":1}}',
    "a tensor twice": b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}',
    "two maps": b'{"weight_map":{},"weight_map":{}}',
    "deep": b"[" * 100_000,
    "NaN": b'{"weight_map":{},"metadata":{"total_size":NaN}}',
    "infinite": b'{"weight_map":{},"metadata":{"total_size":1e999}}',
    "half": b'{"weight_map":{},"metadata":{"total_size":1.5}}',
    "negative": b'{"weight_map":{},"metadata":{"total_size":-1}}',
    "true": b'{"weight_map":{},"metadata":{"total_size":true}}',
    "a text": b'{"weight_map":{},"metadata":{"total_size":"7"}}',
    "digits": b'{"weight_map":{},"metadata":{"total_size":' + b"9" * 10_000 + b"}}",
    "cut off": b'{"weight_map":{"a":"x.safete',
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_index_is_refused(case: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_index(MemoryReader(MALFORMED[case], "i.json"))
    assert caught.value.file == "i.json"


def test_more_files_than_a_process_can_open_are_refused() -> None:
    weight_map = {str(k): f"{k}.safetensors" for k in range(10_001)}
    with pytest.raises(LimitError):
        decode_index(MemoryReader(encode_index(weight_map, 0)))


def header(*names: str) -> Header:
    entries = tuple(Entry(name, "U8", (4,), 4 * k, 4 * k + 4) for k, name in enumerate(names))
    return Header(entries, None, 8)


X, Y = "x.safetensors", "y.safetensors"


def test_an_index_that_agrees_passes() -> None:
    check_index(Index({"a": X, "b": Y}, 8), {X: header("a"), Y: header("b")}, file="i")
    check_index(Index({"a": X}, None), {X: header("a")}, file="i")
    check_index(Index({}, 0), {}, file="i")


DISAGREEMENTS: dict[str, tuple[Index, dict[str, Header], str]] = {
    "a missing shard": (Index({"a": X, "b": Y}, 8), {X: header("a")}, "missing files: y.safetensors"),
    "a ghost": (Index({"a": X, "b": X}, 4), {X: header("a")}, "listed but not there: b in x.safetensors"),
    "an unlisted tensor": (Index({"a": X}, 8), {X: header("a", "b")}, "there but not listed: b in x.safe"),
    "another shard": (
        Index({"a": X, "b": Y}, 8),
        {X: header("b"), Y: header("a")},
        "not there: a in x.safetensors, b in y.safetensors; .* not listed: b in x.safetensors, a in y.safe",
    ),
    "in both": (
        Index({"a": X, "b": Y}, 12),
        {X: header("a"), Y: header("a", "b")},
        "there but not listed: a in y.safetensors",
    ),
    "another size": (Index({"a": X}, 5), {X: header("a")}, "total_size is 5, but the tensors have 4"),
}


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_a_disagreement_is_named(case: str) -> None:
    index, headers, message = DISAGREEMENTS[case]
    kind = MissingFileError if case == "a missing shard" else FormatError
    with pytest.raises(kind, match=message) as caught:
        check_index(index, headers, file="i.json")
    assert caught.value.file == "i.json"


def test_all_disagreements_are_in_one_error_of_bounded_length() -> None:
    weight_map = {f"ghost.{k}": X for k in range(1000)} | {"lost": Y}
    headers = {X: header(*(f"unlisted.{k}" for k in range(1000)))}
    with pytest.raises(MissingFileError) as caught:
        check_index(Index(weight_map, 1), headers, file="i")
    message = str(caught.value)
    assert "missing files: y.safetensors" in message
    assert "ghost.0" in message
    assert "unlisted.0" in message
    assert "and 990 more" in message
    assert len(message) < 2000


def test_files_that_no_index_knows_are_strays() -> None:
    names = [X, Y, "z.safetensors", "config.json"]
    assert stray_shards(names, Index({"a": X}, None)) == [Y, "z.safetensors"]
