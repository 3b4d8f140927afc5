"""Every vector, read by the reference reader and by ckptfmt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import read_ckptfmt

import ckptfmt
from ckptfmt.errors import FormatError
from ckptfmt.tree.document import encode_tree
from tools.make_vectors.store import materialise

if TYPE_CHECKING:
    from collections.abc import Callable

    from refreader.document import JSON

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors"
VALID = sorted(path.parent for path in (VECTORS / "valid").rglob("case.json"))
INVALID = sorted(path.parent for path in (VECTORS / "invalid").rglob("case.json"))


def name_of(case: Path) -> str:
    return "/".join(case.relative_to(VECTORS).parts[1:])


class Found(NamedTuple):
    """What a reader finds, in the words of ``case.json``."""

    root: JSON
    bag: JSON
    step: JSON
    tree: JSON


def by_reference(path: Path) -> Found:
    state = read_ckptfmt.read(path)
    return Found(state.root, state.bag, state.step, read_ckptfmt.show(state.tree, state.tensors))


def told_of(tensor: ckptfmt.Tensor) -> read_ckptfmt.Tensor:
    data = bytes(tensor.bytes())
    digest = ckptfmt.digest(tensor).tensors[""]
    return read_ckptfmt.Tensor(
        tensor.dtype.name, list(tensor.shape), digest.hex(), data if len(data) <= 64 else None
    )


def by_ckptfmt(path: Path) -> Found:
    with ckptfmt.load(path, verify="full") as found:
        met: dict[int, ckptfmt.Tensor] = {}

        def index_of(tensor: ckptfmt.Tensor) -> int:
            met.setdefault(id(tensor), tensor)
            return list(met).index(id(tensor))

        form = encode_tree(found.tree, index_of)
        tree = read_ckptfmt.show(form, [told_of(tensor) for tensor in met.values()])
        root, bag = (digest.hex() if digest else None for digest in (found.root, found.bag))
        return Found(root, bag, found.step, tree)


READERS = pytest.mark.parametrize("read", [by_reference, by_ckptfmt])


@READERS
@pytest.mark.parametrize("case", VALID, ids=name_of)
def test_a_valid_vector_is_read_as_it_says(case: Path, read: Callable[[Path], Found], tmp_path: Path) -> None:
    told = json.loads((case / "case.json").read_text(encoding="utf-8"))
    found = read(materialise(case, tmp_path / "checkpoint"))
    assert found == Found(told["root"], told["bag"], told["step"], told["tree"])


@pytest.mark.parametrize("case", INVALID, ids=name_of)
def test_the_reference_reader_refuses_an_invalid_vector_by_its_rule(case: Path, tmp_path: Path) -> None:
    told = json.loads((case / "case.json").read_text(encoding="utf-8"))
    with pytest.raises(read_ckptfmt.RejectedError) as caught:
        read_ckptfmt.read(materialise(case, tmp_path / "checkpoint"))
    assert (caught.value.rule, caught.value.kind) == (told["rule"], told["kind"])


@pytest.mark.parametrize("case", INVALID, ids=name_of)
def test_load_refuses_an_invalid_vector_by_its_rule(case: Path, tmp_path: Path) -> None:
    told = json.loads((case / "case.json").read_text(encoding="utf-8"))
    with pytest.raises(FormatError) as caught:
        ckptfmt.load(materialise(case, tmp_path / "checkpoint"), verify="full")
    assert (caught.value.rule, caught.value.kind) == (told["rule"], told["kind"])


@pytest.mark.parametrize("case", VALID, ids=name_of)
def test_check_finds_nothing_in_a_valid_vector(case: Path, tmp_path: Path) -> None:
    report = ckptfmt.check(materialise(case, tmp_path / "checkpoint"))
    assert report.ok, report.findings


@pytest.mark.parametrize("case", INVALID, ids=name_of)
def test_check_finds_the_rule_of_an_invalid_vector(case: Path, tmp_path: Path) -> None:
    told = json.loads((case / "case.json").read_text(encoding="utf-8"))
    report = ckptfmt.check(materialise(case, tmp_path / "checkpoint"))
    found = {(finding.rule, finding.kind) for finding in report.findings}
    assert (told["rule"], told["kind"]) in found


def test_there_are_at_least_twice_as_many_invalid_vectors_as_valid_ones() -> None:
    assert len(INVALID) >= 2 * len(VALID) > 80
