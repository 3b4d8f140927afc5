"""Train two tiny models and write their checkpoints into examples/data; run by a person, never by a test.

The first is a convolutional network with batch normalisation and a tied weight, trained by the real
PyTorch with Adam and a schedule, and written with `torch.save`. The second is a perceptron written in
numpy and saved with `numpy.savez`. Data are made up: images of bars at four angles, from a fixed seed.
MANIFEST.toml records versions, command and SHA-256.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "examples" / "data"
SNAPSHOT = ROOT / "tests" / "golden" / "chainer" / "7.8.1" / "adam-snapshot_iter_3"
"""Of the real Chainer, which has its own tool and its own Python."""
CLASSES = ("horizontal", "vertical", "rising", "falling")
SIDE = 16
STEPS = 60
BATCH = 32
SEED = 20261130

Arrays = dict[str, np.ndarray]


class BarNet(nn.Module):
    """Two convolutions; the scores are inner products with the label embedding, which is one tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.project = nn.Linear(256, 32)
        self.label_embedding = nn.Embedding(len(CLASSES), 32)
        self.score = nn.Linear(32, len(CLASSES), bias=False)
        self.score.weight = self.label_embedding.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, 4) for images of shape (batch, 1, 16, 16)."""
        return cast("torch.Tensor", self.score(self.project(self.features(images))))


def bars(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy float32 images of shape (count, 1, 16, 16) and int64 labels of shape (count,)."""
    labels = generator.integers(0, len(CLASSES), count)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    phases = np.stack([rows, columns, rows + columns, rows - columns])[labels]
    shift = generator.uniform(0, 6, (count, 1, 1))
    noise = generator.normal(0, 0.5, (count, SIDE, SIDE))
    images = np.sin(phases * (2 * np.pi / 6) + shift) + noise
    return images[:, None].astype(np.float32), labels.astype(np.int64)


def train_with_torch(path: Path) -> float:
    """Train the network and write its whole training state; return the last loss."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    generator = np.random.default_rng(SEED)
    model = BarNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    loss = torch.zeros(())
    for _ in range(STEPS):
        images, labels = (torch.from_numpy(array) for array in bars(generator, BATCH))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
        "step": STEPS,
        "loss": loss.item(),
        "classes": CLASSES,
        "rng": torch.get_rng_state(),
    }
    torch.save(state, path)
    return loss.item()


def train_with_numpy(path: Path) -> float:
    """Train a perceptron with one hidden layer by gradient descent; return the last loss."""
    generator = np.random.default_rng(SEED)
    weights: Arrays = {
        "hidden/W": generator.normal(0, 0.05, (SIDE * SIDE, 24)).astype(np.float32),
        "hidden/b": np.zeros(24, np.float32),
        "output/W": generator.normal(0, 0.2, (24, len(CLASSES))).astype(np.float32),
        "output/b": np.zeros(len(CLASSES), np.float32),
    }
    loss = 0.0
    for _ in range(STEPS):
        images, labels = bars(generator, 128)
        loss = _descend(weights, images.reshape(len(labels), -1), labels)
    np.savez(path, **weights, step=np.int64(STEPS))  # type: ignore[arg-type]
    return loss


def _descend(weights: Arrays, images: np.ndarray, labels: np.ndarray, rate: float = 0.5) -> float:
    hidden = np.tanh(images @ weights["hidden/W"] + weights["hidden/b"])
    scores = hidden @ weights["output/W"] + weights["output/b"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    picked = np.arange(len(labels)), labels
    loss = float(-np.log(chances[picked]).mean())
    chances[picked] -= 1
    chances /= len(labels)
    below = (chances @ weights["output/W"].T) * (1 - hidden**2)
    weights["output/W"] -= rate * hidden.T @ chances
    weights["output/b"] -= rate * chances.sum(axis=0)
    weights["hidden/W"] -= rate * images.T @ below
    weights["hidden/b"] -= rate * below.sum(axis=0)
    return loss


def manifest(losses: dict[str, float | None]) -> str:
    """Return what there is to know about the files."""
    lines = [
        "# Written by tools/make_examples.py.",
        'command = "python -m tools.make_examples"',
        f'python = "{platform.python_version()}"',
        f'numpy = "{np.__version__}"',
        f'torch = "{torch.__version__}"',
    ]
    for name, loss in losses.items():
        data = (DATA / name).read_bytes()
        lines += [
            "",
            f'[files."{name}"]',
            f"bytes = {len(data)}",
            f'sha256 = "{hashlib.sha256(data).hexdigest()}"',
        ]
        lines += [] if loss is None else [f"last_loss = {loss:.6f}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files."""
    DATA.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SNAPSHOT, DATA / "snapshot_iter_3")
    losses = {
        "training.pt": train_with_torch(DATA / "training.pt"),
        "perceptron.npz": train_with_numpy(DATA / "perceptron.npz"),
        "snapshot_iter_3": None,
    }
    (DATA / "MANIFEST.toml").write_text(manifest(losses), encoding="utf-8")
    print(manifest(losses), end="")


if __name__ == "__main__":
    main()
