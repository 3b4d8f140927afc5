"""Compare the specification with its vectors and with the code: rules, kinds, tables, limits, digests.

``python tools/check_spec.py`` prints what disagrees and exits with 1. Tables are read from the text, so that
the specification stays the one place where they stand.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ml_dtypes import bfloat16

import ckptfmt
from ckptfmt.errors import FormatError
from ckptfmt.format import constants
from ckptfmt.format.codecs import plane_width
from ckptfmt.format.digests import chunk_digest, node_digest
from ckptfmt.tree.aliases import CLASS_ALIASES, MODULE_ALIASES, PACKAGE_ALIASES
from ckptfmt.tree.capture import as_tree
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.walk import MAX_DEPTH, MAX_REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["main", "problems", "rules_of"]

SPEC = Path(__file__).resolve().parent.parent / "spec"
TEXT = SPEC / "ckptfmt-1.0.md"


def section(text: str, title: str) -> str:
    """Return a section without those of its own level that follow."""
    found = re.search(rf"(?ms)^(#+) {re.escape(title)}.*?$(.*?)(?=^\1 |^## |\Z)", text)
    if found is None:
        raise ValueError(f"the specification has no section {title!r}")
    return found[2]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without heads, marks of code removed."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rules = {index for index, line in enumerate(lines) if line.startswith("|---")}
    return [row for index, row in enumerate(cells) if not {index, index + 1} & rules]


def names_in(cell: str) -> list[str]:
    """Return the words of a cell that are marked as code."""
    return " ".join(re.findall(r"`([^`]*)`", cell)).split()


def rules_of(text: str) -> dict[str, set[str]]:
    """Return the kinds of each rule of section 12."""
    rows = [[cell.strip("| ") for cell in row] for row in rows_of(section(text, "12. Rejection rules"))]
    return {row[0]: set(row[-1].split(", ")) for row in rows}


def rule_problems(text: str) -> Iterator[str]:
    """Rules and kinds: those of the table, of the text, of the errors and of the vectors."""
    rules = rules_of(text)
    for rule in sorted(set(re.findall(r"R-\d{3}", text)) - {*rules}):
        yield f"{rule} is mentioned and not in the table"
    errors: list[type[FormatError]] = [FormatError, *FormatError.__subclasses__()]
    known = {error.kind for error in errors}
    for rule, kinds in rules.items():
        if kinds - known:
            yield f"{rule} has the kinds {kinds - known}, which no error has"
    missing = {(rule, kind) for rule, kinds in rules.items() for kind in kinds}
    for path in sorted((SPEC / "vectors" / "invalid").rglob("case.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        rule, kind = told.get("rule"), told.get("kind")
        if kind not in rules.get(rule, set()):
            yield f"{path.parent.relative_to(SPEC)} names {rule} and {kind}, which the table does not have"
        missing.discard((rule, kind))
    yield from (f"no vector breaks {rule} with the kind {kind}" for rule, kind in sorted(missing))


def header_words() -> dict[str, str]:
    """Return the words for types in the header of a vector that `save` reproduces byte for byte."""
    shard = next((SPEC / "vectors" / "valid" / "types" / "all").rglob("*.safetensors")).read_bytes()
    members = json.loads(shard[8 : 8 + int.from_bytes(shard[:8], "little")])
    words = {name: member["dtype"] for name, member in members.items() if name != "__metadata__"}
    return {name: word for name, word in words.items() if word != "U8" or name == "u8"}


def type_problems(text: str) -> Iterator[str]:
    """Element types: names, bits, the words of safetensors, the widths of planes."""
    told: dict[str, int] = {}
    for name, bits, *_ in rows_of(section(text, "4.1 Element types")):
        names, widths = names_in(name), [int(width) for width in re.findall(r"\d+", bits)]
        told |= dict(zip(names, widths * len(names) if len(widths) == 1 else widths, strict=True))
    del told["s<N>"]
    code = {name: dtype(name).bits for name in DTYPE_NAMES}
    yield from differing("the bits of types", told, code)
    words: dict[str, str] = {}
    for types, wanted in rows_of(section(text, "9.1 Header")):
        if names_in(types):
            words |= dict(zip(names_in(types), names_in(wanted), strict=True))
    yield from differing("the types in headers", words, header_words())
    widths_told = {
        name: int(width)
        for width, names in re.findall(r"(\d) for\s+((?:`[^`]*`)+)", section(text, "9.3 Coded data"))
        for name in names_in(names)
    }
    widths_of_code = {name: plane_width(name) for name in code if plane_width(name) > 1}
    yield from differing("the widths of planes", widths_told, widths_of_code)


def limit_problems(text: str) -> Iterator[str]:
    """Limits: those of R-015 and of section 3."""
    limits = next(row for row in rows_of(section(text, "12. Rejection rules")) if "R-015" in row[0])[1]
    for words, value, code in (
        (r"depth (\d+)", 1, MAX_DEPTH),
        (r"path of a row (\d+) KiB", 1 << 10, constants.MAX_PATH),
        (r"`provenance.json` (\d+) GiB", 1 << 30, constants.MAX_MANIFEST),
        (r"less the data\) (\d+) MiB", 1 << 20, constants.MAX_HEADER),
    ):
        found = re.search(words, limits)
        if found is None or int(found[1]) * value != code:
            yield f"R-015 does not say {words} as the code does: {code}"
    if "2^24 rows or nodes" not in limits or {constants.MAX_ROWS, MAX_REFERENCES} != {2**24}:
        yield "R-015 and the code disagree on rows or nodes"
    if f"{constants.CHUNK:,} bytes" not in section(text, "3. Terms"):
        yield f"section 3 has no chunk of {constants.CHUNK:,} bytes"


def alias_problems(text: str) -> Iterator[str]:
    """Class names: annex B against the table of the code."""
    rows = rows_of(section(text, "Annex B. Class names"))
    told = [(row[0].strip("| "), *(" ".join(names_in(cell)) for cell in row[1:])) for row in rows]
    code = [("module", old, new) for old, new in MODULE_ALIASES.items()]
    code += [("package", old, new) for old, new in PACKAGE_ALIASES.items()]
    code += [("class", ".".join(old), ".".join(new)) for old, new in CLASS_ALIASES.items()]
    yield from (f"annex B and the code differ in {row}" for row in sorted(set(told) ^ set(code)))


def examples() -> dict[str, Callable[[], bytes]]:
    """Return how the code works out each example of section 6.4, by the words of its first column."""
    w = np.array([[1, 2], [3, 4]], "<f4")

    def root(value: object) -> Callable[[], bytes]:
        return lambda: node_digest(as_tree(value)[0])

    def tensor(array: np.ndarray) -> Callable[[], bytes]:
        return lambda: next(iter(ckptfmt.digest(array).tensors.values()))

    return {
        "chunk 0 of w": lambda: chunk_digest(struct.pack("<4f", 1, 2, 3, 4)),
        "tensor w": tensor(w),
        "tensor `bf16`, shape (0,3)": tensor(np.zeros((0, 3), bfloat16)),
        "tensor `i64`, shape (), value 5": tensor(np.array(5, "<i8")),
        "bag of {w}": lambda: ckptfmt.digest({"w": w}).bag,
        "node none": root(None),
        "node -26 (payload `-1a`)": root(-26),
        "node 0.1": root(0.1),
        'node "é"': root("é"),
        "node tuple (1,)": root((1,)),
        "node set {1, 2}": root({1, 2}),
        'node map {1: true, "1": none}': root({1: True, "1": None}),
        'root of {"step": 7, "w": w}': root({"step": 7, "w": w}),
        'root of {"model": {"w": w}, "step": 7}': root({"model": {"w": w}, "step": 7}),
    }


def example_problems(text: str) -> Iterator[str]:
    """Worked examples: each has the digest that the code works out."""
    told = {row[0].strip("| "): names_in(row[1])[0] for row in rows_of(section(text, "6.4 Worked examples"))}
    yield from differing(
        "the worked examples", told, {what: make().hex() for what, make in examples().items()}
    )


def differing(what: str, told: Mapping[str, object], code: Mapping[str, object]) -> Iterator[str]:
    """Yield a sentence for each name at which two tables differ."""
    for name in sorted(told.keys() | code.keys()):
        if told.get(name) != code.get(name):
            yield f"{what}: {name} is {told.get(name)} in the specification and {code.get(name)} in the code"


def problems(text: str) -> list[str]:
    """Return what disagrees with the text of the specification."""
    checks = (rule_problems, type_problems, limit_problems, alias_problems, example_problems)
    return [problem for check in checks for problem in check(text)]


def main() -> int:
    """Check and print; return the exit status."""
    text = TEXT.read_text(encoding="utf-8")
    found = problems(text)
    agreed = f"the specification agrees with the code; each of its {len(rules_of(text))} rules has a vector"
    print("\n".join(found) or agreed)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
