"""Places to write to: the disk under pytest's temporary directory, and memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory of a tmpfs."""
    if not Path("/dev/shm").is_dir():  # noqa: S108 (the file system is the point)
        pytest.skip("there is no /dev/shm here")
    made = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="ckptfmt-test-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory of each kind in turn."""
    if request.param == "disk":
        return tmp_path
    found = request.getfixturevalue("memory")
    assert isinstance(found, Path)
    return found
