from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptfmt.conversion.targets import options_for, refuse_overlap, target_format
from ckptfmt.errors import ConversionError, ExistsError, UnknownFormatError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("x.npz", "npz"),
        ("X.NPZ", "npz"),
        ("a.b.pt", "torch"),
        ("x.pth", "torch"),
        ("x.safetensors", "safetensors"),
        ("d/model.safetensors.index.json", "safetensors"),
        ("step-000100", "ckptfmt"),
        ("d.x/step", "ckptfmt"),
        ("x.ckptfmt", "ckptfmt"),
        (".hidden", "ckptfmt"),
    ],
)
def test_the_ending_of_a_target_tells_its_format(target: str, name: str) -> None:
    assert target_format(target).name == name


def test_a_name_goes_before_an_ending() -> None:
    assert target_format("x.npz", "torch").name == "torch"


@pytest.mark.parametrize("target", ["x.ckpt", "x.bin", "x.json", "step-1.5", "x.index.json"])
def test_an_ending_that_does_not_tell_lists_the_choices(target: str) -> None:
    with pytest.raises(UnknownFormatError, match=r"ckptfmt, .*npz, .*safetensors, .*torch"):
        target_format(target)


def test_what_the_target_cannot_do_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="raw or deflate"):
        options_for(tmp_path / "x.npz", codec="zstd")
    with pytest.raises(ConversionError, match="no size of shards"):
        options_for(tmp_path / "x.pt", shard_size=1 << 20)
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(ExistsError):
        options_for(tmp_path / "x.pt")
    assert options_for(tmp_path / "x.pt", overwrite=True).overwrite is True


def test_a_dangling_link_is_a_target_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "x.pt").symlink_to("nowhere")
    with pytest.raises(ExistsError):
        options_for(tmp_path / "x.pt")


def test_a_target_that_is_the_source_by_any_name_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    source.write_bytes(b"x")
    (tmp_path / "link.pt").symlink_to(source)
    (tmp_path / "hard.pt").hardlink_to(source)
    (tmp_path / "d").mkdir()
    for other in ("a.pt", "link.pt", "hard.pt", "d/../a.pt"):
        with pytest.raises(ConversionError, match="another place"):
            refuse_overlap(source, tmp_path / other)


def test_a_target_in_the_source_or_around_it_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "step" / "data.safetensors"
    inside.parent.mkdir()
    inside.write_bytes(b"x")
    for source, target in ((inside.parent, inside.parent / "x.npz"), (inside, inside.parent)):
        with pytest.raises(ConversionError, match="another place"):
            refuse_overlap(source, target)
    refuse_overlap(inside.parent, tmp_path / "other")
    refuse_overlap(inside, tmp_path / "x.npz")
