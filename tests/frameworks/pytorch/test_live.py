from __future__ import annotations

import collections
import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptfmt.errors import ConversionError
from ckptfmt.frameworks.pytorch.reader import read
from ckptfmt.frameworks.pytorch.writer import write
from ckptfmt.tree.canonical import dumps
from ckptfmt.tree.document import encode_tree
from ckptfmt.tree.dtypes import DTYPE_NAMES, dtype
from ckptfmt.tree.nodes import CYCLE, Composite, Opaque, Strings, Tag, Tree, tag_of, tagged
from ckptfmt.tree.tensor import Tensor
from ckptfmt.tree.walk import tensors

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason='objects of PyTorch: needs the extra "torch"')
live = pytest.importorskip("ckptfmt.frameworks.pytorch.live", reason='needs the extra "torch"')
pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # PyTorch's own: beta features, deprecations
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Lines(torch.Tensor):  # type: ignore[misc, name-defined] # torch is known at run time only
    pass


class Net(torch.nn.Module):  # type: ignore[misc, name-defined] # torch is known at run time only
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: object) -> object:
        return self.head(self.norm(self.embed(x)))


def everything() -> dict[str, object]:
    dense = torch.tensor([[0.0, 1, 0, 2], [0, 0, 3, 0]])
    six = torch.arange(6.0).reshape(2, 3)
    scales, zeros = torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([1, 2])
    codes = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    line = torch.ones(2).as_subclass(Lines)
    line.note = 1
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.extra = "kept"
    shared = [1]
    return {
        **{
            name.removeprefix("torch."): codes.view(torch.uint8).to(getattr(torch, name))
            for name in (
                "float32",
                "float16",
                "bfloat16",
                "int64",
                "uint16",
                "float8_e4m3fn",
                "complex64",
                "bool",
            )
        },
        "coo": dense.to_sparse(),
        "csr": dense.to_sparse_csr(),
        "bsc": dense.to_sparse_bsc((1, 2)),
        "quantized": torch.quantize_per_tensor(six, 0.5, 3, torch.quint8),
        "channel": torch.quantize_per_channel(six, scales, zeros, 0, torch.qint8),
        "packed": torch.quantize_per_channel(six / 10, scales.float(), zeros.float(), 0, torch.quint4x2),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)]),
        "half": torch.view_as_complex(torch.randn(3, 2)).to(torch.complex32),
        "bits": codes.view(torch.bits4x2),
        "bits16": codes.flatten().view(torch.bits16),
        "meta": torch.empty(2, 3, device="meta", dtype=torch.float16),
        "fp4": codes.view(torch.float4_e2m1fn_x2),
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "transposed": six.t(),
        "expanded": six[0].expand(4, 3),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(5, dtype=torch.bfloat16),
        "empty": torch.ones(0, 3),
        "line": line,
        "parameter": parameter,
        "buffer": torch.nn.Buffer(torch.ones(2)),
        "grad": torch.ones(2, requires_grad=True),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "layout": torch.sparse_csr,
        "scheme": torch.per_tensor_affine,
        "size": torch.Size([1, 2]),
        "untyped": torch.ones(2).untyped_storage(),
        "typed": torch.arange(3.0).storage(),
        "module": torch.nn.BatchNorm1d(3).state_dict(),
        "default": collections.defaultdict(list, {"a": [1]}),
        "counter": collections.Counter("aab"),
        "plain": [1, 2.5, None, "x", b"y", bytearray(b"z"), (1, 2), {3}, frozenset([4]), 1j, shared, shared],
        "numpy": np.float32(1.5),
    }


def form(tree: Tree) -> bytes:
    """Return a tree with its tensors' types, shapes and bytes, in one string of bytes."""
    specs = [(str(t.dtype), t.shape, bytes(t.bytes())) for _, t in tensors(tree)]
    return dumps(encode_tree(tree, lambda tensor: tensor.size)) + repr(specs).encode()


def test_live_objects_and_their_files_are_equal_trees(tmp_path: Path) -> None:
    value = everything()
    torch.save(value, tmp_path / "m.pt")
    captured = live.capture(value)
    with read(tmp_path / "m.pt") as checkpoint:
        for name in value:
            assert form(captured[name]) == form(checkpoint[name]), name


def assert_alike(one: object, two: object) -> None:
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.layout, one.shape, one.requires_grad) == (
            two.dtype,  # type: ignore[attr-defined]
            two.layout,  # type: ignore[attr-defined]
            two.shape,  # type: ignore[attr-defined]
            two.requires_grad,  # type: ignore[attr-defined]
        )


