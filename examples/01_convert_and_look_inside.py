"""The main job, on a real file: convert a PyTorch checkpoint, look inside, find damage, compare.

Needs the base install only: PyTorch is not imported, and nothing in the file is executed. Every command
is printed before it runs, so that each can be typed by hand. Works in a temporary folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np

import ckptfmt
from ckptfmt.tree.walk import replaced

DATA = Path(__file__).resolve().parent / "data"
CKPTFMT = Path(sys.executable).parent / "ckptfmt"


def say(text: str) -> None:
    """Print a paragraph."""
    print("\n" + textwrap.fill(" ".join(text.split()), 100), flush=True)


def run(folder: Path, *arguments: str, expected: int = 0) -> None:
    """Print and run one ckptfmt command; stop the example if it does not end as it should."""
    print("\n  $ ckptfmt", *arguments, flush=True)
    done = subprocess.run([CKPTFMT, *arguments], cwd=folder, check=False)
    if done.returncode != expected:
        sys.exit(f"exit code {done.returncode}, but {expected} was expected")
    if expected:
        print(f"  (exit code {expected}, as it should be)", flush=True)


def convert(folder: Path) -> None:
    """Turn the .pt into our format and on into others."""
    say("""training.pt is the whole state of a small training run, written by PyTorch 2.13 with torch.save: a
        convolutional network, its Adam optimizer, its schedule and a few plain values. What is inside?""")
    run(folder, "info", "training.pt")
    say("""Tensors, plain values, and sums. label_embedding.weight and score.weight are one tied tensor. Now
        into our own format. A checkpoint is a directory: data files that any safetensors reader opens, and a
        manifest that says what belongs to it, with a digest over every byte. What was written is read again
        and compared before convert says that it is done.""")
    run(folder, "convert", "training.pt", "step-60")
    print()
    for path in sorted((folder / "step-60").iterdir()):
        print(f"      step-60/{path.name:34} {path.stat().st_size:>8,} bytes")
    say("""And back. The file that comes out loads in PyTorch with weights_only=True. The root digest is one
        number for the whole state; it depends on names, shapes, types and values, and not on the format.
        So three equal roots mean that nothing was lost on the way there or back.""")
    run(folder, "convert", "step-60", "back.pt")
    run(folder, "digest", "training.pt", "step-60", "back.pt")


def other_formats(folder: Path) -> None:
    """Take the weights out for other programs."""
    say("""Other programs want the weights alone. --include picks a part of the tree; its tensors keep their
        digests in every format, as `digest --tensors` shows.""")
    run(folder, "convert", "step-60", "model.safetensors", "--include", "model")
    run(folder, "convert", "step-60", "model.npz", "--include", "model")
    run(folder, "digest", "--tensors", "model.safetensors")
    with np.load(folder / "model.npz") as plain:
        names = [name for name in plain.files if "weight" in name]
    say(f"numpy alone opens the .npz; it finds, for one, {names[0]!r}.")


def damage(folder: Path) -> None:
    """Flip one bit and look for it."""
    say("""A checkpoint on a disk can rot. verify reads every byte and compares it with its digest.""")
    run(folder, "verify", "step-60")
    shutil.copytree(folder / "step-60", folder / "damaged")
    shard = next((folder / "damaged").glob("data-*"))
    content = bytearray(shard.read_bytes())
    position = len(content) * 2 // 3
    content[position] ^= 0b0000_1000
    shard.write_bytes(content)
    say(f"""Here is a copy in which one bit was flipped: bit 3 of byte {position} of {shard.name}. verify
        names the file, the tensor and the chunk, and ends with exit code 1.""")
    run(folder, "verify", "damaged", expected=1)


def compare(folder: Path) -> None:
    """Change one number and see what differs."""
    say("""Two checkpoints can be compared whatever their formats are. Here the next step is made with a few
        lines of Python: load, change one number in the last place, save.""")
    with ckptfmt.load(folder / "step-60") as checkpoint:
        before = checkpoint.tensors()["model/project.bias"]
        bias = np.array(before)
        bias[0] = np.nextafter(bias[0], np.float32(np.inf))
        after = ckptfmt.Tensor.of(bias)
        tree = replaced(checkpoint.tree, lambda tensor: after if tensor is before else tensor)
        ckptfmt.save(tree, folder / "step-61", step=61)
    run(folder, "diff", "training.pt", "step-61", expected=1)
    say("That is all: one element of one tensor, one unit in the last place. All else is the same bits.")


def main() -> None:
    """Run the parts in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ckptfmt-demo-") as name:
        folder = Path(name)
        shutil.copy(DATA / "training.pt", folder)
        convert(folder)
        other_formats(folder)
        damage(folder)
        compare(folder)


if __name__ == "__main__":
    main()
