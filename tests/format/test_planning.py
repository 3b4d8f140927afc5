"""A plan is a pure function of names, types and shapes, and its order leaves no gaps."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfmt.errors import LimitError, OptionError
from ckptfmt.format import planning
from ckptfmt.format.header import encode_header
from ckptfmt.format.planning import PlanOptions, TensorSpec, alignment_class, plan
from ckptfmt.tree.dtypes import dtype

if TYPE_CHECKING:
    from ckptfmt.format.planning import Plan

FIXED = settings(max_examples=100, derandomize=True, deadline=None)


@st.composite
def specs(draw: st.DrawFn) -> list[TensorSpec]:
    names = draw(st.lists(st.text("abc./#0", max_size=4), unique=True, max_size=25))
    kinds = st.sampled_from(["f32", "u8", "i4", "bf16", "s3"]).map(dtype)
    shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
    return [TensorSpec((name, draw(st.integers(0, 3))), draw(kinds), draw(shapes)) for name in names]


@FIXED
@given(given_specs=specs(), seed=st.integers(0, 99), size=st.sampled_from([None, 100, 5000]))
def test_a_plan_does_not_depend_on_the_order_of_its_tensors(
    given_specs: list[TensorSpec], seed: int, size: int | None
) -> None:
    shuffled = random.Random(seed).sample(given_specs, len(given_specs))  # noqa: S311 - an order
    options = PlanOptions(shard_size=size, separate=("a*",))
    assert plan(given_specs, options) == plan(shuffled, options)


@FIXED
@given(given_specs=specs(), size=st.sampled_from([1, 100, 3000]))
def test_tensors_of_a_shard_follow_each_other_in_descending_classes(
    given_specs: list[TensorSpec], size: int
) -> None:
    made = plan(given_specs, PlanOptions(shard_size=size))
    assert sorted(i for shard in made.shards for i in shard.rows) == list(range(len(given_specs)))
    for shard in made.shards:
        end, last = 0, 12
        for row in (made.rows[ordinal] for ordinal in shard.rows):
            assert row.offset == end
            assert row.offset % (1 << alignment_class(row.nbytes)) == 0
            assert alignment_class(row.nbytes) <= last
            end, last = end + row.nbytes, alignment_class(row.nbytes)
        assert shard.data_size == end
        assert end <= size or len([i for i in shard.rows if made.rows[i].nbytes]) == 1 or len(shard.rows) == 1
    assert len({row.name for row in made.rows}) == len(made.rows)


@FIXED
@given(given_specs=specs())
def test_the_length_of_a_header_is_known_before_its_root(given_specs: list[TensorSpec]) -> None:
    made = plan(given_specs, PlanOptions(shard_size=500))
    for index, shard in enumerate(made.shards):
        header = encode_header(b"\xab" * 32, index, len(made.shards), shard.entries)
        assert len(header) == shard.header_size
        assert len(header) % 4096 == 0


def names_of(*paths: tuple) -> dict[tuple, str]:
    made = plan([TensorSpec(path, dtype("u8"), (1,)) for path in paths], PlanOptions())
    return {row.path: row.name for row in made.rows}


def test_names_that_are_taken_get_the_ordinal() -> None:
    found = names_of(("a", "b"), ("a.b",), ("__metadata__",), (0,), ("0",))
    assert sorted(found.values()) == sorted({*found.values()})
    assert "__metadata__" not in found.values()
    assert found["__metadata__",].startswith("__metadata__#")
    assert {found["a", "b"], found["a.b",]} >= {"a.b"}


def shards_of(made: Plan) -> list[list[str]]:
    return [[made.rows[i].name for i in shard.rows] for shard in made.shards]


def test_separate_tensors_lie_in_shards_of_their_own() -> None:
    given_specs = [
        TensorSpec((name,), dtype("u8"), (8,)) for name in ("base.a", "lora.a", "base.b", "lora.b")
    ]
    made = plan(given_specs, PlanOptions(separate=("lora.*",)))
    assert shards_of(made) == [["base.a", "base.b"], ["lora.a", "lora.b"]]
    assert [shard.name for shard in made.shards] == [
        "data-00001-of-00002.safetensors",
        "data-00002-of-00002.safetensors",
    ]


def test_a_header_that_grows_too_long_closes_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_HEADER", 300)
    made = plan([TensorSpec((f"t{i}",), dtype("u8"), (1,)) for i in range(20)], PlanOptions())
    assert len(made.shards) > 3
    assert all(sum(map(len, shard.entries)) <= 300 for shard in made.shards)


def test_a_large_state_has_about_512_shards() -> None:
    given_specs = [TensorSpec((i,), dtype("u8"), (1 << 30,)) for i in range(4096)]  # 4 TiB
    made = plan(given_specs, PlanOptions())
    assert 500 <= len(made.shards) <= 520


def test_only_tensors_of_several_chunks_have_digests_in_chunks_bin() -> None:
    sizes = (4 << 20, (4 << 20) + 1, 9 << 20)
    made = plan([TensorSpec((i,), dtype("u8"), (n,)) for i, n in enumerate(sizes)], PlanOptions())
    assert {row.nbytes: row.chunks for row in made.rows} == {9 << 20: 0, 4 << 20: None, (4 << 20) + 1: 96}
    assert made.chunks_size == 96 + 64


def test_what_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(LimitError):
        plan([TensorSpec(("x" * 5000,), dtype("u8"), (1,))], PlanOptions())
    with pytest.raises(LimitError):
        plan([TensorSpec(("x",), dtype("f64"), (2**53,))], PlanOptions())
    wrong: tuple[dict[str, Any], ...] = ({"codec": "lz4"}, {"shard_size": 0})
    for bad in wrong:
        with pytest.raises(OptionError):
            PlanOptions(**bad)
