"""Names that wrappers of modules have lengthened: told of, never changed by a reader."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.pytorch.wrappers import unwrapped

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["module._orig_mod.a", "module._orig_mod.b.w"], ["a", "b.w"]),
        (["_orig_mod.module.a", "_orig_mod.module.b"], ["a", "b"]),
        (["a._orig_mod.b", "module.c"], ["a.b", "module.c"]),
        (["module.a", "module.module.b"], ["a", "module.b"]),
        (["module.a", "head.b"], ["module.a", "head.b"]),
        (["module"], ["module"]),
        (["a._checkpoint_wrapped_module.b", "_fsdp_wrapped_module.c"], ["a.b", "c"]),
        (["a_orig_mod.b"], ["a_orig_mod.b"]),
        ([], []),
    ],
)
def test_wrappers_go_wherever_they_stand_and_layers_stay(names: list[str], short: list[str]) -> None:
    assert unwrapped(names) == dict(zip(names, short, strict=True))


def test_names_that_would_become_one_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"'a\.b' and 'a\._orig_mod\.b' are both 'a\.b'"):
        unwrapped(["a.b", "a._orig_mod.b"])


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("module.a", "module.b"), "module"),
        (("_orig_mod.a.weight", "b"), "_orig_mod"),
        (("a", "module.b"), None),
        (("module",), None),
    ],
)
def test_a_reader_keeps_such_names_and_tells(
    names: tuple[str, ...], word: str | None, tmp_path: Path
) -> None:
    ckptfmt.write({"model": {name: np.ones(1) for name in names}}, tmp_path / "x.pt")
    with ckptfmt.read(tmp_path / "x.pt") as checkpoint:
        model = checkpoint["model"]
        assert isinstance(model, dict)
        assert tuple(model) == names
        told = [finding for finding in checkpoint.findings if finding.kind == "wrapped-names"]
    assert len(told) == (word is not None)
    for finding in told:
        assert (finding.path, finding.severity) == ("model", ckptfmt.Severity.INFO)
        assert f"({word})" in finding.message


@pytest.mark.framework
def test_names_of_real_wrappers_become_those_of_the_module() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: PLC0415
        checkpoint_wrapper,
    )

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    plain = list(module.state_dict())
    inner = checkpoint_wrapper(module[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what torch.compile imports
        wrapped = torch.nn.DataParallel(torch.compile(torch.nn.Sequential(module[0], inner)))
    names = [name for name, _ in wrapped.named_parameters()]
    assert set(unwrapped(names).values()) == set(plain)
    assert all(name.startswith("module._orig_mod.") for name in names)
