"""PyTorch's own checkpoint package, without its warnings."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Foreign: TypeAlias = Any  # an object of a library without types


class Dcp:
    """What a test asks of `torch.distributed.checkpoint`, without a process group."""

    def __init__(self, torch: Foreign) -> None:
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - only where it is installed
        from torch.distributed.checkpoint import format_utils  # noqa: PLC0415

        self.torch = torch
        self.package: Foreign = dcp
        self._utils: Foreign = format_utils

    def save(self, state: object, folder: Path, **options: object) -> Path:
        """Save with PyTorch's own writer."""
        writer = self.package.FileSystemWriter(folder, **options)
        self.package.save(state, storage_writer=writer, no_dist=True)
        return folder

    def everything(self, folder: Path, place: Path | None = None) -> Foreign:
        """Return what `dcp_to_torch_save` makes of a directory; `place` is where it may write."""
        target = (place or folder.parent) / f"{folder.name}.whole.pt"
        self._utils.dcp_to_torch_save(folder, target)
        return self.torch.load(target, weights_only=False)

    def load(self, state: object, folder: Path) -> None:
        """Load into a state dict with the default planner."""
        self.package.load(state, storage_reader=self.package.FileSystemReader(folder), no_dist=True)


@pytest.fixture
def dcp() -> Iterator[Dcp]:
    """PyTorch's own checkpoint package."""
    torch = pytest.importorskip("torch", reason='needs the extra "torch"')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of process groups that are not there, and deprecations of its own
        yield Dcp(torch)
