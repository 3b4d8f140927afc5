"""Write golden programs and rank files of PyTorch into tests/golden/torch; run by a person, never by a test.

Runs in the environment that `make test` makes for frameworks: ``.venv-test/bin/python -m
tools.make_golden.torch_special``. Rank files are saved by real ranks (gloo, on this machine).
``expected.json`` holds type, shape and SHA-256 of every tensor as PyTorch has it: of programs as it loads
them, of distributed tensors whole. MANIFEST.toml records versions, command and SHA-256 of the files.
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
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "torch"
SEED = 20261201
Foreign: TypeAlias = Any  # an object of a library without types


def module(name: str) -> Foreign:
    """Return a module of PyTorch."""
    return importlib.import_module(f"torch.{name}" if name else "torch")


torch: Foreign = module("")
if TYPE_CHECKING:
    Tensor: TypeAlias = Any
else:
    Tensor = torch.Tensor  # TorchScript reads annotations


def described(value: Foreign) -> list[object]:
    """Return type, shape and digest of a tensor."""
    value = value.detach().contiguous()
    data = bytes(value.reshape(-1).view(torch.uint8).numpy())
    return [str(value.dtype).removeprefix("torch."), list(value.shape), hashlib.sha256(data).hexdigest()]


# --- programs -----------------------------------------------------------------------------------------


class Inner(torch.nn.Module):  # type: ignore[misc] # torch is imported by name
    """A module with what programs may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
        self.register_buffer("table", torch.arange(3))
        self.register_buffer("mine", torch.ones(2, dtype=torch.float16), persistent=False)
        self.scale: float = 2.0

    def forward(self, x: Tensor) -> Tensor:
        """Use all of it."""
        return x @ self.w.t() * self.scale + self.table[0] + self.mine.float()


