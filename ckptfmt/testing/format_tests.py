"""The tests that every format must pass: subclass `FormatTests`, and pytest collects them.

A subclass names its format and says what it can hold; it inherits round trips, laziness, detection,
truncation at every byte, bit flips, refusal to overwrite, reproducible bytes and the report of losses.
Needs pytest; what a test of one format alone needs does not belong here.

Examples
--------
::

    class TestNpz(FormatTests):
        name = "npz"
        suffix = ".npz"
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

import ckptfmt
from ckptfmt.storage.reader import FileReader
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import Composite, Opaque, Strings, Tag, tagged

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfmt.tree.nodes import Tree

__all__ = ["FormatTests"]

_SHAPES = ((), (0,), (2, 0), (1,), (5,), (2, 3, 2))
_LARGE = 64 << 20
_FLIPS = 300


def example_array(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of a type, whose bytes are 0 and 1: values that every type has."""
    array = np.zeros(shape, dtype(kind).numpy)
    flat = array.reshape(-1).view(np.uint8)
    flat[::2] = 1
    return array


def small_tree() -> dict[object, object]:
    """Return a tree with tied, strided and empty tensors, and plain values."""
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    return {
        "model": {"w": weight, "tied": weight, "t": weight.T, "empty": np.zeros((2, 0))},
        "list": [np.arange(3), {"deep": np.ones(2, "f2")}],
        "step": 7,
    }


NODES: dict[str, Tree] = {
    "none": None,
    "bool": True,
    "int": 2**70,
    "float": -0.0,
    "complex": 1 + 2j,
    "str": "é/.",
    "bytes": b"\x00\xff",
    "list": [1, [2, []]],
    "tuple": (1, (2, ())),
    "set": {1, "a"},
    "frozenset": frozenset((1, b"x")),
    "keys": {1: 1, "1": 2, None: 3, 0.5: 4, b"k": 5, (1, "x"): 6, "": 7, "a.b": {"c": 8}},
    "strings": Strings((2, 1), ("a", "é")),
    "composite": Composite("thing", {"n": 1}, {}),
    "opaque": Opaque("some.Class", {"args": (1,), "state": None}),
    "tagged": tagged({"a": 1}, Tag("collections.OrderedDict", {"_metadata": {"": {"version": 1}}})),
}