def test_files_come_back_as_what_torch_load_gives(tmp_path: Path) -> None:
    value = everything()
    path = tmp_path / "m.pt"
    torch.save(value, path)
    theirs = torch.load(path, weights_only=False)
    with read(path) as checkpoint:
        ours = live.as_state(checkpoint.tree)
        expected = checkpoint.tree
        assert isinstance(expected, dict)
        for name in value:
            # Not: the test's own class; what PyTorch gives typed bytes for; what has no shape.
            if name not in ("line", "untyped", "nested"):
                assert_alike(ours[name], theirs[name])
            if name not in ("line", "array", "transposed", "expanded", "conj", "neg"):
                assert form(live.capture(ours[name])) == form(expected[name]), name
    assert ours["module"]._metadata == theirs["module"]._metadata
    assert ours["parameter"].extra == "kept"
    assert isinstance(ours["buffer"], torch.nn.Buffer)
    assert ours["plain"][-1] is ours["plain"][-2]
    assert ours["default"].default_factory is list
    assert ours["size"] == torch.Size([1, 2])
    assert ours["untyped"].tolist() == theirs["untyped"].tolist()
    assert ours["typed"].tolist() == [0, 1, 2]


def test_memory_is_shared_both_ways() -> None:
    for name in ("float32", "bfloat16", "float8_e5m2", "int8", "complex128", "uint64", "bool"):
        tensor = torch.zeros(3, 4, dtype=getattr(torch, name))
        node = live.capture(tensor)
        assert isinstance(node, Tensor)
        node.numpy().view(np.uint8)[0, 0] = 1
        assert tensor.view(torch.uint8)[0, 0] == 1
        back = live.to_torch(node)
        assert back.dtype is tensor.dtype
        assert back.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("name", [name for name in DTYPE_NAMES if name not in ("i4", "u4", "i2", "u2")])
def test_every_type_becomes_pytorchs_of_the_same_bits_or_an_error(name: str) -> None:
    kind = dtype(name)
    codes = np.random.default_rng(2).integers(
        0, 2 if name == "bool" else 16, 2 * kind.numpy.itemsize, np.uint8
    )
    node = Tensor.of(codes.view(kind.numpy))
    if name == "f8_e4m3b11fnuz":
        with pytest.raises(ConversionError, match=name):
            live.to_torch(node)
        return
    made = live.to_torch(node)
    assert bytes(made.clone().untyped_storage().tolist()) == bytes(node.bytes())


def test_mapped_files_are_not_copied_nor_written(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"w": Tensor.of(np.zeros(1000, np.float32))}, path)
    before = path.read_bytes()
    checkpoint = read(path)
    node = checkpoint["w"]
    assert isinstance(node, Tensor)
    made = live.to_torch(node)
    made += 1
    assert made.data_ptr() == node.numpy().ctypes.data
    checkpoint.close()
    del checkpoint, node
    gc.collect()
    assert float(made.sum()) == 1000
    assert path.read_bytes() == before


def test_ties_are_kept_and_chance_addresses_are_none() -> None:
    net = Net()
    captured = live.capture(net)
    found = {"/".join(map(str, path)): tensor.identity for path, tensor in tensors(captured)}
    assert found["embed.weight"] == found["head.weight"]
    assert len(set(map(hash, found.values()))) == len(found) - 1
    state = live.as_state(captured)
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()

    def fresh() -> list[Tree]:
        return [live.capture(torch.full((4,), float(i), dtype=torch.complex64).conj()) for i in range(50)]

    identities = [tensor.identity for tensor in fresh() if isinstance(tensor, Tensor)]
    assert len(set(identities)) == 50


