"""Files that are made to deceive: a typed error that names the place, or data; nothing runs or leaks."""

from __future__ import annotations

import json
import sys
import zipfile
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import ckptfmt

from .conftest import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

File: TypeAlias = Any  # of h5py, which has no types

pytestmark = pytest.mark.framework

EVIL = {
    "module": "antigravity",
    "class_name": "system",
    "config": {
        "name": "m",
        "layers": [{"module": "os", "class_name": "Lambda", "config": {"function": "touch x"}}],
    },
    "registered_name": "os>system",
    "compile_config": {
        "optimizer": {"module": "os", "class_name": "system", "config": {"command": "touch x"}}
    },
}


def made(path: Path, change: Callable[[File], None]) -> Path:
    """Write a file with h5py."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        change(file)
    return path


def legacy(file: File, layers: list[str], **weights: list[str]) -> None:
    """Write the lists of a legacy file of weights, and the datasets they name."""
    file.attrs["layer_names"] = np.array([name.encode() for name in layers], "S")
    for name, listed in weights.items():
        group = file.require_group(name)
        group.attrs["weight_names"] = np.array([text.encode() for text in listed], "S")
        for text in listed:
            if f"{name}/{text}" not in file:
                group[text] = np.ones(2, "f4")


@pytest.mark.parametrize("kind", ["keras", "keras-h5"])
def test_a_configuration_is_never_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-1550, CVE-2025-9905, CVE-2026-1462: read, listed and written again, it stays the same text."""
    monkeypatch.chdir(tmp_path)
    text = json.dumps(EVIL)
    weights = {"layers": {"dense": {"vars": {0: np.ones(2, "f4")}}}}
    tree: object = {"config.json": text, "model.weights.h5": weights}
    if kind == "keras-h5":
        tree = {"model_config": text, "model_weights": {"d": {"w": np.ones(2, "f4")}}}
    ckptfmt.write(tree, tmp_path / "evil", to=kind)
    with ckptfmt.read(tmp_path / "evil") as found:
        assert found["config.json" if kind == "keras" else "model_config"] == text
        assert ckptfmt.write(found.tree, tmp_path / "again", to=kind) == ()
    assert (tmp_path / "evil").read_bytes() == (tmp_path / "again").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "evil"]
    assert "antigravity" not in sys.modules


def _array_for_layer(file: File) -> None:
    legacy(file, ["a"])
    file["a"] = 1.0


def _group_for_weight(file: File) -> None:
    legacy(file, ["a"], a=["w/x"])
    file["a"].attrs["weight_names"] = np.array([b"w"])


def _number_for_configuration(file: File) -> None:
    file.attrs["model_config"] = 3
    legacy(file.create_group("model_weights"), ["a"], a=["w"])


