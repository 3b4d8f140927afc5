"""Files that releases of PyTorch from 1.0 on wrote, against what each of them read back."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptfmt
from ckptfmt.frameworks.pytorch import keys
from ckptfmt.tree.walk import leaves

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

GOLDEN = Path(__file__).parents[2] / "golden" / "torch"
FOLDERS = [GOLDEN / name for name in ("1.0.0-py2.7", "1.0.0-py3.7", "1.4.0", "1.6.0", "2.13.0", "tar")]
FILES = [path for folder in FOLDERS for path in sorted(folder.iterdir()) if path.suffix in (".pt", ".pkl")]
NAMES = {kind.dtype: kind.name for kind in keys.BY_DTYPE.values()}


def shown(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def expected(path: Path) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((path.parent / "expected.json").read_text())[path.name]
    return rows


def described(leaf: Tree) -> object:
    """Return a leaf as the program that made the files describes what PyTorch read."""
    if isinstance(leaf, ckptfmt.Tensor):
        digest = hashlib.sha256(leaf.bytes()).hexdigest()
        return [NAMES[leaf.dtype.name], list(leaf.shape), digest]
    return leaf.hex() if isinstance(leaf, float) else leaf


def found(tree: Tree) -> dict[str, object]:
    """Return leaves by path; of containers without any nothing, as of the hyper-parameters of no group."""
    rows = {"/".join(map(str, path)): described(leaf) for path, leaf in leaves(tree)}
    return {name: row for name, row in rows.items() if row not in ({}, [], ())}


@pytest.mark.parametrize("path", [path for path in FILES if "module" not in path.name], ids=shown)
def test_every_value_is_the_one_that_its_pytorch_read(path: Path) -> None:
    with ckptfmt.read(path) as checkpoint:
        rows = found(checkpoint.tree)
        losses = [finding for finding in checkpoint.findings if finding.severity is ckptfmt.Severity.LOSS]
    assert rows == expected(path)
    assert not losses


@pytest.mark.parametrize("path", [path for path in FILES if "module" in path.name], ids=shown)
def test_the_tensors_of_a_whole_module_are_within_reach(path: Path) -> None:
    with ckptfmt.read(path) as checkpoint:
        tensors = {name: described(tensor) for name, tensor in checkpoint.tensors().items()}
        assert any("source" in finding.kind for finding in checkpoint.findings) is (
            checkpoint.format == "torch-legacy"
        )
    names = {name.replace("state/", "").replace("_modules/", ""): row for name, row in tensors.items()}
    names = {name.replace("_parameters/", "").replace("_buffers/", ""): row for name, row in names.items()}
    names = {name.replace('"', "").replace("/", "."): row for name, row in names.items()}
    assert names == expected(path)


@pytest.mark.parametrize("path", [path for path in FILES if path.name.endswith("views.pt")], ids=shown)
def test_tied_tensors_are_one_and_views_are_told(path: Path) -> None:
    with ckptfmt.read(path) as checkpoint:
        tied = [tensor.identity for name, tensor in checkpoint.tensors().items() if name.startswith("tied")]
        kinds = {finding.kind for finding in checkpoint.findings}
    assert tied[0] == tied[1] is not None
    assert "views-apart" in kinds


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_golden_files_are_the_ones_that_were_made(folder: Path) -> None:
    recorded = dict(re.findall(r'"(.+)" = "([0-9a-f]{64})"', (folder / "MANIFEST.toml").read_text()))
    files = [path for path in folder.iterdir() if path.name != "MANIFEST.toml"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == recorded


FORMATS = {
    "1.0.0-py2.7": {"torch-legacy"},
    "1.4.0": {"torch-legacy", "torch"},
    "2.13.0": {"torch-legacy", "torch"},
    "tar": {"torch-tar"},
}


@pytest.mark.parametrize("folder", FORMATS)
def test_each_file_is_told_by_content(folder: str) -> None:
    assert {ckptfmt.detect(path).name for path in (GOLDEN / folder).glob("*.pt")} == FORMATS[folder]
    assert {ckptfmt.detect(path).name for path in (GOLDEN / folder).glob("*.pkl")} <= {"pickle"}


def test_text_of_python_2_is_utf_8_else_latin_1() -> None:
    with ckptfmt.read(GOLDEN / "1.0.0-py2.7" / "texts.pt") as checkpoint:
        assert set(checkpoint.tree) == {"café", "été", "ü", "n"}  # type: ignore[arg-type] # a dict
        assert checkpoint["ü"] == 2**40  # which Python 2 writes as text


def test_the_keys_of_an_old_optimizer_are_addresses() -> None:
    with ckptfmt.read(GOLDEN / "1.0.0-py2.7" / "adam.pt") as checkpoint:
        state, groups = (checkpoint.at(("optimizer", name)) for name in ("state", "param_groups"))
    assert list(state) != list(range(len(state)))  # type: ignore[arg-type] # a dict
    assert set(groups[0]["params"]) == set(state)  # type: ignore[index, call-overload, arg-type] # the same
