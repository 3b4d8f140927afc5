"""What programs rely on: the keys of each command's JSON, and that it always is JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli.app import invoke

if TYPE_CHECKING:
    from pathlib import Path

HEX = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
HEX_OR_NULL = {"anyOf": [HEX, {"type": "null"}]}
COUNT = {"type": "integer", "minimum": 0}
COUNT_OR_NULL = {"type": ["integer", "null"]}
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
YES = {"type": "boolean"}


def strict(required: dict[str, object], optional: dict[str, object] | None = None) -> dict[str, object]:
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def each(item: object) -> dict[str, object]:
    return {"type": "array", "items": item}


FINDING = strict(
    {"kind": TEXT, "path": TEXT, "severity": {"enum": ["info", "loss", "problem"]}, "message": TEXT},
    {"file": TEXT, "offset": COUNT, "chunk": COUNT, "rule": TEXT},
)
TOTAL = strict({"name": TEXT, "tensors": COUNT, "nbytes": COUNT})
ROW = strict(
    {"path": TEXT, "type": TEXT, "shape": each(COUNT), "nbytes": COUNT}, {"same_as": TEXT, "digest": HEX}
)
CHECKPOINT = strict(
    {
        "kind": {"const": "checkpoint"},
        "path": TEXT,
        "format": TEXT,
        "step": COUNT_OR_NULL,
        "root": HEX_OR_NULL,
        "bag": HEX_OR_NULL,
        "stored": COUNT,
        "tensors": COUNT,
        "nbytes": COUNT,
        "components": each(TOTAL),
        "types": each(TOTAL),
        "table": each(ROW),
        "values": each(strict({"path": TEXT, "kind": TEXT, "value": {}})),
        "findings": each(FINDING),
        "leftovers": {"type": "array"},
    }
)
LISTED = strict(
    {
        "name": TEXT,
        "format": TEXT,
        "step": COUNT_OR_NULL,
        "tensors": COUNT_OR_NULL,
        "stored": COUNT,
        "complete": {"type": ["boolean", "null"]},
        "problem": TEXT_OR_NULL,
    }
)
DIRECTORY = strict(
    {
        "kind": {"const": "directory"},
        "path": TEXT,
        "checkpoints": each(LISTED),
        "leftovers": {"type": "array"},
    }
)
CONVERSION = strict(
    {
        "source": TEXT,
        "source_format": TEXT,
        "target": TEXT,
        "target_format": TEXT,
        "dry_run": YES,
        "tensors": COUNT,
        "nbytes": COUNT,
        "stored": COUNT_OR_NULL,
        "direct": {"type": ["boolean", "null"]},
        "step": COUNT_OR_NULL,
        "root": HEX_OR_NULL,
        "bag": HEX_OR_NULL,
        "verified": YES,
        "same_root": {"type": ["boolean", "null"]},
        "losses": COUNT,
        "findings": each(FINDING),
        "dropped": each(TEXT),
    }
)
VERIFICATION = strict(
    {
        "path": TEXT,
        "ok": YES,
        "format": TEXT_OR_NULL,
        "step": COUNT_OR_NULL,
        "root": HEX_OR_NULL,
        "bag": HEX_OR_NULL,
        "tensors": COUNT,
        "nbytes": COUNT,
        "problems": COUNT,
        "findings": each(FINDING),
    }
)
DIGESTS = strict(
    {
        "digests": each(
            strict(
                {"path": TEXT},
                {
                    "root": HEX,
                    "bag": HEX,
                    "tensors": {"type": "object", "additionalProperties": HEX},
                    "error": strict({"kind": TEXT, "message": TEXT}),
                },
            )
        )
    }
)
NUMBER = {"type": ["number", "string", "null"]}
DIFFERENCE = strict(
    {
        "a": TEXT,
        "b": TEXT,
        "equal": YES,
        "counts": {"type": "object", "additionalProperties": COUNT},
        "entries": each(
            strict(
                {"path": TEXT, "status": TEXT, "a": TEXT, "b": TEXT},
                {
                    "elements": COUNT,
                    "differ": COUNT,
                    "first": each(COUNT),
                    "max_ulp": COUNT_OR_NULL,
                    "max_abs": NUMBER,
                    "max_rel": NUMBER,
                    "nan": COUNT,
                    "nan_payload": COUNT,
                    "zero_sign": COUNT,
                },
            )
        ),
    }
)
EXTRACTION = strict(
    {
        "target": TEXT,
        "tensors": each(
            strict({"path": TEXT, "box": TEXT_OR_NULL, "type": TEXT, "shape": each(COUNT), "nbytes": COUNT})
        ),
    }
)
RECOVERY = strict(
    {
        "path": TEXT,
        "dry_run": YES,
        "actions": each(
            strict(
                {
                    "kind": {"enum": ["restored", "removed", "kept"]},
                    "path": TEXT,
                    "target": TEXT,
                    "reason": TEXT,
                }
            )
        ),
    }
)
FORMATS = strict(
    {
        "formats": each(
            strict(
                {
                    "name": TEXT,
                    "summary": TEXT,
                    "container": TEXT,
                    "extensions": each(TEXT),
                    "codecs": each(TEXT),
                    "sharded": YES,
                    "written": YES,
                    "extra": TEXT_OR_NULL,
                }
            )
        )
    }
)
SLOTS = strict(
    {
        "path": TEXT,
        "slots": each(
            strict(
                {
                    "parameter": TEXT,
                    "name": TEXT,
                    "type": TEXT,
                    "shape": {"anyOf": [{"type": "null"}, each(COUNT)]},
                }
            )
        ),
    }
)
ERROR = strict(
    {
        "error": strict(
            {"kind": TEXT, "message": TEXT},
            {
                "file": TEXT,
                "tensor": TEXT,
                "offset": COUNT,
                "chunk": COUNT,
                "rule": TEXT,
                "extra": TEXT,
                "findings": each(FINDING),
            },
        ),
        "exit": {"type": "integer", "minimum": 1},
    }
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    w = np.array([1.0, np.nan, 3.4e38], np.float32)
    values = {
        "big": 2**70,
        "nan": float("nan"),
        "raw": b"\xff",
        "odd": "\u2028é",
        "z": 1 + 2j,
        "t": (),
        "n": None,
    }
    tree = {"w": w, "tied": w, "half": np.ones((2, 2), ml_dtypes.bfloat16), "values": values}
    ckptfmt.save(tree, tmp_path / "a", step=1)
    ckptfmt.save(tree | {"w": np.array([1.0, 2.0, -3.4e38], np.float32)}, tmp_path / "b")
    group = {"params": [0], "param_names": ["w"], "lr": 0.1}
    ckptfmt.write({"state": {0: {"m": w, "step": 1}}, "param_groups": [group]}, tmp_path / "named.pt")
    np.savez(tmp_path / "x.npz", names=np.array(["p", "q"]), w=w)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = [
    (CHECKPOINT, ["info", "a"], 0),
    (CHECKPOINT, ["info", "x.npz", "--limit", "1"], 0),
    (DIRECTORY, ["info", "."], 0),
    (CONVERSION, ["convert", "a", "c.pt"], 0),
    (CONVERSION, ["convert", "a", "c.npz", "--dry-run", "--include", "w"], 0),
    (CONVERSION, ["convert", "x.npz", "d", "--codec", "zstd"], 0),
    (VERIFICATION, ["verify", "a"], 0),
    (VERIFICATION, ["verify", "a", "--finite"], 1),
    (VERIFICATION, ["verify", "."], 1),
    (DIGESTS, ["digest", "a", "x.npz", "--tensors"], 0),
    (DIGESTS, ["digest", "a", "none", "x.npz"], 5),
    (DIFFERENCE, ["diff", "a", "b"], 1),
    (DIFFERENCE, ["diff", "a", "x.npz", "--all"], 1),
    (EXTRACTION, ["extract", "a", "w[0:2]", "half"], 0),
    (RECOVERY, ["recover", "."], 0),
    (SLOTS, ["slots", "named.pt"], 0),
    (FORMATS, ["formats"], 0),
    (ERROR, ["info", "none"], 5),
    (ERROR, ["info"], 2),
    (ERROR, ["extract", "a", "values/big"], 2),
    (ERROR, ["convert", "a", "x.npz"], 5),
]


@pytest.mark.parametrize(("schema", "arguments", "code"), CASES, ids=lambda value: str(value)[:40])
def test_the_json_of_a_command_has_the_promised_keys(
    schema: dict[str, object],
    arguments: list[str],
    code: int,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert folder.is_dir()
    assert invoke([*arguments, "--json"]) == code
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.isascii()
    document = json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.validate(document, schema)


def test_values_come_out_as_json_can_say_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    invoke(["info", "a", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert {row["path"]: row["value"] for row in document["values"]} == {
        "values/big": str(2**70),
        "values/nan": "nan",
        "values/raw": "ff",
        "values/odd": "\u2028é",
        "values/z": "(1+2j)",
        "values/t": "()",
        "values/n": None,
    }
    tied = {row["path"]: row.get("same_as") for row in document["table"]}
    assert tied == {"w": None, "tied": "w", "half": None}
    assert (document["tensors"], document["nbytes"]) == (2, 12 + 8)


def test_the_report_file_is_the_json_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["convert", "a", "c.npz", "--report", "r.json", "--json"]) == 0
    assert json.loads((folder / "r.json").read_text()) == json.loads(capsys.readouterr().out)