class Net(torch.nn.Module):  # type: ignore[misc] # torch is imported by name
    """A module with a tie, a list and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.first = torch.nn.Linear(3, 2)
        self.tied = torch.nn.Linear(3, 2, bias=False)
        self.tied.weight = self.first.weight
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        self.sizes = [1, 2]
        self.words: dict[str, int] = {"a": 1}

    def forward(self, x: Tensor) -> Tensor:
        """Use all of it."""
        y = self.first(x) + self.inner(x) + self.tied(x) + torch.tensor([1.5, 2.5])
        for layer in self.layers:
            y = layer(y)
        return y


def net() -> Foreign:
    """Return the same module each time."""
    torch.manual_seed(SEED)
    return Net().eval()


def attributes(program: Foreign) -> dict[str, object]:
    """Return the tensors of a loaded TorchScript program by path."""
    named = [
        *program.named_parameters(remove_duplicate=False),
        *program.named_buffers(remove_duplicate=False),
    ]
    return {name.replace(".", "/"): described(value) for name, value in named}


def constants(program: Foreign) -> list[list[object]]:
    """Return the tensors in the code of a program."""
    nodes = [node for node in program.inlined_graph.nodes() if node.kind() == "prim::Constant"]
    kept = [
        node for node in nodes if node.output().type().kind() == "TensorType" and node.hasAttribute("value")
    ]
    return sorted(described(node.t("value")) for node in kept)


def without_debug_records(path: Path) -> None:
    """Write a program anew, by PyTorch's own writer, without the places of its source on this machine."""
    records = torch._C.PyTorchFileReader(str(path))  # noqa: SLF001 - there is no other way
    version = int(records.get_record("version"))
    kept = {name: records.get_record(name) for name in records.get_all_records()}
    writer = torch._C.PyTorchFileWriter(str(path))  # noqa: SLF001 - the same
    writer.set_min_version(version)
    for name, data in kept.items():
        if not name.endswith(".debug_pkl") and name not in ("version", "byteorder", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()


def scripts(folder: Path) -> dict[str, object]:
    """Write TorchScript programs: scripted, traced, frozen, and for the lite interpreter."""
    made: dict[str, object] = {}
    scripted = torch.jit.script(net())
    example = torch.ones(1, 3)
    torch.jit.save(scripted, folder / "script.pt")
    torch.jit.save(torch.jit.trace(net(), example), folder / "trace.pt")
    torch.jit.save(torch.jit.freeze(torch.jit.script(net())), folder / "frozen.pt")
    scripted._save_for_lite_interpreter(str(folder / "lite.ptl"))  # noqa: SLF001 - there is no other way
    for name in ("script.pt", "trace.pt", "frozen.pt", "lite.ptl"):
        without_debug_records(folder / name)
        program = torch.jit.load(folder / name)
        made[name] = {"attributes": attributes(program), "constants": constants(program)}
    return made


def traceless(model: Foreign, example: tuple[Foreign, ...]) -> Foreign:
    """Return an exported program without the places of its source on this machine."""
    program = torch.export.export(model, example)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def exported(folder: Path) -> dict[str, object]:
    """Write programs of torch.export: one, two in one archive, and one as PyTorch before 2.8 wrote it."""
    example = (torch.ones(1, 3),)
    program, other = (traceless(module, example) for module in (net(), torch.nn.Linear(3, 1).eval()))
    torch.export.save(program, folder / "program.pt2")
    package = module("export.pt2_archive._package")
    package.package_pt2(str(folder / "two.pt2"), exported_programs={"net": program, "other": other})
    artifact = importlib.import_module("torch._export.serde.serialize").serialize(program)
    version = ".".join(map(str, importlib.import_module("torch._export.serde.schema").SCHEMA_VERSION))
    with zipfile.ZipFile(folder / "old.pt2", "w") as archive:
        for name, data in (
            ("serialized_exported_program.json", artifact.exported_program),
            ("serialized_state_dict.pt", artifact.state_dict),
            ("serialized_constants.pt", artifact.constants),
            ("serialized_example_inputs.pt", artifact.example_inputs),
            ("version", version),
        ):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    made: dict[str, object] = {}
    for name in ("program.pt2", "old.pt2"):
        made[name] = parts(torch.export.load(folder / name))
    loaded = package.load_pt2(str(folder / "two.pt2")).exported_programs
    made["two.pt2"] = {name: parts(each) for name, each in loaded.items()}
    return made


def parts(program: Foreign) -> dict[str, object]:
    """Return weights and constants of an exported program."""
    return {
        name: {key: described(value) for key, value in getattr(program, name).items()}
        for name in ("state_dict", "constants")
    }


# --- ranks --------------------------------------------------------------------------------------------


class Small(torch.nn.Module):  # type: ignore[misc] # torch is imported by name
    """A small model: 5 rows and 1 over 4 ranks are uneven, and some ranks have nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.first = torch.nn.Linear(3, 5)
        self.norm = torch.nn.BatchNorm1d(5)
        self.last = torch.nn.Linear(5, 1, bias=False)
        self.tied = torch.nn.Linear(5, 1, bias=False)
        self.tied.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        """Use all of it."""
        hidden = self.norm(self.first(x))
        return self.last(hidden) + self.tied(hidden)


def stepped(model: Foreign, optimizer: Foreign, inputs: Foreign) -> None:
    """Do one step."""
    model(inputs).sum().backward()
    optimizer.step()


def fsdp2(rank: int, world: int) -> dict[str, object]:
    """FSDP2 over all ranks; running means and a counter differ between ranks."""
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    model = Small()
    module("distributed.fsdp").fully_shard(model, mesh=mesh)
    optimizer = module("optim").AdamW(model.parameters(), lr=0.01, foreach=False)
    stepped(model, optimizer, torch.arange(6.0).view(2, 3) + rank)
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3}
    return state | {"mine": torch.full((2,), rank), "rank": rank}


def grid(rank: int, world: int) -> dict[str, object]:
    """DTensors in all placements over two mesh dimensions; tensor parallel layers below FSDP2."""
    del rank
    tensor = module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh(
        "cpu", (2, world // 2), mesh_dim_names=("dp", "tp")
    )
    whole = torch.arange(5 * 3, dtype=torch.float32).reshape(5, 3)
    shard, replicate = tensor.Shard, tensor.Replicate()
    placements = {
        "rows_columns": (shard(0), shard(1)),
        "rows_rows": (shard(0), shard(0)),
        "columns": (replicate, shard(1)),
        "replicated": (replicate, replicate),
    }
    state = {name: tensor.distribute_tensor(whole.clone(), mesh, how) for name, how in placements.items()}
    state["half"] = tensor.distribute_tensor(whole.bfloat16(), mesh, (shard(1), shard(0)))
    parallel = module("distributed.tensor.parallel")
    torch.manual_seed(SEED)
    layers = module("nn").Sequential(module("nn").Linear(4, 8), module("nn").Linear(8, 3))
    plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
    parallel.parallelize_module(layers, mesh["tp"], plan)
    module("distributed.fsdp").fully_shard(layers, mesh=mesh["dp"])
    return {"grid": state, "layers": layers.state_dict()}


def pipeline(rank: int, world: int) -> dict[str, object]:
    """Two stages, each sharded over its own ranks."""
    tensor = module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh(
        "cpu", (2, world // 2), mesh_dim_names=("pp", "dp")
    )
    stage = rank // (world // 2)
    value = torch.arange(6.0).view(3, 2) + 10 * stage
    return {f"stage{stage}": tensor.distribute_tensor(value, mesh["dp"], (tensor.Shard(0),)), "step": 4}


def fsdp1(rank: int, world: int) -> dict[str, object]:
    """FSDP of before DTensor: ShardedTensor, model and optimizer."""
    del rank, world
    fsdp = module("distributed.fsdp")
    model = Small()
    model.tied.weight = torch.nn.Parameter(model.last.weight.detach().clone())
    model = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = module("optim").Adam(model.parameters(), lr=0.01)
    stepped(model, optimizer, torch.arange(6.0).view(2, 3))
    kind = fsdp.StateDictType.SHARDED_STATE_DICT
    configs = (fsdp.ShardedStateDictConfig(), fsdp.ShardedOptimStateDictConfig())
    with fsdp.FullyShardedDataParallel.state_dict_type(model, kind, *configs):
        optim = fsdp.FullyShardedDataParallel.optim_state_dict(model, optimizer)
        return {"model": model.state_dict(), "optim": optim}


def partial(rank: int, world: int) -> dict[str, object]:
    """Partial sums, whose global value is in no file."""
    tensor = module("distributed.tensor")
    mesh = module("distributed.device_mesh").init_device_mesh("cpu", (world,))
    value = tensor.DTensor.from_local(
        torch.full((2,), float(rank)), mesh, (tensor.Partial(),), run_check=False
    )
    return {"sum": value}


CASES: dict[str, tuple[int, str, Callable[[int, int], dict[str, object]]]] = {
    "fsdp2-4": (4, "model_rank{0}.pt", fsdp2),
    "grid-4": (4, "rank_{0}.pt", grid),
    "pipeline-4": (4, "mp_rank_{0:02}.pt", pipeline),
    "fsdp1-2": (2, "shard-{0}-of-{1}.pt", fsdp1),
    "partial-2": (2, "rank{0}.pt", partial),
}


def whole(value: Foreign) -> Foreign:
    """Return a distributed tensor whole; all ranks must ask."""
    if hasattr(value, "full_tensor"):
        return value.full_tensor()
    out = torch.zeros(value.size(), dtype=value.dtype)
    value.gather(0, out if module("distributed").get_rank() == 0 else None)
    return out


def truths(value: Foreign, path: str = "") -> dict[str, object]:
    """Return what a tree's distributed tensors are, whole."""
    if type(value).__name__ in ("DTensor", "ShardedTensor"):
        return {path: described(whole(value))}
    made: dict[str, object] = {}
    for key, child in value.items() if isinstance(value, dict) else ():
        made |= truths(child, f"{path}/{key}" if path else str(key))
    return made


def run_rank(rank: int, name: str, port: int, folder: str) -> None:
    """Save one case as one of its ranks."""
    warnings.simplefilter("ignore")
    world, form, state_of = CASES[name]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed = module("distributed")
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    state = state_of(rank, world)
    torch.save(state, Path(folder) / form.format(rank, world))
    expected = truths(state) if name not in ("partial-2", "pipeline-4") else {}
    if name == "pipeline-4":
        expected = truths(state)
        Path(folder, f"truth{rank}.json").write_text(json.dumps(expected))
    elif rank == 0:
        Path(folder, "truth0.json").write_text(json.dumps(expected))
    distributed.barrier()
    time.sleep(1)  # gloo aborts where a peer leaves first
    os._exit(0)


def run(name: str, folder: Path) -> dict[str, object]:
    """Save one case with all of its ranks; return what its distributed tensors are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    world = CASES[name][0]
    module("multiprocessing").start_processes(
        run_rank, args=(name, port, str(folder)), nprocs=world, start_method="spawn"
    )
    made: dict[str, object] = {}
    for path in sorted(folder.glob("truth*.json")):
        made |= json.loads(path.read_text())
        path.unlink()
    return made


# --- everything ---------------------------------------------------------------------------------------


def manifest(folder: Path) -> str:
    """Return the text of MANIFEST.toml."""
    lines = [
        'command = "python -m tools.make_golden.torch_special"',
        "[versions]",
        f'torch = "{torch.__version__}"',
        f'python = "{platform.python_version()}"',
        "[sha256]",
    ]
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f'"{path.relative_to(folder).as_posix()}" = "{digest}"')
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write everything."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        expected = scripts(folder) | exported(folder)
        for name in CASES:
            expected[name] = run(name, folder / name)
        (folder / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
        (folder / "MANIFEST.toml").write_text(manifest(folder))
        target = GOLDEN / f"{torch.__version__.partition('+')[0]}-special"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


if __name__ == "__main__":
    main()