def trained(seed: int, kind: object) -> tuple[Net, object]:
    torch.manual_seed(seed)
    net = Net().to(kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(2):
        loss = net(torch.arange(5)).float().square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def test_a_model_and_its_optimizer_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    net, optimizer = trained(1, torch.float32)
    other, fresh = trained(2, torch.float32)
    path = tmp_path / "run.pt"
    write(live.capture({"model": net, "optimizer": optimizer, "step": 7}), path)
    target = {"model": other, "optimizer": fresh, "step": 0}
    with read(path) as checkpoint:
        live.restore(checkpoint.tree, target)
    assert target["step"] == 7
    for model, opt in ((net, optimizer), (other, fresh)):
        model(torch.arange(5)).sum().backward()
        opt.step()  # type: ignore[attr-defined]
    for one, two in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    assert form(live.capture(optimizer)) == form(live.capture(fresh))


def test_optimizer_state_keeps_its_types() -> None:
    net, optimizer = trained(1, torch.bfloat16)
    state = optimizer.state_dict()  # type: ignore[attr-defined]
    for entry in state["state"].values():
        entry["exp_avg"] = entry["exp_avg"].float() + 1e-6  # what 16 bits cannot hold
    wanted = form(live.capture(state))
    _, fresh = trained(2, torch.bfloat16)
    live.restore(live.capture(state), fresh)
    assert form(live.capture(fresh)) == wanted
    fresh_state = fresh.state_dict()["state"][0]["exp_avg"]  # type: ignore[attr-defined]
    assert fresh_state.dtype is torch.float32
    assert fresh_state.data_ptr() != state["state"][0]["exp_avg"].data_ptr()
    del net


def test_every_difference_is_listed_and_nothing_is_changed() -> None:
    net = Net()
    before = form(live.capture({name: t.clone() for name, t in net.state_dict().items()}))
    tree = live.capture(Net())
    tree["surplus"] = tree.pop("norm.bias")
    tree["norm.weight"] = live.capture(torch.ones(4, dtype=torch.float64))
    tree["norm.running_mean"] = live.capture(torch.ones(5))
    tree["norm.running_var"] = 3
    with pytest.raises(ConversionError) as caught:
        live.restore(tree, net)
    lines = str(caught.value).splitlines()[1:]
    assert sorted(line.strip() for line in lines) == [
        "norm.bias: missing",
        "norm.running_mean: float32 (5,) where float32 (4,) must be",
        "norm.running_var: a int where float32 (4,) must be",
        "norm.weight: float64 (4,) where float32 (4,) must be",
        "surplus: unexpected",
    ]
    assert form(live.capture(dict(net.state_dict()))) == before
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    with pytest.raises(ConversionError, match=r"groups of \[1\] parameters where \[3\]"):
        live.restore({"state": {}, "param_groups": [{"params": [0]}]}, optimizer)
    with pytest.raises(ConversionError, match="no state of an optimizer"):
        live.restore({"a": 1}, optimizer)
    with pytest.raises(ConversionError, match="in place"):
        live.restore({}, 5)


def test_lazy_parameters_are_what_their_file_says(tmp_path: Path) -> None:
    value = [torch.nn.UninitializedParameter(requires_grad=False), torch.nn.UninitializedBuffer()]
    torch.save(value, tmp_path / "m.pt")
    with read(tmp_path / "m.pt") as checkpoint:
        assert form(live.capture(value)) == form(checkpoint.tree)
        made = live.as_state(checkpoint.tree)
    assert [(type(item), item.requires_grad) for item in made] == [
        (type(item), item.requires_grad) for item in value
    ]


def test_lazy_modules_are_kept_and_take_what_has_no_shape_either() -> None:
    lazy, other = torch.nn.LazyLinear(2), torch.nn.LazyLinear(2)
    live.restore(live.capture(lazy), other)
    assert torch.nn.parameter.is_lazy(other.weight)
    whole = torch.nn.Linear(3, 2)
    with pytest.raises(ConversionError, match="weight"):
        live.restore(live.capture(lazy), whole)
    live.restore(live.capture(whole), other)
    assert torch.equal(other.weight, whole.weight)
    with pytest.raises(ConversionError, match="weight: a list where a tensor must be"):
        live.restore({"weight": [1], "bias": Opaque("x", {})}, lazy)


def test_attributes_of_a_file_are_no_properties_of_a_tensor() -> None:
    hostile = Tag("torch.nn.parameter.Parameter", {"state": {"__class__": 1, "data": 2, "T": 3, "own": 4}})
    made = live.as_state(Tensor.of(np.ones(2, np.float32), tag=hostile))
    assert type(made) is torch.nn.Parameter
    assert torch.equal(made.data, torch.ones(2))
    assert made.own == 4


@pytest.mark.parametrize(
    ("values", "tag"),
    [
        (np.ones(2, np.float32), Tag("torch.Tensor", {"memory_format": "channels_last"})),
        (np.ones(2, np.int64), Tag("torch.nn.parameter.Parameter", {"requires_grad": True})),
        (np.ones(2, np.int64), Tag("torch.Tensor", {"requires_grad": True})),
    ],
)
def test_a_tag_that_its_tensor_cannot_have_is_an_error(values: np.ndarray, tag: Tag) -> None:
    with pytest.raises(ConversionError, match="contradicts"):
        live.as_state({"x": Tensor.of(values, tag=tag)})


@pytest.mark.parametrize("args", [("of the future",), ("cuda", 10**30)])
def test_a_device_that_pytorch_does_not_know_stays_a_node(args: tuple[str | int, ...]) -> None:
    node = Opaque("torch.device", {"args": args, "state": None})
    assert live.as_state([node]) == [node]


def test_containers_are_restored_in_place() -> None:
    weight, array = torch.zeros(2, 2), np.zeros(3)
    target = {"w": weight, "l": [array, 1, {"x": None}], "s": torch.zeros(3).to_sparse(), "new": None}
    sparse = torch.tensor([0.0, 2, 0]).to_sparse()
    tree = live.capture({"w": torch.ones(2, 2), "l": [np.ones(3), 2, {"x": "y"}], "s": sparse, "new": [1]})
    live.restore(tree, target)
    assert target["w"] is weight
    assert weight.tolist() == [[1, 1], [1, 1]]
    assert array.tolist() == [1, 1, 1]
    assert target["l"] == [array, 2, {"x": "y"}] or target["l"][1:] == [2, {"x": "y"}]
    assert target["s"].to_dense().tolist() == [0, 2, 0]
    assert target["new"] == [1]
    for wrong in ({"w": 1}, {"w": live.capture(torch.ones(2))}, [1]):
        with pytest.raises(ConversionError):
            live.restore(wrong, {"w": weight})
    with pytest.raises(ConversionError, match=r"f32 \(2,\) where f64"):
        live.restore([live.capture(np.ones(2, np.float32))], [np.ones(3)])


def test_a_batch_norm_of_old_may_lack_its_counter() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    del state["num_batches_tracked"]
    state._metadata[""]["version"] = 1
    live.restore(live.capture(state), torch.nn.BatchNorm1d(2))
    state._metadata[""]["version"] = 2
    with pytest.raises(ConversionError, match="num_batches_tracked: missing"):
        live.restore(live.capture(state), torch.nn.BatchNorm1d(2))


def test_schedulers_and_scalers_stand_for_their_states() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    tree = live.capture({"scheduler": scheduler, "scaler": torch.amp.GradScaler("cpu", init_scale=4.0)})
    other = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), 5)
    scaler = torch.amp.GradScaler("cpu")
    live.restore(tree, {"scheduler": other, "scaler": scaler})
    assert other.step_size == 3
    assert scaler.get_scale() == 4.0


