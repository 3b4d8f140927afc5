"""Programs that PyTorch 2.13 saved, read without it: what PyTorch itself makes of them; hostile ones."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

import ckptfmt
from ckptfmt.errors import FormatError, MissingFileError, TruncatedError, UnsupportedVersionError
from ckptfmt.frameworks.pytorch import export, keys, script
from ckptfmt.tree.nodes import tag_of
from ckptfmt.tree.tensor import Tensor

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "torch" / "2.13.0-special"
EXPECTED: dict = json.loads((GOLDEN / "expected.json").read_text())
SCRIPTS = ("script.pt", "trace.pt", "frozen.pt", "lite.ptl")
EXPORTS = ("program.pt2", "two.pt2", "old.pt2")


def described(tensor: Tensor) -> list[object]:
    """Return type, shape and digest, as the tool that made the files did."""
    digest = hashlib.sha256(bytes(tensor.bytes())).hexdigest()
    return [keys.BY_DTYPE[tensor.dtype.name].name, list(tensor.shape), digest]


def changed(path: Path, target: Path, members: dict[str, bytes | None], *, method: int = 0) -> Path:
    """Write an archive with other members; None takes one away."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            data = members[name] if name in members else old.read(name)
            if data is not None:
                new.writestr(name, data)
    return target


# --- TorchScript -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_holds_the_attributes_and_constants_that_pytorch_has(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        assert checkpoint.format == "torchscript"
        found = {path.replace('"', ""): described(each) for path, each in checkpoint.tensors().items()}
    constants = [found.pop(path) for path in list(found) if path.startswith(script.CONSTANTS)]
    assert found == EXPECTED[name]["attributes"]
    for each in EXPECTED[name]["constants"]:
        assert each in constants


def test_plain_attributes_and_classes_of_a_script_are_kept() -> None:
    with ckptfmt.read(GOLDEN / "script.pt") as checkpoint:
        tree = checkpoint.tree
        assert isinstance(tree, dict)
        assert tree["sizes"] == [1, 2]
        assert tree["words"] == {"a": 1}
        assert tree["inner"]["scale"] == 2.0  # type: ignore[index, call-overload] # a mapping
        assert getattr(tag_of(tree["inner"]), "name", "").startswith("__torch__.")
        first, tied = (tree[name]["weight"] for name in ("first", "tied"))  # type: ignore[index, call-overload]
        assert isinstance(first, Tensor)
        assert isinstance(tied, Tensor)
        assert first.identity == tied.identity


def test_the_program_of_a_script_is_told_as_not_read() -> None:
    with ckptfmt.read(GOLDEN / "trace.pt") as checkpoint:
        (finding,) = checkpoint.findings
    assert finding.kind == "program"
    assert "code" in finding.message


@pytest.mark.parametrize("name", [*SCRIPTS, *EXPORTS])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_programs_zipped_anew_are_read_the_same(name: str, method: int, tmp_path: Path) -> None:
    again = changed(GOLDEN / name, tmp_path / name, {}, method=method)
    with ckptfmt.read(GOLDEN / name) as one, ckptfmt.read(again) as two:
        assert one.format == two.format
        assert ckptfmt.compare(one, two).equal


@pytest.mark.parametrize("name", [*SCRIPTS, *EXPORTS])
def test_programs_are_converted_with_every_tensor(name: str, tmp_path: Path) -> None:
    ckptfmt.convert(GOLDEN / name, tmp_path / "native")
    ckptfmt.convert(tmp_path / "native", tmp_path / "back.pt")
    assert ckptfmt.digest(tmp_path / "native").root == ckptfmt.digest(GOLDEN / name).root
    assert ckptfmt.digest(tmp_path / "back.pt").bag == ckptfmt.digest(GOLDEN / name).bag


def test_programs_are_read_only_and_the_reader_of_weights_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.ConversionError, match="read, never written; write torch"):
        ckptfmt.write({"a": 1}, tmp_path / "x", to="torchscript")
    with pytest.raises(UnsupportedVersionError, match="TorchScript"):
        ckptfmt.read(GOLDEN / "script.pt", format="torch")


def test_a_big_endian_script_has_the_same_numbers(tmp_path: Path) -> None:
    with ckptfmt.read(GOLDEN / "script.pt") as checkpoint:
        floats = bytes(checkpoint.tensors()["inner/w"].bytes())
    with zipfile.ZipFile(GOLDEN / "script.pt") as archive:
        (member,) = [name for name in archive.namelist() if archive.read(name) == floats]
    swapped = b"".join(floats[at : at + 4][::-1] for at in range(0, 24, 4))
    members: dict[str, bytes | None] = {"script/byteorder": b"big", member: swapped}
    with ckptfmt.read(changed(GOLDEN / "script.pt", tmp_path / "big.pt", members)) as checkpoint:
        assert bytes(checkpoint.tensors()["inner/w"].bytes()) == floats


HOSTILE_SCRIPTS = [
    ({"script/data.pkl": None}, MissingFileError, r"no member 'data\.pkl'"),
    ({"script/data/1": None}, MissingFileError, "no storage 'script/data/1'"),
    ({"script/version": None}, MissingFileError, "no member 'version'"),
    ({"script/version": b"99\n"}, UnsupportedVersionError, "version 99"),
    ({"script/data/1": b"\0" * 8}, FormatError, "a storage of"),
    ({"script/byteorder": b"middle"}, FormatError, "byte order"),
    ({"script/constants.pkl": b""}, TruncatedError, "ends"),
    ({"script/constants.pkl": b"\x80\x02)..."}, FormatError, "bytes follow"),
    ({"script/data.pkl": b"cos\nsystem\n(S'touch sentinel'\ntR."}, None, "never"),
]


