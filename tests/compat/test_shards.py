"""Raw shards of our own format open in the programs that read safetensors files, old and new."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

import ckptfmt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.framework

# Prints name, type, shape and bytes of every tensor of the given files, as safetensors has them.
JUDGE = """
import json, sys
from safetensors import safe_open
found = {}
for path in sys.argv[1:]:
    with safe_open(path, "np") as file:
        assert file.metadata()["format"] == "pt"
        for name in file.keys():
            tensor = file.get_tensor(name)
            found[name] = [str(tensor.dtype), list(tensor.shape), tensor.tobytes().hex()]
print(json.dumps(found))
"""

ARRAYS = {
    "f32": np.arange(12, dtype="<f4").reshape(3, 4),
    "f64": np.array(0.1),
    "f16": np.ones((2, 0), "<f2"),
    "i64": np.array([[-1], [2**62]]),
    "u8": np.arange(5, dtype="u1"),
    "bool": np.array([True, False]),
    "big": np.arange(4, dtype=">i4"),
}
# Types that safetensors 0.4.1 does not know lie as bytes, so that it reads the rest of the file.
AS_BYTES = {
    "c128": np.array([1 + 2j]),
    "f8": np.arange(3).astype(ml_dtypes.float8_e4m3b11fnuz),
    "i4": np.arange(-8, 8).astype(ml_dtypes.int4),
    "s3": np.array([b"abc", b"d"]),
}


def judged(python: Path | str, path: Path) -> dict[str, list[object]]:
    shards = sorted(map(str, path.glob("*.safetensors")))
    done = subprocess.run([python, "-c", JUDGE, *shards], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


def expected() -> dict[str, list[object]]:
    wanted: dict[str, list[object]] = {}
    for name, array in ARRAYS.items():
        little = array.astype(array.dtype.newbyteorder("<"))
        wanted[f"w.{name}"] = [str(little.dtype), list(array.shape), little.tobytes().hex()]
    for name, array in AS_BYTES.items():
        data = ckptfmt.Tensor.of(array).bytes()
        wanted[f"w.{name}"] = ["uint8", [len(data)], data.hex()]
    return wanted


@pytest.mark.parametrize("shard_size", [None, 64])
def test_safetensors_0_4_1_opens_raw_shards(
    tmp_path: Path, old_safetensors: Path, shard_size: int | None
) -> None:
    ckptfmt.save({"w": ARRAYS | AS_BYTES}, tmp_path / "c", shard_size=shard_size)
    assert judged(old_safetensors, tmp_path / "c") == expected()


@pytest.mark.parametrize("shard_size", [None, 64])
def test_the_safetensors_of_today_opens_raw_shards(tmp_path: Path, shard_size: int | None) -> None:
    pytest.importorskip("safetensors", reason="safetensors judges the shards")
    ckptfmt.save({"w": ARRAYS | AS_BYTES}, tmp_path / "c", shard_size=shard_size)
    assert judged(sys.executable, tmp_path / "c") == expected()


def test_bfloat16_is_bfloat16_for_safetensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason='needs the extra "torch"')
    loader = pytest.importorskip("safetensors.torch", reason="safetensors judges the shards")
    values = np.array([1.5, -0.0, np.nan, 3e38]).astype(ml_dtypes.bfloat16)
    ckptfmt.save({"w": values}, tmp_path / "c")
    (shard,) = (tmp_path / "c").glob("*.safetensors")
    found = loader.load_file(shard)["w"]
    assert found.dtype == torch.bfloat16
    assert found.view(torch.uint16).numpy().tolist() == values.view("u2").tolist()


def test_transformers_loads_a_checkpoint_with_an_index(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason='needs the extra "torch"')
    transformers = pytest.importorskip("transformers", reason="transformers judges the index")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ckptfmt.save(
        model,
        tmp_path / "c",
        shard_size=4096,
        hf_index=True,
        extra_files={"config.json": config.to_json_string().encode()},
    )
    assert len(list((tmp_path / "c").glob("*.safetensors"))) > 1
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "c")
    one, other = model.state_dict(), again.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert ckptfmt.check(tmp_path / "c").ok
