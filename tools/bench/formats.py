"""Measure reading and converting of foreign files: ``python -m tools.bench.formats [--rounds N] [CASE ...]``.

A case is a file that a real framework wrote, and several ways to do one thing with it: ours, those of others,
and for reading a raw read of the same bytes. Ways take turns in each round; ratios are to the case's first
way in the same round. Files are in the page cache; what is written is brought to the disk. To add a format,
add a row to `CASES`. A case whose framework is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from tools.bench.__main__ import large_state, show
from tools.bench.contenders import State, remove, sync, touch
from tools.bench.measure import Series, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PIECE = 16 << 20


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do what a case is about.

    Attributes
    ----------
    name : str
    run : callable
        Takes the source and a path that is free, for what it may write.
    """

    name: str
    run: Callable[[Path, Path], None]


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is measured.

    Attributes
    ----------
    name : str
    title : str
    make : callable
        Writes the source with its own framework.
    ways : tuple of Way
        The first is the reference.
    """

    name: str
    title: str
    make: Callable[[State, Path], None]
    ways: tuple[Way, ...]


# --- sources ------------------------------------------------------------------------------------------


def torch_file(state: State, path: Path) -> None:
    """Write with `torch.save`."""
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)


def dcp_directory(state: State, path: Path) -> None:
    """Write with DCP, two files, without ranks."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    save(tensors, storage_writer=FileSystemWriter(path, thread_count=2), no_dist=True)


def safetensors_file(state: State, path: Path) -> None:
    """Write with safetensors."""
    from safetensors.numpy import save_file

    save_file(state, path)


def npz_file(state: State, path: Path) -> None:
    """Write with numpy."""
    with path.open("wb") as file:
        np.savez(file, **state)  # type: ignore[arg-type] # no tensor is called allow_pickle


def hdf5_file(state: State, path: Path) -> None:
    """Write with h5py, contiguous."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in state.items():
            file[name] = array


def deflated_hdf5_file(state: State, path: Path) -> None:
    """Write with h5py as Chainer does: deflate 4, in the chunks that h5py chooses."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in state.items():
            file.create_dataset(name, data=array, compression=4)


# --- ways of others -------------------------------------------------------------------------------------


def torch_to_safetensors(source: Path, target: Path) -> None:
    """Load with PyTorch and save with safetensors, durably."""
    import torch
    from safetensors.torch import save_file

    save_file(torch.load(source), target)
    sync(target)


def dcp_to_torch(source: Path, target: Path) -> None:
    """Convert with PyTorch's own tool, durably."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(source, target)
    sync(target)


def dcp_load(source: Path, _: Path) -> None:
    """Load with DCP, without ranks."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(source)
    rows = reader.read_metadata().state_dict_metadata.items()
    state = {
        name: torch.empty(row.size, dtype=row.properties.dtype)
        for name, row in rows
        if isinstance(row, TensorStorageMetadata)
    }
    load(state, storage_reader=reader, no_dist=True)
    touch(tensor.numpy() for tensor in state.values())


def torch_load(source: Path, _: Path) -> None:
    """Load with PyTorch."""
    import torch

    touch(tensor.numpy() for tensor in torch.load(source).values())


def h5py_read(source: Path, _: Path) -> None:
    """Read every dataset with h5py."""
    import h5py

    with h5py.File(source) as file:
        touch(file[name][...] for name in _datasets(file))


def hdf5_chunks(source: Path, _: Path) -> None:
    """Read every chunk as it is stored and inflate it: a raw read plus decompression."""
    import h5py

    with h5py.File(source) as file:
        for name in _datasets(file):
            found = file[name].id
            for index in range(found.get_num_chunks()):
                _, data = found.read_direct_chunk(found.get_chunk_info(index).chunk_offset)
                touch([np.frombuffer(zlib.decompress(data), np.uint8)])


def _datasets(file: Mapping[str, object]) -> list[str]:
    import h5py

    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)  # type: ignore[attr-defined] # of h5py
    return names


# --- ways of ours, and the raw one ------------------------------------------------------------------------


