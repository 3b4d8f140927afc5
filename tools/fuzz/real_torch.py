"""The reader of PyTorch files against the real torch: what both read is the same, or a finding says why not.

Only where torch is installed; `weights_only` keeps it from executing anything.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import ckptfmt
from ckptfmt.registry import read_foreign
from tools.fuzz.structure import mutate_zip
from tools.fuzz.target import Target

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["REAL_TORCH"]


def _seeds(_: Path) -> list[bytes]:
    import torch

    base = torch.arange(24.0).reshape(2, 3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model(torch.ones(2, 2)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    kinds = (torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.float8_e5m2)
    values: list[object] = [
        {"base": base, "turned": base.permute(2, 0, 1), "part": base[1, :, ::2], "tied": base},
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        [torch.nn.Parameter(torch.ones(2)), torch.Size([1, 2]), (None, True, 1.5, "a", b"b")],
        {str(kind): torch.ones(3, dtype=kind) for kind in kinds},
        {1: torch.zeros(0, 3), ("a", 2): torch.ones(2).expand(3, 2), "device": torch.device("cpu")},
    ]
    return [_saved(value) for value in values]


def _saved(value: object) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _run(data: bytes, place: Path) -> None:
    path = place / "input.pt"
    path.write_bytes(data)
    with read_foreign(path, "torch") as checkpoint:
        ours, findings = ckptfmt.digest(checkpoint), checkpoint.findings
    theirs = _loaded(path)
    if isinstance(theirs, str):  # which `digest` would take for a path
        return
    if theirs is not None and not findings and ours.root != ckptfmt.digest(theirs).root:
        raise AssertionError(f"torch reads {theirs!r:.300}")


def _loaded(path: Path) -> object:
    """Return what torch loads, or None where it refuses."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, weights_only=True, map_location="cpu")
        except Exception:  # noqa: BLE001 - it raises whatever comes
            return None


REAL_TORCH = Target("real-torch", _seeds, _run, mutate_zip, "torch")