def test_what_is_foreign_stays_a_node() -> None:
    foreign = Opaque("os.system", {"args": ("touch sentinel",), "state": None})
    unknown = Composite("numpy.time", {}, {})
    assert live.as_state([foreign, unknown]) == [foreign, unknown]
    assert (
        live.as_state(Opaque("torch.serialization", {})).name == "torch.serialization"
    )  # no module is handed out
    assert live.as_state(Opaque("torch.device", {"args": ("cuda", 1), "state": None})) == torch.device(
        "cuda:1"
    )
    strings = live.as_state(Strings((1, 2), ("a", "b")))
    assert strings.tolist() == [["a", "b"]]
    cyclic = live.as_state({"l": [Opaque(CYCLE, {"up": 1}), Opaque(CYCLE, {"up": 2})]})
    assert cyclic["l"][0] is cyclic["l"]
    assert cyclic["l"][1] is cyclic
    size = tagged((1, 2), Tag("torch.Size"))
    assert tag_of(live.capture(live.as_state(size))) == Tag("torch.Size")


def test_composites_that_contradict_themselves_are_refused() -> None:
    index = live.capture(torch.tensor([[5]]))
    values = live.capture(torch.ones(1))
    for node in (
        Composite("sparse_coo", {"size": (2,), "is_coalesced": True}, {"indices": index, "values": values}),
        Composite("sparse_csr", {"size": (2, 2)}, {"crow_indices": values}),
        Composite("torch.quantized", {"dtype": "quint8"}, {"values": values}),
        Composite("torch.bits", {"dtype": "bits8"}, {}),
    ):
        with pytest.raises(ConversionError, match="contradicts itself"):
            live.as_state(node)


def test_tensors_that_alias_the_tree_are_not_handed_to_optimizers() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    buffer = torch.full((2,), 3.0)
    group = {**optimizer.state_dict()["param_groups"][0], "params": [0]}
    live.restore(
        live.capture({"state": {0: {"momentum_buffer": buffer}}, "param_groups": [group]}), optimizer
    )
    parameter.sum().backward()
    optimizer.step()
    assert buffer.tolist() == [3, 3]
