"""The schema accepts what the specification does, and refuses what is structurally wrong."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
SCHEMA = json.loads((SPEC / "manifest.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
VALID = sorted((SPEC / "vectors" / "valid").rglob("manifest.json"))
STRUCTURAL = sorted(
    path
    for folder in ("forms", "members", "rows", "names", "versions")
    for path in (SPEC / "vectors" / "invalid" / folder).rglob("manifest.json")
)
RELATIONS = {
    "R-022": "references are counted",
    "R-023": "references are counted",
    "R-031": "rows are compared",
    "R-032": "names are made from paths",
    "R-035": "offsets are added up",
    "R-036": "lengths are compared with chunks",
    "R-034": "rows are compared with shards",
}
"""Rules that relate one place of a manifest to another, which no schema can."""
BEYOND = {
    "strings-count",
    "strings-huge",
    "tag-on-reference",
    "shard-beyond",
    "size-overflow",
    "size-overflow-64",
    "size-overflow-product",
    "type-strings-huge",
    "extra-files-unsorted",
    "extra-file-twice",
    "shard-few-digits",
    "shard-many-digits",
    "shard-number",
    "shard-count",
    "length-zero",
    "requires-twice",
}
"""Cases of other rules whose fault is in a number or an order, not in a form."""


def case_of(path: Path) -> str:
    return "/".join(path.parts[-4:-2])


def test_the_schema_is_one() -> None:
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize("path", VALID, ids=case_of)
def test_valid_manifests_validate(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_bytes()))


def is_structural(path: Path) -> bool:
    told = json.loads((path.parents[1] / "case.json").read_text("utf-8"))
    return told["rule"] not in RELATIONS and path.parts[-3] not in BEYOND


@pytest.mark.parametrize("path", [path for path in STRUCTURAL if is_structural(path)], ids=case_of)
def test_manifests_of_a_wrong_form_do_not_validate(path: Path) -> None:
    assert not VALIDATOR.is_valid(json.loads(path.read_bytes()))


def test_the_schema_asks_for_the_members_of_the_specification() -> None:
    properties = set(SCHEMA["properties"])
    text = (SPEC / "ckptfmt-1.0.md").read_text("utf-8").split("## 8. The manifest")[1].split("### 8.1")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert properties == {name.strip(" `") for cell in cells for name in cell.split(",")}
