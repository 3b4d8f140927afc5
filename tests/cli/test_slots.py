from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.app import invoke

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "keras" / "3.15.1"
NAMES = ["first", "second"]


def optimizer(seed: int) -> dict[str, object]:
    """Return the state of an optimizer as PyTorch's Adam has it."""
    entry = {"step": np.float32(1), "exp_avg": np.full((2, seed + 1), seed, "f4")}
    return {"state": {0: entry, 1: entry}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ckptfmt.write({"epoch": 1, "opt": optimizer(2)}, "one.pt")
    ckptfmt.write({"g": optimizer(1), "d": {"opt": optimizer(2)}}, "two.pt")
    Path("names").write_text("\n".join(NAMES) + "\n\n")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, str]]:
    assert invoke(["slots", *arguments, "--json"]) == 0
    return [(row["parameter"], row["name"]) for row in json.loads(capsys.readouterr().out)["slots"]]


@pytest.mark.usefixtures("folder")
def test_numbers_become_names_from_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(name, slot) for name in NAMES for slot in ("step", "exp_avg")]
    assert shown(capsys, "one.pt", "--variables", "names") == wanted
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond"))
    assert shown(capsys, "one.pt", "--variables", "-") == wanted
    assert shown(capsys, "two.pt", "--variables", "names", "--at", "d/opt") == wanted
    assert invoke(["slots", "one.pt", "--variables", "names"]) == 0
    assert "exp_avg" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["one.pt"], "--variables"),
        (["two.pt", "--variables", "names"], "g, d/opt"),
        (["two.pt", "--variables", "names", "--at", "nowhere"], "'nowhere'"),
        (["one.pt", "--variables", "names", "--optimizer", "Adam"], "not needed"),
        (["one.pt", "--variables", "absent"], "absent"),
        (["plain.npz"], "info"),
    ],
)
def test_what_is_not_certain_is_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ckptfmt.write({"w": np.ones(2)}, "plain.npz")
    assert invoke(["slots", *arguments]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.framework
def test_the_configuration_of_a_keras_file_gives_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h5py", reason='reads files of Keras: needs the extra "hdf5"')
    rows = shown(capsys, str(GOLDEN / "rnn.keras"))
    assert ("", "iteration") in rows
    assert {slot for parameter, slot in rows if parameter} == {"momentum", "velocity"}
    assert invoke(["slots", str(GOLDEN / "rnn.weights.h5")]) == 2
    assert "variables" in capsys.readouterr().err
