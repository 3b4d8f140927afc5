"""Who is measured: one pair of functions each, saving a state durably and loading it completely.

Every save ends with the data on the disk (fsync of files and directory counted); every load ends with
arrays whose every byte has been read. A peer that is not installed is left out, and said so.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from ckptfmt.storage.files import aligned_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

State = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that saves and loads.

    Attributes
    ----------
    name : str
    save : callable
        Takes a state and a path that is free.
    load : callable or None
        Takes the path; reads everything.
    """

    name: str
    save: Callable[[State, Path], None]
    load: Callable[[Path], None] | None


def sync(path: Path) -> None:
    """Bring a file, or a directory and its files, to the disk."""
    for file in [*path.rglob("*"), path] if path.is_dir() else [path, path.parent]:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove(path: Path) -> None:
    """Remove what a contender wrote."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def touch(arrays: Iterable[np.ndarray]) -> None:
    """Read every byte, as words that lie at multiples of eight: numpy copies others before it adds them."""
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        flat = flat[-flat.ctypes.data % 8 :]
        flat[: flat.size - flat.size % 8].view(np.uint64).sum()


def _ours_load(verify: str) -> Callable[[Path], None]:
    def load(path: Path) -> None:
        with ckptfmt.load(path, verify=verify) as checkpoint:  # type: ignore[arg-type] # one of three words
            touch(tensor.numpy() for tensor in checkpoint.tensors().values())

    return load


def raw_copy(state: State, path: Path) -> None:
    """Write as many bytes as the state has: direct I/O, 16 MiB pieces, preallocated, one thread."""
    size = sum(array.nbytes for array in state.values())
    size += -size % 4096
    buffer = aligned_buffer(16 << 20)
    buffer[: 1 << 20] = os.urandom(1 << 20)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_DIRECT", 0), 0o666)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        for offset in range(0, size, len(buffer)):
            os.pwrite(fd, buffer[: min(len(buffer), size - offset)], offset)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync(path)


def _npz() -> Contender:
    def save(state: State, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **state)  # type: ignore[arg-type] # no tensor is called allow_pickle
        sync(path)

    def load(path: Path) -> None:
        with np.load(path) as file:
            touch(file[name] for name in file.files)

    return Contender("numpy.savez", save, load)


def _safetensors() -> Contender:
    from safetensors.numpy import save_file
    from safetensors.torch import load_file

    def save(state: State, path: Path) -> None:
        save_file(state, path)
        sync(path)

    def load(path: Path) -> None:
        touch(tensor.numpy() for tensor in load_file(path).values())

    return Contender("safetensors", save, load)


def _torch() -> Contender:
    import torch

    def save(state: State, path: Path) -> None:
        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
        sync(path)

    return Contender("torch.save", save, lambda path: touch(t.numpy() for t in torch.load(path).values()))


def _dcp(threads: int) -> Contender:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    def save(state: State, path: Path) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        writer = FileSystemWriter(path, single_file_per_rank=threads == 1, thread_count=threads)
        dcp_save(tensors, storage_writer=writer, no_dist=True)
        sync(path)

    def load(path: Path) -> None:
        reader = FileSystemReader(path)
        rows = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(row.size, dtype=row.properties.dtype)
            for name, row in rows.items()
            if isinstance(row, TensorStorageMetadata)
        }
        dcp_load(tensors, storage_reader=reader, no_dist=True)
        touch(tensor.numpy() for tensor in tensors.values())

    return Contender(f"DCP, {threads} thread{'s' if threads > 1 else ''}", save, load)


def _h5py() -> Contender:
    import h5py

    def save(state: State, path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, array in state.items():
                file.create_dataset(name, data=array)
        sync(path)

    def load(path: Path) -> None:
        with h5py.File(path, "r") as file:
            touch(file[name][...] for name in file)

    return Contender("h5py", save, load)


def ours() -> list[Contender]:
    """Return this project's ways."""
    return [
        Contender("ckptfmt", _save, _ours_load("access")),
        Contender("ckptfmt, verified before", _save, _ours_load("full")),
        Contender("ckptfmt, unverified", _save, _ours_load("none")),
    ]


def _save(state: State, path: Path) -> None:
    ckptfmt.save(state, path)


def peers() -> tuple[list[Contender], list[str]]:
    """Return the peers that are installed, and the names of those that are not."""
    made, missing = [], []
    for make in (_torch, _safetensors, lambda: _dcp(1), lambda: _dcp(2), _npz, _h5py):
        try:
            made.append(make())
        except ImportError as error:
            missing.append(str(error))
    return made, missing
