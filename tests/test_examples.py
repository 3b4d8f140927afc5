"""Every numbered example runs and says what it promises; the data they use are those of the manifest."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NUMBERED = sorted(path.name for path in EXAMPLES.glob("[0-9][0-9]_*.py"))
WITH_TORCH = {"03_torch_module_and_optimizer.py"}


def run(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", [name for name in NUMBERED if name not in WITH_TORCH])
def test_an_example_of_the_base_install_runs(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path).strip()


@pytest.mark.framework
@pytest.mark.parametrize("name", sorted(WITH_TORCH))
def test_an_example_with_torch_runs(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install ckptfmt[torch]")
    assert run(name, tmp_path).strip()


def test_the_demo_shows_equal_roots_and_the_flipped_bit(tmp_path: Path) -> None:
    shown = run("01_convert_and_look_inside.py", tmp_path)
    digests = shown.split("$ ckptfmt digest training.pt step-60 back.pt")[1].split("$ ckptfmt")[0]
    roots = re.findall(r"\b[0-9a-f]{64}\b", digests)
    assert len(roots) >= 3
    assert max(roots.count(root) for root in roots) >= 3
    damaged = shown.split("$ ckptfmt verify damaged")[1]
    assert "data-00001-of-00001.safetensors" in damaged
    assert "(exit code 1, as it should be)" in damaged


def test_the_numbers_of_the_examples_have_no_gap() -> None:
    assert [int(name[:2]) for name in NUMBERED] == list(range(1, len(NUMBERED) + 1))


def test_the_data_are_those_of_the_manifest(examples_data: Path) -> None:
    text = (examples_data / "MANIFEST.toml").read_text(encoding="utf-8")
    rows = re.findall(r'\[files\."([^"]+)"\]\nbytes = (\d+)\nsha256 = "([0-9a-f]{64})"', text)
    assert {name for name, _, _ in rows} == {path.name for path in examples_data.iterdir()} - {
        "MANIFEST.toml"
    }
    for name, size, digest in rows:
        data = (examples_data / name).read_bytes()
        assert len(data) == int(size)
        assert hashlib.sha256(data).hexdigest() == digest
