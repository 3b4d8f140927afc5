"""Save a PyTorch module and its optimizer, restore both, and go on as if nothing had happened.

Needs the extra `torch`. The interrupted run and the one that never stopped end with the same bits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import ckptfmt
from ckptfmt.frameworks.pytorch.live import restore


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a new model and its optimizer."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Do some steps; the data of a step depend on its number only."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(64, 16, generator=generator)
        labels = torch.randint(0, 4, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def main() -> None:
    """Train, save, go on; restore elsewhere, go on; compare."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, optimizer = make()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "step-10"

        train(model, optimizer, 0, 10)
        receipt = ckptfmt.save({"model": model, "optimizer": optimizer}, path, step=10)
        print(f"saved {receipt.tensors} tensors, {receipt.nbytes} bytes; root {receipt.root.hex()}")
        train(model, optimizer, 10, 20)

        torch.manual_seed(1)  # other initial weights, all of which are replaced
        again, its_optimizer = make()
        with ckptfmt.load(path) as checkpoint:
            restore(checkpoint.tree, {"model": again, "optimizer": its_optimizer})
        train(again, its_optimizer, 10, 20)

        one = ckptfmt.digest({"model": model, "optimizer": optimizer})
        other = ckptfmt.digest({"model": again, "optimizer": its_optimizer})
        print("after ten more steps, the same bits:", one.root == other.root)

        # For a colleague who has PyTorch only: a file that loads without trusting anybody.
        ckptfmt.convert(path, Path(name) / "step-10.pt")
        state = torch.load(Path(name) / "step-10.pt", weights_only=True)
        again.load_state_dict(state["model"])
        its_optimizer.load_state_dict(state["optimizer"])
        print("torch.load(weights_only=True) has:", *state)


if __name__ == "__main__":
    main()
