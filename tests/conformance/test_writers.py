"""Two writers, one specification: the vectors are made again, and ckptfmt.save gives the same bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import ckptfmt
from tools.make_vectors.__main__ import all_cases, case_folder, differences
from tools.make_vectors.cases import VALID, Invalid, Valid
from tools.make_vectors.store import materialise

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, dict[str, int | tuple[str, ...]]] = {
    "shards/several": {"shard_size": 16},
    "shards/groups": {"separate": ("b/*", "*/y")},
}
CASES = all_cases()
OTHERS = ("coded/", "versions/", "shared/in-tags")
"""Frames and minor versions are the writer's own; sharing out of a tag's attributes is not kept by `save`."""
RAW = [case for case in VALID if not case.name.startswith(OTHERS)]


def case_name(case: Valid | Invalid) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_case_is_made_as_it_is_stored(case: Valid | Invalid) -> None:
    assert differences(case) == []


def test_no_vector_is_stored_that_is_not_made() -> None:
    folder = case_folder(CASES[0]).parents[2]
    stored = {path.parent for path in folder.rglob("case.json")}
    assert stored == {case_folder(case) for case in CASES}


@pytest.mark.parametrize("case", RAW, ids=case_name)
def test_save_gives_the_bytes_of_the_other_writer(case: Valid, tmp_path: Path) -> None:
    source = materialise(case_folder(case), tmp_path / "source")
    told = json.loads((source / "manifest.json").read_bytes())
    files = {name: source / name for name, _, _ in told["extra_files"]}
    options = OPTIONS.get(case.name, {})
    with ckptfmt.load(source) as found:
        ckptfmt.save(
            found.tree,
            tmp_path / "saved",
            step=told["step"],
            extra=told["extra"],
            extra_files=files,
            **options,  # type: ignore[arg-type]  # each as `save` takes it
        )
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    expected = {path.name: path.read_bytes() for path in source.iterdir()}
    saved["provenance.json"] = expected["provenance.json"]
    assert sorted(saved) == sorted(expected)
    assert [name for name in saved if saved[name] != expected[name]] == []


@pytest.mark.parametrize("codec", ["zstd", "planes+zstd"])
def test_the_reference_reader_reads_what_save_codes(codec: str, tmp_path: Path) -> None:
    import read_ckptfmt  # noqa: PLC0415 - found through conftest

    for case in VALID:
        source = materialise(case_folder(case), tmp_path / case.name.replace("/", "-"))
        target = tmp_path / "coded"
        with ckptfmt.load(source) as found:
            ckptfmt.save(found.tree, target, codec=codec, overwrite=target.exists())
        told = json.loads((case_folder(case) / "case.json").read_text("utf-8"))
        state = read_ckptfmt.read(target)
        assert (state.root, state.bag) == (told["root"], told["bag"]), case.name
