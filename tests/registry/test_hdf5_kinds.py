"""HDF5 files are told by their signature, wherever it stands, and by the names at their top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import TruncatedError
from ckptfmt.registry import detect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework
h5py = pytest.importorskip("h5py", reason="needs the extra `hdf5`")


@pytest.mark.parametrize("block", [0, 512, 4096, 1 << 16])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_the_signature_is_found_behind_a_user_block(block: int, libver: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with h5py.File(path, "w", userblock_size=block, libver=libver) as file:
        file["group/w"] = np.arange(3)
    if block:
        with path.open("r+b") as opened:
            opened.write(b"# a user's own text\n")
    assert detect(path).name == "hdf5"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedError, match="an HDF5 file that is cut short"):
        detect(path)


def test_links_out_of_a_file_are_not_followed_to_tell_what_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["updater/iteration"] = 1
        file.create_group("updater/model:main")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["updater"] = h5py.ExternalLink("other.h5", "/updater")
    assert detect(tmp_path / "a.h5").name == "hdf5"
    assert detect(tmp_path / "other.h5").name == "chainer-hdf5"
