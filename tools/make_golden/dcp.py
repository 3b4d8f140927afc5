"""Write the golden DCP directories into tests/golden/dcp; run by a person, never by a test.

Runs in the environment that `make test` makes for frameworks: ``.venv-test/bin/python -m
tools.make_golden.dcp``. Each case is saved by real ranks (gloo, on this machine). ``expected.json`` holds
what PyTorch's own readers make of each directory without ranks: the structure, and type, shape and SHA-256 of
every tensor. MANIFEST.toml records versions, command and SHA-256 of the files.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "dcp"
SEED = 20261201
Foreign: TypeAlias = Any  # an object of a library without types


def module(name: str) -> Foreign:
    """Return a module of PyTorch."""
    return importlib.import_module(f"torch.{name}" if name else "torch")


def dcp() -> Foreign:
    """Return `torch.distributed.checkpoint`."""
    return module("distributed.checkpoint")


# --- what is saved ------------------------------------------------------------------------------------


def trained(mesh: Foreign) -> dict[str, object]:
    """Return model and Adam state of a small model after a step, sharded over a mesh."""
    torch, nn = module(""), module("nn")
    torch.manual_seed(SEED)
    layers = [nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 1, bias=False)]  # 5 and 1 rows: uneven, empty
    model = nn.Sequential(*layers)
    module("distributed.fsdp").fully_shard(model, mesh=mesh)
    optimizer = module("optim").AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9), foreach=False)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = module("distributed.checkpoint.state_dict").get_state_dict(model, optimizer)
    return {"model": state[0], "optim": state[1], "epoch": 3}


def fsdp2(rank: int, world: int, folder: str) -> None:
    """FSDP2, model and optimizer."""
    del rank
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (world,))
    dcp().save(trained(mesh), checkpoint_id=folder)


def hsdp(rank: int, world: int, folder: str) -> None:
    """Replicas of shards."""
    del rank
    mesh = module("distributed.device_mesh").init_device_mesh(
        "cpu", (2, world // 2), mesh_dim_names=("replica", "shard")
    )
    dcp().save({"model": trained(mesh)["model"]}, checkpoint_id=folder)


def grid(rank: int, world: int, folder: str) -> None:
    """DTensors over a mesh of two dimensions, in all placements, uneven."""
    del rank
    torch, tensor = module(""), module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (2, world // 2))
    whole = torch.arange(5 * 3, dtype=torch.float32).reshape(5, 3)
    shard, replicate = tensor.Shard, tensor.Replicate()
    placements = {
        "rows_columns": (shard(0), shard(1)),
        "columns_rows": (shard(1), shard(0)),
        "rows_rows": (shard(0), shard(0)),
        "rows": (shard(0), replicate),
        "columns": (replicate, shard(1)),
        "replicated": (replicate, replicate),
    }
    state = {name: tensor.distribute_tensor(whole.clone(), mesh, how) for name, how in placements.items()}
    state["half"] = tensor.distribute_tensor(whole.bfloat16(), mesh, (shard(1), shard(1)))
    dcp().save({"grid": state, "plain": torch.ones(2)}, checkpoint_id=folder)


def plain_state() -> dict[str, object]:
    """Return a state dict of many kinds."""
    torch = module("")
    kinds = ("float64", "float16", "bfloat16", "int8", "uint16", "bool", "complex64", "float8_e4m3fn")
    tensors = {name: torch.arange(3).to(getattr(torch, name)) for name in kinds}
    return {
        "kinds": tensors,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(2, 0),
        "strided": torch.arange(6).reshape(2, 3).T,
        "parameter": module("nn").Parameter(torch.ones(2)),
        "dotted.name": {"a.b": torch.zeros(1), "": 1},
        "list": [torch.ones(1), {"deep": [torch.zeros(1), 5]}, 7],
        "plain": [1, 2.5, None, "é"],
        "tuple": (1, torch.ones(2)),
        "numbers": {1: torch.ones(1), False: "no", 2.5: None},
        "nothing": {},
        "set": {3},
        "dtype": torch.float32,
        "bytes": b"\x00\xff",
        "big": 2**70,
    }


def plain(rank: int, world: int, folder: str) -> None:
    """One process."""
    del rank, world
    dcp().save(plain_state(), checkpoint_id=folder)


def items(rank: int, world: int, folder: str) -> None:
    """A file for each item."""
    torch, tensor = module(""), module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (world,))
    value = torch.arange(6.0).reshape(3, 2)
    state = {"w": tensor.distribute_tensor(value, mesh, (tensor.Shard(0),)), "same": value, "step": 4}
    writer = dcp().FileSystemWriter(folder, single_file_per_rank=False)
    dcp().save(state | {f"rank.{rank}": torch.full((2,), rank)}, storage_writer=writer)


def alone(rank: int, world: int, folder: str) -> None:
    """Ranks that save without each other."""
    del world
    state = {"w": module("").full((2,), float(rank)), "rank": rank}
    dcp().save(state, checkpoint_id=folder, use_collectives=False)


def hugging_face(rank: int, world: int, folder: str) -> None:
    """Safetensors files of partial shapes, one for each rank."""
    torch, tensor = module(""), module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (world,))
    value = torch.arange(15.0).reshape(5, 3)
    state = {
        "rows": tensor.distribute_tensor(value, mesh, (tensor.Shard(0),)),
        "columns": tensor.distribute_tensor(value.bfloat16(), mesh, (tensor.Shard(1),)),
        "same": value.long(),
        "scalar": torch.tensor(1.5),
    }
    writer = dcp().HuggingFaceStorageWriter(path=folder, save_distributed=True)
    del rank
    dcp().save(state, storage_writer=writer)


def hugging_face_index(rank: int, world: int, folder: str) -> None:
    """Safetensors files of whole tensors with an index."""
    torch = module("")
    state = {"a": torch.arange(4.0), "b": torch.ones(2, 2, dtype=torch.float16)}
    writer = dcp().HuggingFaceStorageWriter(path=folder, fqn_to_index_mapping={"a": 1, "b": 2})
    del rank, world
    dcp().save(state, storage_writer=writer)


CASES: dict[str, tuple[int, Callable[[int, int, str], None]]] = {
    "fsdp2-2": (2, fsdp2),
    "fsdp2-4": (4, fsdp2),
    "hsdp-4": (4, hsdp),
    "grid-4": (4, grid),
    "plain-1": (1, plain),
    "items-2": (2, items),
    "alone-2": (2, alone),
    "hf-2": (2, hugging_face),
    "hf-index-1": (1, hugging_face_index),
}


# --- ranks --------------------------------------------------------------------------------------------


def run_rank(rank: int, name: str, port: int, folder: str) -> None:
    """Save one case as one of its ranks."""
    world, save = CASES[name]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed = module("distributed")
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    save(rank, world, folder)
    distributed.barrier()
    time.sleep(1)  # gloo aborts where a peer leaves first
    os._exit(0)


def run(name: str, folder: Path) -> None:
    """Save one case with all of its ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module("multiprocessing").spawn(run_rank, (name, port, str(folder)), nprocs=CASES[name][0])


