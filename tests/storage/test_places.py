from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckptfmt.storage.places import Place, place_of, place_of_type


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x6969, "nfs"),
        (0x0BD00BD0, "lustre"),
        (0x47504653, "gpfs"),
        (0xFF534D42, "cifs"),
        (0xFE534D42, "smb2"),
        (0x65735546, "fuse"),
        (0x01021997, "9p"),
    ],
)
def test_shared_file_systems_are_not_mapped(number: int, name: str) -> None:
    assert place_of_type(number) == Place(name, network=True)


@pytest.mark.parametrize(
    ("number", "name"), [(0xEF53, "ext4"), (0x58465342, "xfs"), (0x01021994, "tmpfs"), (0x1234, "0x1234")]
)
def test_others_are_local(number: int, name: str) -> None:
    assert place_of_type(number) == Place(name, network=False)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the type of a file system by statfs")
def test_the_machine_tells_what_it_is() -> None:
    if not Path("/dev/shm").is_dir():  # noqa: S108
        pytest.skip("there is no /dev/shm here")
    assert place_of("/dev/shm") == Place("tmpfs", network=False)  # noqa: S108
    assert place_of("/proc").file_system == "0x9fa0"


def test_a_path_that_is_not_there_is_of_no_known_kind(tmp_path: Path) -> None:
    assert place_of(tmp_path / "none") == Place("unknown", network=False)