def raw_read(source: Path, _: Path) -> None:
    """Read every byte of the files into one buffer, and look at it."""
    buffer = np.empty(_PIECE, np.uint8)
    for file in sorted(source.iterdir()) if source.is_dir() else [source]:
        with file.open("rb", buffering=0) as opened:
            while count := opened.readinto(buffer.data):
                touch([buffer[:count]])


def our_read(source: Path, _: Path) -> None:
    """Read every tensor."""
    with ckptfmt.read(source) as checkpoint:
        touch(tensor.numpy() for tensor in checkpoint.tensors().values())


def our_conversion(source: Path, target: Path) -> None:
    """Convert to the native format, without reading it again."""
    ckptfmt.convert(source, target, to="ckptfmt", verify=False)


def our_verified_conversion(source: Path, target: Path) -> None:
    """Convert to the native format and verify every byte."""
    ckptfmt.convert(source, target, to="ckptfmt")


_RAW = Way("raw read", raw_read)
_READ = Way("ckptfmt.read", our_read)
_CONVERT = (
    Way("ckptfmt.convert", our_conversion),
    Way("ckptfmt.convert, verified", our_verified_conversion),
)

CASES = (
    Case(
        "convert-torch",
        ".pt to native, durable",
        torch_file,
        (Way("torch.load + safetensors", torch_to_safetensors), *_CONVERT),
    ),
    Case(
        "convert-dcp",
        "DCP to native, durable",
        dcp_directory,
        (_RAW, *_CONVERT, Way("dcp_to_torch_save", dcp_to_torch)),
    ),
    Case("read-torch", "reading .pt", torch_file, (_RAW, _READ, Way("torch.load", torch_load))),
    Case("read-dcp", "reading DCP", dcp_directory, (_RAW, _READ, Way("DCP load", dcp_load))),
    Case("read-safetensors", "reading safetensors", safetensors_file, (_RAW, _READ)),
    Case("read-hdf5", "reading HDF5", hdf5_file, (_RAW, _READ, Way("h5py", h5py_read))),
    Case(
        "read-hdf5-deflated",
        "reading deflated HDF5",
        deflated_hdf5_file,
        (Way("chunks inflated", hdf5_chunks), _READ, Way("h5py", h5py_read)),
    ),
    Case("read-npz", "reading NPZ", npz_file, (_RAW, _READ)),
)


def measured(case: Case, state: State, place: Path, *, rounds: int) -> dict[str, Series]:
    """Measure one case; each round begins with another way."""
    source, target = place / "source", place / "target"
    case.make(state, source)
    sync(source)
    table = {way.name: Series() for way in case.ways}
    for number in range(rounds + 1):
        turn = number % len(case.ways)
        times = {}
        for way in (*case.ways[turn:], *case.ways[:turn]):
            times[way.name] = timed(lambda w=way: w.run(source, target))  # type: ignore[misc] # run at once
            remove(target)
        if number:  # the first round warms the page cache and imports
            for name, seconds in times.items():
                table[name].seconds.append(seconds)
                table[name].ratios.append(times[case.ways[0].name] / seconds)
    remove(source)
    return table


def main() -> None:
    """Measure the cases asked for."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m tools.bench.formats", description=__doc__)
    parser.add_argument("cases", nargs="*", default=[], choices=[*names, []], metavar="CASE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=1024, help="MiB of tensors in each file")
    parser.add_argument("--place", type=Path, help="a directory on the file system to measure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    state = large_state(options.size)
    nbytes = sum(array.nbytes for array in state.values())
    figures: dict[str, object] = {}
    print(f"ckptfmt {ckptfmt.__version__}, numpy {np.__version__}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(dir=options.place or Path.cwd(), prefix=".bench-") as place:
        for case in CASES:
            if options.cases and case.name not in options.cases:
                continue
            try:
                table = measured(case, state, Path(place), rounds=options.rounds)
            except ImportError as error:
                print(f"\n{case.title}: left out, {error}")
                continue
            show(
                f"{case.title}, {options.size} MiB fp32 in {len(state)} tensors",
                table,
                nbytes,
                case.ways[0].name,
            )
            figures[case.name] = {name: series.as_json() for name, series in table.items()}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
