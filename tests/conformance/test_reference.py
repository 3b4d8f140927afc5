"""The reference reader stands alone: what it imports, what it prints, how it ends, what it costs."""

from __future__ import annotations

import ast
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import read_ckptfmt
from refreader.document import RejectedError, digest
from refreader.manifest import Row
from refreader.nodes import TreeReader

import ckptfmt
from tools.make_vectors.store import materialise

SPEC = Path(__file__).resolve().parents[2] / "spec"
READER = SPEC / "reference" / "read_ckptfmt.py"
SOURCES = sorted((SPEC / "reference").rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
W = struct.pack("<4f", 1, 2, 3, 4)
TENSOR = "7f0273b1d30fe83f562753e231fe50a6926453548c3f9bdcae6426398aedf193"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(READER), *arguments], capture_output=True, text=True, check=False
    )


def imported(source: Path) -> set[str]:
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    plain = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in plain if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in plain if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_it_imports_the_standard_library_blake3_and_zstandard_only() -> None:
    found = set[str]().union(*map(imported, SOURCES)) - {"refreader"}
    assert found - sys.stdlib_module_names == {"blake3", "zstandard"}


def test_it_reads_raw_shards_without_zstandard() -> None:
    case = SPEC / "vectors" / "valid" / "ties" / "names" / "checkpoint"
    program = (
        "import sys; sys.modules['zstandard'] = None; "
        f"sys.path.insert(0, {str(READER.parent)!r}); import read_ckptfmt; read_ckptfmt.read({str(case)!r})"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def lines_of_code(source: Path) -> int:
    """Count the lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    text = source.read_text(encoding="utf-8")
    documented = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    first = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    docstrings = {line for node in first for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.split("#")[0].strip()) for number, line in lines if number not in docstrings)


def test_its_code_stays_short_enough_to_be_read_at_once() -> None:
    assert sum(map(lines_of_code, SOURCES)) <= 600


def test_the_worked_examples_of_the_specification_come_out() -> None:
    chunk = digest(W)
    assert chunk.hex() == "073774334669ea442864e2fee8de793462562b9dc2248d53dcbd1d3a8e70f91d"
    assert Row([], "", "f32", [2, 2], "", 0, 0, "raw", None).tensor_digest(chunk) == TENSOR
    tree = TreeReader([bytes.fromhex(TENSOR)])
    root = tree.node(["map", [["step", 7], ["w", ["tensor", 0]]]]).digest.hex()
    assert root == "462b33f6e410ee9bc2e2265513bb057b64131127cfe758380073c4bd646fbaf3"
    assert tree.node(-26).digest.hex() == "5f88747edc429a6d7ae91b157f59209c634a7fd366db3bb8889f91d41af78433"
    keys = tree.node(["map", [[1, True], ["1", None]]]).digest.hex()
    assert keys == "51b461171bf530a52bf73b829f3ce2bf583010ca31ddf85f72d7eb08d2bdbafa"


def test_it_prints_what_it_reads(tmp_path: Path) -> None:
    ckptfmt.save({"w": np.frombuffer(W, "<f4").reshape(2, 2), "step": 7}, tmp_path / "c", step=7)
    done = run(str(tmp_path / "c"), "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert told["root"] == "462b33f6e410ee9bc2e2265513bb057b64131127cfe758380073c4bd646fbaf3"
    assert told["bag"] == "ee69c28bf0c8c2c1d24d498f8989c2614cda739c390594870cd1752eef9766b8"
    assert (told["step"], told["extra"]) == (7, {})
    tensor = {"dtype": "f32", "shape": [2, 2], "digest": TENSOR}
    assert told["tree"]["value"] == [
        [{"type": "str", "value": "w"}, {"type": "tensor", "value": tensor, "bytes": W.hex()}],
        [{"type": "str", "value": "step"}, {"type": "int", "value": 7}],
    ]


def test_it_says_which_rule_is_broken(tmp_path: Path) -> None:
    case = SPEC / "vectors" / "invalid" / "data" / "first-bit"
    done = run(str(materialise(case, tmp_path / "c")))
    told = json.loads(done.stderr)
    assert (done.returncode, done.stdout) == (1, "")
    assert (told["rule"], told["kind"]) == ("R-052", "checksum")


def test_it_asks_for_one_directory() -> None:
    assert run().returncode == run("a", "b").returncode == 2


def test_a_directory_that_is_not_there_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(RejectedError) as caught:
        read_ckptfmt.read(tmp_path / "nowhere")
    assert (caught.value.rule, caught.value.kind) == ("R-001", "missing-file")


def test_it_keeps_the_bytes_of_small_tensors_only(tmp_path: Path) -> None:
    ckptfmt.save({"a": np.zeros(64, "u1"), "b": np.zeros(65, "u1")}, tmp_path / "c")
    data = [tensor.data for tensor in read_ckptfmt.read(tmp_path / "c").tensors]
    assert sorted(data, key=str) == sorted([None, bytes(64)], key=str)
    kept = [tensor.data for tensor in read_ckptfmt.read(tmp_path / "c", keep=65).tensors]
    assert sorted(map(len, filter(None, kept))) == [64, 65]
