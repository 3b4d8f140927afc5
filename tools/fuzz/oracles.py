"""What must hold of an input that was read: it reads the same again, and the same as others read it.

Others are the standard library, numpy, the real safetensors where it is installed, and for native
checkpoints the reference reader, which must accept exactly what the package accepts.
"""

from __future__ import annotations

import io
import sys
import warnings
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.containers.safetensors import decode_header
from ckptfmt.storage.reader import MemoryReader
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import survey
from ckptfmt.verify.digesting import tree_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.nodes import Tree

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "spec" / "reference"))

from read_ckptfmt import RejectedError  # noqa: E402
from read_ckptfmt import read as reference_read  # noqa: E402

__all__ = ["equal_to_numpy", "equal_to_safetensors", "equal_to_zipfile", "native_alike", "reads_alike"]


def reads_alike(opened: Callable[[], Checkpoint], place: Path, data: bytes) -> None:
    """Open an input twice, read every tensor, and compare; of one in sixteen, save it and load it too."""
    with opened() as checkpoint:
        survey(checkpoint.tree)
        first = tree_digests(checkpoint.tree, threads=1)
        if zlib.crc32(data) % 16 == 0:
            _saved_alike(checkpoint.tree, place / "saved", first.root)
    with opened() as checkpoint:
        if tree_digests(checkpoint.tree, threads=1) != first:
            raise AssertionError("an input that was read is not the same when read again")


def _saved_alike(tree: Tree, path: Path, root: bytes) -> None:
    ckptfmt.save(tree, path, overwrite=True)
    if ckptfmt.digest(path).root != root:
        raise AssertionError("an input that was read is not the same when saved")


def native_alike(folder: Path) -> None:
    """Load a native checkpoint completely; what is read and what is refused must be so for all.

    That is: for `load`, for `check`, which finds the same without raising, and for the reference reader.
    """
    report = ckptfmt.check(folder)
    theirs = _reference_root(folder)
    if report.ok != (theirs is not None):
        raise AssertionError(f"the reference reader says {theirs}, check says {report}")
    with ckptfmt.load(folder, verify="full") as checkpoint:
        ours = tree_digests(checkpoint.tree, threads=1).root.hex()
    if ours != theirs:
        raise AssertionError(f"the reference reader says {theirs}, load reads {ours}")


def _reference_root(folder: Path) -> object:
    """Return the root that the reference reader reads, or None if it refuses."""
    try:
        return reference_read(folder).root
    except RejectedError:
        return None


def equal_to_zipfile(data: bytes, members: Mapping[str, bytes]) -> None:
    """Compare the members of an archive that was read with what the standard library reads."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            theirs = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    except NotImplementedError:  # it says that a newer version of zip is needed, which nothing else shows
        return
    if theirs != dict(members):
        raise AssertionError(f"zipfile reads {theirs!r:.200}, not {members!r:.200}")


def equal_to_numpy(data: bytes, node: Tree) -> None:
    """Compare a tensor that was read from an npy file with numpy's array, where numpy reads one."""
    if not isinstance(node, Tensor):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2
            array = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError:  # numpy refuses some headers for their length, and arrays of objects
        return
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    if node.shape != array.shape or node.numpy().tobytes() != native.tobytes():
        raise AssertionError(f"numpy reads {array!r:.200}, not {node.numpy()!r:.200}")


def equal_to_safetensors(data: bytes) -> None:
    """Compare the entries of a file that was read with what the real safetensors reads, if it is there."""
    if find_spec("safetensors") is None:
        return
    from safetensors import deserialize

    header = decode_header(MemoryReader(data))
    body = memoryview(data)[header.data_start :]
    ours = {entry.name: (list(entry.shape), bytes(body[entry.begin : entry.end])) for entry in header.entries}
    theirs = {name: (found["shape"], bytes(found["data"])) for name, found in deserialize(data)}  # type: ignore[no-untyped-call]
    if theirs != ours:
        raise AssertionError(f"safetensors reads {theirs!r:.200}, not {ours!r:.200}")
