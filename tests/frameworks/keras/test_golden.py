"""Files of Keras 2.2.4, 2.13, 3.15 and of tf-keras are read as Keras reads them, without Keras."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptfmt
from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

from .conftest import FILES, GOLDEN, described, expected

if TYPE_CHECKING:
    from ckptfmt.tree.nodes import Tree

pytestmark = pytest.mark.framework
REASON = 'needs the extra "hdf5"'
pytest.importorskip("h5py", reason=REASON)
optimizer_state = pytest.importorskip("ckptfmt.frameworks.keras.optimizer", reason=REASON).optimizer_state
layer_names = pytest.importorskip("ckptfmt.frameworks.keras.variables", reason=REASON).layer_names


def opened(file: str) -> ckptfmt.Checkpoint:
    return ckptfmt.read(GOLDEN / file)


def weights_of(tree: Tree) -> dict[Any, Tree]:
    assert isinstance(tree, dict)
    found = tree.get("model.weights.h5", tree)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_golden_file_is_the_one_that_was_made(file: str) -> None:
    folder, _, name = file.partition("/")
    text = (GOLDEN / folder / "MANIFEST.toml").read_text()
    digest = hashlib.sha256((GOLDEN / file).read_bytes()).hexdigest()
    assert f'[files."{name}"]' in text
    assert f'sha256 = "{digest}"' in text


@pytest.mark.parametrize("file", FILES)
def test_the_format_is_told_by_content(file: str) -> None:
    kind = "keras" if file.endswith(".keras") else "keras-weights" if ".weights." in file else "keras-h5"
    assert ckptfmt.detect(GOLDEN / file).name == kind
    with opened(file) as checkpoint:
        assert checkpoint.format == kind
        assert all(finding.severity is ckptfmt.Severity.INFO for finding in checkpoint.findings)


@pytest.mark.parametrize("file", [f for f in FILES if f.endswith(".h5") and ".weights." not in f])
def test_legacy_weights_have_the_names_and_values_that_keras_has(file: str) -> None:
    with opened(file) as checkpoint:
        assert isinstance(checkpoint.tree, dict)
        for part, key in (("weights", "model_weights"), ("optimizer", "optimizer_weights")):
            found = [[path[-1], *described(node)] for path, node in tensors(checkpoint.tree.get(key))]
            wanted = [[row[0].rpartition("/")[2], *row[1:]] for row in expected(file)[part]]
            first = part == "optimizer"  # whose names are longer in the file
            assert _sorted(found, first) == _sorted(wanted, first)


def _sorted(rows: list[list[Any]], first: int) -> list[str]:
    return sorted(repr(row[first:]) for row in rows)


@pytest.mark.parametrize("file", [f for f in FILES if f.endswith((".keras", ".weights.h5", ".json"))])
def test_numbered_variables_are_those_of_their_layers(file: str) -> None:
    """As many of each name, number and value as Keras itself counts in its layers."""
    wanted = expected(file)
    with opened(file) as checkpoint:
        weights = weights_of(checkpoint.tree)
        if file == "tf-keras-2.21/half.weights.h5":
            assert [finding.kind for finding in checkpoint.findings] == ["untyped"]
            return
        found = [
            (path[-1], *described(node))
            for path, node in tensors(weights)
            if path[0] not in ("optimizer", "metrics")
        ]
        optimizer = weights["optimizer"]
        assert isinstance(optimizer, dict)
        numbered = optimizer["vars"]
        assert isinstance(numbered, dict)
        assert list(numbered) == list(range(len(numbered)))
        assert [list(described(node)) for node in numbered.values()] == [
            row[1:] for row in wanted["optimizer"]
        ]
    if "variables" in wanted:
        assert sorted(map(repr, found)) == sorted(repr(tuple(row[1:])) for row in wanted["variables"])
    else:
        assert sorted(repr(row[1:]) for row in found) == sorted(
            repr(tuple(row[1:])) for row in wanted["weights"]
        )


@pytest.mark.parametrize(
    "file",
    ["3.15.1/rnn.keras", "3.15.1/rnn.weights.h5", "3.15.1/sharded.weights.json", "tf-keras-2.21/rnn.keras"],
)
def test_users_names_of_layers_come_from_the_file_or_its_configuration(file: str) -> None:
    """Groups are called after classes and counted: only the names say which layer is which."""
    with opened(file) as checkpoint:
        tree = checkpoint.tree
        weights = weights_of(tree)
        finding = next(finding for finding in checkpoint.findings if finding.kind == "layer-names")
        assert "layers/bidirectional is 'bi'" in finding.message
        if file.startswith("3"):
            names = layer_names(weights)
            assert names["layers", "dense"] == "out"
            assert names["layers", "sequential", "layers", "dense"] == "in1"


def test_a_sharded_set_is_the_same_tree_as_one_file() -> None:
    with opened("3.15.1/sharded.weights.json") as sharded, opened("3.15.1/rnn.weights.h5") as whole:
        assert ckptfmt.digest(sharded).root == ckptfmt.digest(whole).root
        assert list(sharded.tensors()) == list(whole.tensors())
        assert sharded.stored == sum(
            path.stat().st_size for path in (GOLDEN / "3.15.1").iterdir() if "sharded" in path.name
        )
        one, other = (weights_of(c.tree)["layers"] for c in (sharded, whole))
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert tag_of(one["dense"]["vars"]) == tag_of(other["dense"]["vars"])  # type: ignore[call-overload, index]


@pytest.mark.parametrize("version", ["3.15.1", "tf-keras-2.21"])
def test_bfloat16_is_typed_where_the_file_or_its_configuration_says_so(version: str) -> None:
    """Also in the optimizer; nothing says so in a weights file of Keras 2, which keeps raw bytes."""
    files = ["half.keras", "half.h5"] + (["half.weights.h5"] if version == "3.15.1" else [])
    for file in files:
        with opened(f"{version}/{file}") as checkpoint:
            kinds = Counter(tensor.dtype.name for tensor in checkpoint.tensors().values())
            assert kinds["bf16"] == (4 if version == "3.15.1" else 8)
            assert set(kinds) <= {"bf16", "i64", "f32"}


@pytest.mark.parametrize(
    ("file", "slots"),
    [
        ("3.15.1/rnn.keras", ("momentum", "velocity")),
        ("3.15.1/rnn.h5", ("momentum", "velocity")),
        ("tf-keras-2.21/rnn.keras", ("momentum", "velocity")),
        ("tf-keras-2.21/rnn.h5", ("m", "v")),
        ("tf-keras-2.21/legacy.h5", ("m", "v")),
        ("tf-keras-2.21/half.keras", ("momentum",)),
        ("2.13.1/net.keras", ("momentum", "velocity")),
        ("2.13.1/net.h5", ("m", "v")),
    ],
)
def test_values_of_optimizers_belong_to_the_parameters_that_keras_says(
    file: str, slots: tuple[str, ...]
) -> None:
    """Every parameter has its slots, of its shape; the scalars are left."""
    with opened(file) as checkpoint:
        state = optimizer_state(checkpoint.tree)
        assert state.scalars["iteration"].numpy() == 1
        trainable = len(state.slots)
        assert trainable == {"rnn": 23, "legacy": 4, "half": 4, "net": 9}[Path(file).stem]
        for path, held in state.slots.items():
            parameter = checkpoint.at(path)
            assert isinstance(parameter, Tensor)
            assert tuple(held) == slots
            assert all(value.shape == parameter.shape for value in held.values())


def test_numbers_and_names_give_one_meaning() -> None:
    """The legacy file names what the new one numbers: both say the same of every parameter."""
    with opened("3.15.1/rnn.keras") as new, opened("3.15.1/rnn.h5") as old:
        found = []
        for checkpoint in (new, old):
            state = optimizer_state(checkpoint.tree)
            found.append(
                {
                    described(checkpoint.at(path))[2] + str(described(held["momentum"])[2]): {
                        name: described(value)[2] for name, value in held.items()
                    }
                    for path, held in state.slots.items()
                }
            )
        assert found[0] == found[1]


def test_a_deflated_archive_is_the_same_model(tmp_path: Path) -> None:
    """As one becomes that was unpacked and packed again."""
    source = GOLDEN / "3.15.1" / "rnn.keras"
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with ckptfmt.read(source) as one, ckptfmt.read(tmp_path / "a.keras") as other:
        assert ckptfmt.digest(one).root == ckptfmt.digest(other).root


def test_a_large_archive_is_not_read_as_a_whole_to_compare_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is told; below the limit a changed byte is found before anything is handed out."""
    data = bytearray((GOLDEN / "3.15.1" / "rnn.keras").read_bytes())
    with ckptfmt.read(GOLDEN / "3.15.1" / "rnn.keras") as found:
        tensor = found.tensors()["model.weights.h5/layers/dense/vars/0"]
        data[data.index(bytes(tensor.bytes()))] ^= 1
    (tmp_path / "changed.keras").write_bytes(data)
    with pytest.raises(ckptfmt.ChecksumError):
        ckptfmt.read(tmp_path / "changed.keras")
    monkeypatch.setattr("ckptfmt.frameworks.keras.archive._VERIFIED", 1000)
    with ckptfmt.read(tmp_path / "changed.keras") as found:
        assert "unverified" in {finding.kind for finding in found.findings}
    report = ckptfmt.check(tmp_path / "changed.keras")
    assert not report.ok
    assert {finding.kind for finding in report.findings if finding.severity is ckptfmt.Severity.PROBLEM} == {
        "checksum"
    }
    with pytest.raises(ckptfmt.ChecksumError):
        ckptfmt.convert(tmp_path / "changed.keras", tmp_path / "native")
    good = ckptfmt.check(GOLDEN / "3.15.1" / "rnn.keras")
    assert good.ok
    assert "unverified" not in {finding.kind for finding in good.findings}