LISTS: dict[str, tuple[Callable[[File], None], str]] = {
    "a layer that is not there": (lambda f: legacy(f, ["a", "b"], a=["w"]), "no group of the layer 'b'"),
    "a layer twice": (lambda f: legacy(f, ["a", "a"], a=["w"]), "layer 'a' is listed twice"),
    "a weight twice": (lambda f: legacy(f, ["a"], a=["w", "w"]), "'w' is listed twice"),
    "a layer that is an array": (_array_for_layer, "no group of"),
    "a weight that is a group": (_group_for_weight, "no dataset 'w'"),
    "a name that climbs": (lambda f: legacy(f, ["a", "a/../a"], a=["w"]), "is no name"),
    "an empty name": (lambda f: legacy(f, ["a", ""], a=["w"]), "is no name"),
    "numbers for names": (lambda f: f.attrs.__setitem__("layer_names", np.arange(3)), "is no list of names"),
    "one text for names": (lambda f: f.attrs.__setitem__("layer_names", "a"), "is no list of names"),
    "bytes for names": (
        lambda f: f.attrs.__setitem__("layer_names", np.array([b"\xff"], "S")),
        "is no list of names",
    ),
    "numbers for a configuration": (_number_for_configuration, "'model_config' is no text"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_do_not_fit_the_groups_are_refused(name: str, tmp_path: Path) -> None:
    change, message = LISTS[name]
    path = made(tmp_path / "model.h5", change)
    with pytest.raises(ckptfmt.FormatError, match=message) as caught:
        ckptfmt.read(path)
    assert caught.value.file == str(path)


def test_split_lists_are_joined_and_unlisted_arrays_are_told(tmp_path: Path) -> None:
    def change(file: File) -> None:
        legacy(file, [], a=["w"], b=["w"], c=["w"])
        del file.attrs["layer_names"]
        file.attrs["layer_names0"], file.attrs["layer_names1"] = np.array([b"c"]), np.array([b"a"])

    with ckptfmt.read(made(tmp_path / "model.h5", change)) as found:
        assert list(found["model_weights"]) == ["c", "a"]  # type: ignore[arg-type]
        assert [(f.kind, f.path, str(f.severity)) for f in found.findings] == [("unlisted", "b/w", "loss")]
    with pytest.raises(ckptfmt.LossyError):
        ckptfmt.convert(tmp_path / "model.h5", tmp_path / "out", strict=True)


@pytest.mark.parametrize("text", ["{", "[1]", "{" + '"a":[' * 200_000])
def test_a_configuration_that_is_none_is_told_and_kept(text: str, tmp_path: Path) -> None:
    tree = {"model_config": text, "model_weights": {"d": {"w": np.ones(2, "f4")}}}
    ckptfmt.write(tree, tmp_path / "model.h5", to="keras-h5")
    with ckptfmt.read(tmp_path / "model.h5") as found:
        assert found["model_config"] == text
        assert [(f.kind, str(f.severity)) for f in found.findings] == [("config-unreadable", "problem")]


def _external(file: File) -> None:
    h5py = pytest.importorskip("h5py")
    file["layers/dense/vars/0"] = np.ones(2)
    file["layers/dense/vars/1"] = h5py.ExternalLink("secret.h5", "/secret")


def _external_above(file: File) -> None:
    h5py = pytest.importorskip("h5py")
    file["vars/0"] = np.ones(2)
    file["layers"] = h5py.ExternalLink("secret.h5", "/")


def _elsewhere(file: File) -> None:
    file["vars/0"] = np.ones(2)
    file.create_dataset("vars/1", (4,), "u1", external=[("secret.h5", 0, 4)])


def _virtual(file: File) -> None:
    h5py = pytest.importorskip("h5py")
    layout = h5py.VirtualLayout((2,), "f8")
    layout[:] = h5py.VirtualSource("secret.h5", "secret", (2,))
    file["vars/0"] = np.ones(2)
    file.create_virtual_dataset("vars/1", layout)


def _immense(file: File) -> None:
    file["vars/0"] = np.ones(2)
    file.create_dataset("vars/1", (1 << 40,), "f4")


def _deep(file: File) -> None:
    file["vars/0"] = np.ones(2)
    file["/".join(["a"] * 100) + "/vars/0"] = np.ones(2)


@pytest.mark.parametrize("change", [_external, _external_above, _elsewhere, _virtual, _immense, _deep])
@pytest.mark.parametrize("inside", ["alone", "in an archive"])
def test_what_leads_out_of_a_file_is_refused_in_an_archive_too(
    change: Callable[[File], None], inside: str, tmp_path: Path
) -> None:
    """CVE-2026-1669: external links and storage, virtual datasets, shapes without bytes; and depth."""
    made(tmp_path / "secret.h5", lambda file: file.__setitem__("secret", np.full(2, 42.0)))
    path = made(tmp_path / "model.weights.h5", change)
    if inside != "alone":
        with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
            archive.writestr("config.json", "{}")
            archive.write(path, "model.weights.h5")
        path = tmp_path / "model.keras"
    with pytest.raises((ckptfmt.FormatError, ckptfmt.CkptError)) as caught:
        ckptfmt.read(path)
    assert isinstance(caught.value, ckptfmt.FormatError)


def test_a_group_within_itself_ends(tmp_path: Path) -> None:
    def change(file: File) -> None:
        file["layers/dense/vars/0"] = np.ones(2)
        file["layers/dense/again"] = file["layers"]

    with ckptfmt.read(made(tmp_path / "loop.weights.h5", change)) as found:
        assert list(found.tensors()) == ["layers/dense/vars/0"]
        assert [finding.kind for finding in found.findings] == ["link-cycle"]


def test_attributes_that_are_not_kept_are_told(tmp_path: Path) -> None:
    def change(file: File) -> None:
        file["a/vars/0"] = np.ones(2)
        file["a/vars/0"].attrs["unit"] = "m"
        file["a/vars"].attrs["table"] = np.ones((2, 2))

    with ckptfmt.read(made(tmp_path / "told.weights.h5", change)) as found:
        told = sorted((f.kind, f.path, str(f.severity)) for f in found.findings)
        assert told == [("attribute-unread", "a/vars", "loss"), ("attribute-unread", "a/vars/0", "loss")]


def _index(folder: Path, weight_map: object) -> Path:
    for shard in (GOLDEN / "3.15.1").glob("sharded_*.h5"):
        (folder / shard.name).write_bytes(shard.read_bytes())
    path = folder / "model.weights.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1.5}, "weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"/vars": "other_00000.weights.h5"}, "'other_00000.weights.h5' of the set is not there"),
        ({"/vars": "../up.weights.h5"}, "no name of a file beside the index"),
        ({"/vars": "/etc/x.weights.h5"}, "no name of a file beside the index"),
        ({"/vars": "a\\b.weights.h5"}, "no name of a file beside the index"),
        ({"/vars": ".weights.h5\0.weights.h5"}, "no name of a file beside the index"),
        ({"/nowhere/vars": "sharded_00000.weights.h5"}, "holds 'nowhere/vars'; it does not"),
        ({"/vars": [3]}, "are no names"),
        ({"/vars": {"a": "b"}}, "are no names"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_lies_is_refused(weight_map: object, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    made(tmp_path / "up.weights.h5", lambda file: file.__setitem__("vars/0", np.ones(2)))
    from ckptfmt.frameworks.keras.weights import read  # noqa: PLC0415 - it needs h5py

    with pytest.raises(ckptfmt.FormatError, match=message):
        read(_index(folder, weight_map))


def test_a_missing_file_of_a_set_is_named(tmp_path: Path) -> None:
    path = _index(tmp_path, {})
    path.write_text((GOLDEN / "3.15.1" / "sharded.weights.json").read_text())
    (tmp_path / "sharded_00002.weights.h5").unlink()
    with pytest.raises(ckptfmt.MissingFileError, match=r"sharded_00002\.weights\.h5"):
        ckptfmt.read(path)


def test_a_variable_in_two_files_is_refused_and_an_unlisted_one_told(tmp_path: Path) -> None:
    weight_map = json.loads((GOLDEN / "3.15.1" / "sharded.weights.json").read_text())["weight_map"]
    del weight_map["/layers/batch_normalization/vars"]
    path = _index(tmp_path, weight_map)
    with ckptfmt.read(path) as found:
        assert [f.kind for f in found.findings] == ["unlisted", "layer-names"]
    first, second = "sharded_00000.weights.h5", "copy_00000.weights.h5"
    (tmp_path / second).write_bytes((tmp_path / first).read_bytes())
    weight_map["/layers/gru/cell/vars"] = [first, second]
    with pytest.raises(ckptfmt.FormatError, match="another file of the set holds it"):
        ckptfmt.read(_index(tmp_path, weight_map))


def test_members_that_do_not_belong_are_told_or_refused(tmp_path: Path) -> None:
    ckptfmt.write({"config.json": "{}", "model.weights.h5": {"vars": {}}}, tmp_path / "model.keras")

    def with_member(name: str) -> Path:
        path = tmp_path / "changed.keras"
        path.write_bytes((tmp_path / "model.keras").read_bytes())
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, "text")
        return path

    for name in ("more.txt", "../x", "assets"):
        with ckptfmt.read(with_member(name)) as found:
            assert [(f.kind, f.path, str(f.severity)) for f in found.findings] == [("unlisted", name, "loss")]
            assert set(found.tree) == {"metadata.json", "config.json", "model.weights.h5"}  # type: ignore[arg-type]
    for name in ("assets//x", "assets/./x", "assets/../../x"):
        with pytest.raises(ckptfmt.FormatError):
            ckptfmt.read(with_member(name)).close()
        assert not (tmp_path.parent / "x").exists()


def test_weights_that_expand_without_measure_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(300 << 20))
    with pytest.raises(ckptfmt.LimitError):
        ckptfmt.read(tmp_path / "bomb.keras")


def test_weights_in_an_npz_are_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.npz", "")
    with pytest.raises(ckptfmt.UnknownFormatError, match="NPZ"):
        ckptfmt.read(tmp_path / "model.keras")