class FormatTests:
    """What holds for every format.

    Attributes
    ----------
    name : str
        As registered.
    suffix : str
        Of a target file; empty for a directory.
    checksums : bool
        Whether a changed byte of tensor data is always found.
    reproducible : bool
        Whether equal trees give equal files.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    checksums: ClassVar[bool] = True
    reproducible: ClassVar[bool] = True

    # ------------------------------------------------------------- what a subclass may replace

    def write(self, tree: object, path: Path) -> tuple[ckptfmt.Finding, ...]:
        """Write a tree, and return what there is to tell."""
        return ckptfmt.write(tree, path, to=self.name)

    def read(self, path: Path) -> ckptfmt.Checkpoint:
        """Read what was written."""
        return ckptfmt.read(path)

    def target(self, folder: Path, stem: str = "target") -> Path:
        """Return a path in a folder that tells the format."""
        return folder / f"{stem}{self.suffix}"

    def files(self, path: Path) -> list[Path]:
        """Return the files that a written checkpoint consists of, sorted by name."""
        return [path] if path.is_file() else sorted(path.iterdir())

    # ------------------------------------------------------------- round trips

    def _lost(self, tree: object, path: Path) -> set[str]:
        findings = self.write(tree, path)
        return {finding.path for finding in findings if finding.severity is ckptfmt.Severity.LOSS}

    @pytest.mark.parametrize("kind", [*DTYPE_NAMES, "s3"])
    def test_every_shape_of_a_type_comes_back_or_is_told(self, kind: str, tmp_path: Path) -> None:
        """A tensor comes back bit for bit, unless a finding of loss names it."""
        tree = {f"t{i}": example_array(kind, shape) for i, shape in enumerate(_SHAPES)}
        path = self.target(tmp_path)
        lost = self._lost(tree, path)
        with self.read(path) as checkpoint:
            for name, array in tree.items():
                if name in lost:
                    continue
                found = checkpoint[name]
                assert isinstance(found, ckptfmt.Tensor)
                assert (found.dtype.name, found.shape) == (kind, array.shape)
                assert found.numpy().tobytes() == array.tobytes()

    @pytest.mark.parametrize("kind", NODES)
    def test_every_kind_of_node_comes_back_or_is_told(self, kind: str, tmp_path: Path) -> None:
        """Without a finding of loss, the root is the same."""
        tree = {"node": NODES[kind], "w": np.ones(2, "f4")}
        path = self.target(tmp_path)
        lost = self._lost(tree, path)
        assert all(name.startswith("node") for name in lost)
        with self.read(path) as checkpoint:
            same = ckptfmt.digest(checkpoint).root == ckptfmt.digest(tree).root
            assert same or lost

    def test_ties_and_structure_come_back(self, tmp_path: Path) -> None:
        """Tied tensors are one tensor again."""
        path = self.target(tmp_path)
        assert not self._lost(small_tree(), path)
        with self.read(path) as checkpoint:
            assert ckptfmt.digest(checkpoint).root == ckptfmt.digest(small_tree()).root
            tensors = checkpoint.tensors()
            assert tensors["model/w"].identity == tensors["model/tied"].identity
            assert tensors["model/w"].identity is not None

    # ------------------------------------------------------------- reading little, and by content

    def test_opening_reads_little_and_one_tensor_reads_that_tensor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes read through system calls are counted; mapped ones are not read before they are used."""
        path = self.target(tmp_path)
        self.write({"large": np.zeros(_LARGE, "u1"), "small": np.arange(9)}, path)
        count = 0
        real = FileReader.readinto

        def counted(reader: FileReader, offset: int, out: memoryview) -> None:
            nonlocal count
            count += len(out)
            real(reader, offset, out)

        monkeypatch.setattr(FileReader, "readinto", counted)
        with self.read(path) as checkpoint:
            assert checkpoint["small"].numpy().tolist() == list(range(9))  # type: ignore[union-attr] # a tensor
            assert count < 1 << 20

    def test_the_format_is_told_by_content(self, tmp_path: Path) -> None:
        """A misleading name changes nothing."""
        path = self.target(tmp_path)
        self.write(small_tree(), path)
        for other in (".pt", ".npz", ".safetensors", ".txt", ""):
            renamed = tmp_path / f"renamed{other}"
            path.rename(renamed)
            assert ckptfmt.detect(renamed).name == self.name
            path = renamed

    # ------------------------------------------------------------- damage

    def test_a_file_that_ends_early_is_refused_wherever_it_ends(self, tmp_path: Path) -> None:
        """Every length but the right one is a typed error."""
        path = self.target(tmp_path)
        self.write({"w": np.arange(4, dtype="f4"), "n": 1}, path)
        for file in self.files(path):
            data = file.read_bytes()
            for length in {*range(0, len(data), max(1, len(data) // 400)), len(data) - 1}:
                file.write_bytes(data[:length])
                assert self._outcome(path) == "refused", f"{file.name} of {length} bytes"
            file.write_bytes(data)

    def test_a_flipped_bit_is_found_or_changes_nothing(self, tmp_path: Path) -> None:
        """A reader of a format with checksums never returns other values; no reader fails untyped."""
        path = self.target(tmp_path)
        self.write(small_tree(), path)
        root = self._outcome(path)
        rng = random.Random(1)  # noqa: S311 - no secrets here
        for file in self.files(path):
            data = file.read_bytes()
            for _ in range(_FLIPS):
                changed = bytearray(data)
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                file.write_bytes(changed)
                outcome = self._outcome(path)
                assert not self.checksums or outcome in ("refused", root)
            file.write_bytes(data)

    def _outcome(self, path: Path) -> str:
        """Return the root of what is read completely, or "refused"."""
        try:
            if path.is_dir() and self.name == "ckptfmt" and not ckptfmt.check(path).ok:
                return "refused"
            with self.read(path) as checkpoint:
                return ckptfmt.digest(checkpoint).root.hex()
        except ckptfmt.CkptError:
            return "refused"

    # ------------------------------------------------------------- writing

    def test_what_is_there_is_not_overwritten_unasked(self, tmp_path: Path) -> None:
        """The old file stays as it was."""
        path = self.target(tmp_path)
        self.write({"w": np.ones(2)}, path)
        before = self._outcome(path)
        names = sorted(entry.name for entry in tmp_path.iterdir())
        with pytest.raises(ckptfmt.ExistsError):
            self.write({"w": np.zeros(2)}, path)
        assert self._outcome(path) == before
        assert sorted(entry.name for entry in tmp_path.iterdir()) == names

    def test_equal_trees_give_equal_bytes(self, tmp_path: Path) -> None:
        """The file's own name is not in it, nor is a time."""
        contents = []
        for stem in ("one", "two"):
            path = self.target(tmp_path, stem)
            self.write(small_tree(), path)
            contents.append([file.read_bytes() for file in self.files(path)])
        assert (contents[0] == contents[1]) is self.reproducible

    def test_a_loss_is_an_error_where_none_is_allowed(self, tmp_path: Path) -> None:
        """Under `strict` nothing is written that would lose something."""
        ckptfmt.save({"node": NODES["opaque"], "w": np.ones(2, "f4")}, tmp_path / "source")
        path = self.target(tmp_path)
        lossy = bool(self._lost({"node": NODES["opaque"]}, self.target(tmp_path, "probe")))
        if lossy:
            with pytest.raises(ckptfmt.LossyError):
                ckptfmt.convert(tmp_path / "source", path, to=self.name, strict=True)
            assert not path.exists()
        else:
            ckptfmt.convert(tmp_path / "source", path, to=self.name, strict=True)
            assert self._outcome(path) == self._outcome(tmp_path / "source")
