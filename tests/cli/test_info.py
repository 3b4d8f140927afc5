from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.app import invoke

if TYPE_CHECKING:
    from pathlib import Path

KILLED = """
import os, sys
from pathlib import Path
from ckptfmt.storage.commit import Staging
with Staging(sys.argv[1]) as staging:
    staging.write_bytes("manifest.json", b"x" * 1000)
    os._exit(9)
"""


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert invoke([*arguments, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert isinstance(made, dict)
    return made


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for step in (9, 10, 100):
        ckptfmt.save({"w": np.zeros(step)}, tmp_path / f"step-{step}", step=step)
    np.savez(tmp_path / "w.npz", w=np.zeros(3))
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def test_steps_are_in_the_order_of_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = document(capsys, "info", str(runs))["checkpoints"]
    assert [(one["name"], one["step"]) for one in listed] == [
        ("w.npz", None),
        ("step-9", 9),
        ("step-10", 10),
        ("step-100", 100),
    ]
    assert [one["complete"] for one in listed] == [None, True, True, True]


def test_what_is_not_complete_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((runs / "step-9").glob("data-*")).unlink()
    (runs / "step-10" / "manifest.json").unlink()
    shard = next((runs / "step-100").glob("data-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    listed = {one["name"]: one for one in document(capsys, "info", str(runs))["checkpoints"]}
    assert "data-00001-of-00001" in listed["step-9"]["problem"]
    assert "manifest.json" in listed["step-10"]["problem"]
    assert "bytes of" in listed["step-100"]["problem"]
    assert [name for name, one in listed.items() if one["complete"] is False] == [
        "step-10",
        "step-100",
        "step-9",
    ]
    assert invoke(["info", str(runs)]) == 0
    assert capsys.readouterr().out.count("NOT COMPLETE") == 3


def test_a_checkpoint_of_a_kind_that_is_not_read_is_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_CHECKPOINT_METADATA").write_bytes(b"{}")
    np.savez(tmp_path / "beside.npz", w=np.ones(1))
    assert invoke(["info", str(tmp_path)]) == 4
    assert "Orbax" in capsys.readouterr().err


def test_a_checkpoint_of_an_index_and_data_is_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        ckptfmt.write({"w": np.ones(3, "f4")}, tmp_path / f"model.ckpt-{step}", to="tensorflow")
    assert len(list(tmp_path.iterdir())) == 4
    listed = document(capsys, "info", str(tmp_path))["checkpoints"]
    assert [(one["name"], one["format"]) for one in listed] == [
        ("model.ckpt-1.index", "tensorflow"),
        ("model.ckpt-2.index", "tensorflow"),
    ]


def test_a_left_over_is_named_and_recover_removes_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(runs / "step-200")], check=False)
    assert killed.returncode == 9
    found = document(capsys, "info", str(runs))["leftovers"]
    assert [(one["kind"], one["state"], one["nbytes"]) for one in found] == [("staging", "gone", 1000)]
    assert found[0]["target"] == str(runs / "step-200")
    assert invoke(["info", str(runs)]) == 0
    assert "ckptfmt recover" in capsys.readouterr().out
    would = document(capsys, "recover", str(runs), "--dry-run")["actions"]
    assert [action["kind"] for action in would] == ["removed"]
    assert document(capsys, "info", str(runs))["leftovers"] == found
    assert document(capsys, "recover", str(runs))["actions"] == would
    assert document(capsys, "info", str(runs))["leftovers"] == []


def test_a_checkpoint_names_what_is_left_beside_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = runs / "step-9"
    shutil.move(ours, runs / "moved")
    subprocess.run([sys.executable, "-c", KILLED, str(ours)], check=False)
    shutil.move(runs / "moved", ours)
    assert [one["kind"] for one in document(capsys, "info", str(ours))["leftovers"]] == ["staging"]
    assert document(capsys, "info", str(runs / "step-10"))["leftovers"] == []


def test_an_overwrite_that_was_cut_short_is_explained_and_recovered(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(runs / "step-300")], check=False)
    staging = next(path for path in runs.iterdir() if path.name.startswith(".step-300") and path.is_dir())
    os.rename(runs / "step-9", f"{str(staging).replace('step-300', 'step-9')}.old")  # noqa: PTH104 - not a Path
    assert invoke(["info", str(runs / "step-9")]) == 5
    assert "ckptfmt recover" in capsys.readouterr().err
    assert invoke(["verify", str(runs / "step-9")]) == 5
    assert invoke(["recover", str(runs / "step-9"), "--force"]) == 0
    assert invoke(["verify", str(runs / "step-9")]) == 0


def test_a_limit_shortens_tables_and_not_totals(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckptfmt.save({str(n): np.zeros(n, np.int8) for n in range(30)}, runs / "many")
    made = document(capsys, "info", str(runs / "many"), "--limit", "4")
    assert len(made["table"]) == 4
    assert made["tensors"] == 30
    assert made["types"] == [{"name": "i8", "tensors": 30, "nbytes": sum(range(30))}]


def test_many_tensors_are_listed_as_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckptfmt.save({f"t{n:05}": np.int8(1)[None] for n in range(20_000)}, tmp_path / "many")
    assert invoke(["info", str(tmp_path / "many")]) == 0
    assert capsys.readouterr().out.count("\n") > 20_000