@pytest.mark.parametrize(("members", "error", "words"), HOSTILE_SCRIPTS)
def test_damaged_scripts_are_refused_and_nothing_is_run(
    members: dict[str, bytes | None],
    error: type[Exception] | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = changed(GOLDEN / "script.pt", tmp_path / "x.pt", members)
    if error is None:
        script.read(path).close()
    else:
        with pytest.raises(error, match=words):
            script.read(path)
    assert not (tmp_path / "sentinel").exists()


# --- torch.export ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPORTS)
def test_an_exported_program_holds_the_weights_and_constants_that_pytorch_has(name: str) -> None:
    with ckptfmt.read(GOLDEN / name) as checkpoint:
        assert checkpoint.format == "torch-export"
        programs = checkpoint.tree
        expected = EXPORTS_OF(name)
        assert isinstance(programs, dict)
        for program, parts in expected.items():
            node = programs[program] if program else programs
            for part, tensors in parts.items():
                found = node[part]  # type: ignore[index, call-overload] # a mapping
                assert {key: described(value) for key, value in found.items()} == tensors  # type: ignore[union-attr, arg-type]


def EXPORTS_OF(name: str) -> dict[str, dict[str, dict[str, object]]]:  # noqa: N802 - beside EXPECTED
    """Return what is expected of each program of an archive; the one program has no name."""
    expected: dict = EXPECTED[name]
    return {"": expected} if "state_dict" in expected else expected


def test_ties_and_parameters_of_an_exported_program_are_kept() -> None:
    with ckptfmt.read(GOLDEN / "program.pt2") as checkpoint:
        tensors = checkpoint.tensors()
        first, tied = (tensors[f"state_dict/{name}.weight"] for name in ("first", "tied"))
        assert first.identity == tied.identity
        assert getattr(first.tag, "name", "") == keys.PARAMETER
        assert tensors["state_dict/inner.table"].tag is None


CONFIG = "program/data/weights/model_weights_config.json"


def configured(**changes: object) -> bytes:
    """Return a configuration of one tensor, changed."""
    meta = {
        "dtype": 7,
        "sizes": [{"as_int": 2}, {"as_int": 3}],
        "requires_grad": True,
        "strides": [{"as_int": 3}, {"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }
    payload: dict[str, object] = {"path_name": "weight_0", "is_param": True, "use_pickle": False}
    payload |= {key: value for key, value in changes.items() if key in payload}
    meta |= {key: value for key, value in changes.items() if key not in payload}
    return json.dumps({"config": {"w": payload | {"tensor_meta": meta}}}).encode()


HOSTILE_EXPORTS = [
    (configured(sizes=[{"as_int": 2}, {"as_int": 300}]), FormatError, "reaches to element"),
    (configured(sizes=[{"as_expr": "s0"}, {"as_int": 3}]), FormatError, "not a shape"),
    (configured(sizes=7), FormatError, "not a shape"),
    (configured(strides=[{"as_int": -3}, {"as_int": 1}]), FormatError, "stride"),
    (configured(storage_offset={"as_int": 1}), FormatError, "reaches to element"),
    (configured(dtype=99), UnsupportedVersionError, "type 99"),
    (configured(dtype="float"), UnsupportedVersionError, "type 'float'"),
    (configured(layout=1), UnsupportedVersionError, "layout 1"),
    (configured(path_name="../../etc/passwd"), MissingFileError, "no member"),
    (configured(path_name=3), FormatError, "has no file"),
    (configured(use_pickle=True), FormatError, "zip"),
    (b"[]", FormatError, "without entries"),
    (b'{"config": {"w": 1}}', FormatError, "no description"),
    (b'{"config": {"w": {"path_name": "weight_0"}}}', FormatError, "has no shape"),
    (b"{", FormatError, "no JSON"),
    (b"[" * 100_000, FormatError, "no JSON"),
    (None, MissingFileError, "no member"),
]


@pytest.mark.parametrize(("config", "error", "words"), HOSTILE_EXPORTS)
def test_damaged_exports_are_refused(
    config: bytes | None, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = changed(GOLDEN / "program.pt2", tmp_path / "x.pt2", {CONFIG: config})
    with pytest.raises(error, match=words):
        export.read(path)


def test_an_archive_of_compiled_code_alone_is_named(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x/archive_format", "pt2")
        archive.writestr("x/data/aotinductor/model/x.so", "")
    path = tmp_path / "x.pt2"
    path.write_bytes(data.getvalue())
    with pytest.raises(ckptfmt.UnknownFormatError, match="AOTInductor"):
        ckptfmt.read(path)
    with pytest.raises(UnsupportedVersionError, match="compiled code"):
        export.read(path)


@pytest.mark.parametrize("name", ["script.pt", "program.pt2"])
def test_every_beginning_of_a_program_is_refused(name: str, tmp_path: Path) -> None:
    data = (GOLDEN / name).read_bytes()
    path = tmp_path / "cut"
    for length in range(0, len(data), 61):
        path.write_bytes(data[:length])
        for reader in (script.read, export.read):
            with pytest.raises(FormatError):
                reader(path)


@pytest.mark.parametrize("name", ["script.pt", "program.pt2"])
def test_listing_a_program_reads_no_tensor_and_a_flipped_bit_is_found(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / name) as archive:
        entry = max(
            (each for each in archive.infolist() if "/data/" in each.filename and each.file_size == 24),
            key=lambda each: each.header_offset,
        )
        data = bytearray((GOLDEN / name).read_bytes())
        at = data.index(archive.read(entry), entry.header_offset)
    data[at] ^= 1
    path = tmp_path / "flipped"
    path.write_bytes(data)
    with ckptfmt.read(path) as checkpoint, pytest.raises(ckptfmt.ChecksumError):
        [tensor.numpy() for tensor in checkpoint.tensors().values()]