# --- what PyTorch reads -------------------------------------------------------------------------------


def described(value: object) -> object:
    """Return what a value is, as JSON: pairs of mappings in order, digests of tensors."""
    torch = module("")
    if isinstance(value, torch.Tensor):
        whole = value.detach().contiguous().flatten().view(torch.uint8) if value.numel() else torch.zeros(0)
        digest = hashlib.sha256(whole.numpy().tobytes()).hexdigest()
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), digest]
    if isinstance(value, dict):
        return ["dict", [[key, described(child)] for key, child in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [described(child) for child in value]]
    return [type(value).__name__, repr(value)]


def read_by_torch(folder: Path) -> object:
    """Return what `dcp_to_torch_save` makes of a directory."""
    utils = module("distributed.checkpoint.format_utils")
    with tempfile.TemporaryDirectory() as place:
        utils.dcp_to_torch_save(folder, f"{place}/a.pt")
        return module("").load(f"{place}/a.pt", weights_only=False)


def read_of_rank(folder: Path, rank: int) -> object:
    """Return what one rank's own metadata holds."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        Path(place, f"__{rank}.metadata").rename(Path(place, ".metadata"))
        return read_by_torch(Path(place))


def read_by_hugging_face(folder: Path) -> object:
    """Return the full tensors that `HuggingFaceStorageReader` joins."""
    reader = dcp().HuggingFaceStorageReader(path=str(folder))
    rows = reader.read_metadata().state_dict_metadata
    state = {
        name: module("").empty(rows[name].size, dtype=rows[name].properties.dtype) for name in sorted(rows)
    }
    dcp().load(state, storage_reader=reader, no_dist=True)
    return state


def expected(name: str, folder: Path) -> object:
    """Return what PyTorch reads of a case."""
    if name.startswith("hf"):
        return described(read_by_hugging_face(folder))
    if name.startswith("alone"):
        return [described(read_of_rank(folder, rank)) for rank in range(CASES[name][0])]
    return described(read_by_torch(folder))


def main() -> None:
    """Write every case anew."""
    torch = module("")
    target = GOLDEN / torch.__version__.partition("+")[0]
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    rows = []
    for name in CASES:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)  # what is saved holds its path as it is given: a relative one tells nothing
            run(name, Path(name))
            shutil.copytree(name, target / name)
            os.chdir(target)
        rows.append(f"{json.dumps(name)}: {json.dumps(expected(name, target / name))}")
    (target / "expected.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    lines = [
        'command = "python -m tools.make_golden.dcp"',
        "[versions]",
        f'torch = "{torch.__version__}"',
        f'safetensors = "{importlib.import_module("safetensors").__version__}"',
        f'python = "{platform.python_version()}"',
        "[sha256]",
    ]
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f'"{path.relative_to(target).as_posix()}" = "{digest}"')
    (target / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
