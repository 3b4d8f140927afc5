"""Print a table of measured times: ``python -m tools.bench [--rounds N] [--json FILE] [SECTION ...]``.

Sections: save (pre-warmed), save-rested (after 10 s idle), load-cold, load-warm, verify, small, memory,
import. Interleaved rounds, medians of per-round ratios and their spread; see `measure`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ckptfmt
from tools.bench import contenders as who
from tools.bench.measure import Series, loads, saves, timed

if TYPE_CHECKING:
    from collections.abc import Callable

SECTIONS = ("save", "save-rested", "load-cold", "load-warm", "verify", "small", "memory", "import")
_REST_S = 10.0


def large_state(mebibytes: int) -> who.State:
    """Return fp32 noise in 64 tensors."""
    rng = np.random.default_rng(7)
    each = (mebibytes << 20) // 64 // 4
    return {f"layer.{i}.weight": rng.standard_normal(each, np.float32) for i in range(64)}


def small_state() -> who.State:
    """Return 50,000 tensors of 256 bytes."""
    values = np.random.default_rng(7).standard_normal((50_000, 64), np.float32)
    return {f"layer.{i}.weight": values[i].copy() for i in range(len(values))}


def show(title: str, table: dict[str, Series], nbytes: int, reference: str) -> None:
    """Print one section."""
    print(f"\n{title} (ratio: times as fast as {reference} in the same round; more is better)")
    print(f"  {'':28}{'GB/s':>8}{'seconds':>10}{'ratio':>8}   spread of the ratio")
    for name, series in table.items():
        row = series.as_json()
        print(
            f"  {name:28}{nbytes / row['seconds_median'] / 1e9:8.2f}{row['seconds_median']:10.3f}"
            f"{row['ratio_median']:8.2f}   {row['ratio_min']:.2f} to {row['ratio_max']:.2f}"
        )


class Bench:
    """One run: its options, its place, and the figures so far."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self.options = options
        self.place = place
        self.peers, self.missing = who.peers()
        self.figures: dict[str, object] = {}
        self._state: who.State = {}

    @property
    def state(self) -> who.State:
        """The large state, made when first needed."""
        if not self._state:
            self._state = large_state(self.options.size)
        return self._state

    @property
    def nbytes(self) -> int:
        """Bytes of the large state."""
        return sum(array.nbytes for array in self.state.values())

    def _tell(self, section: str, title: str, table: dict[str, Series], reference: str) -> None:
        show(title, table, self.nbytes, reference)
        self.figures[section] = {name: series.as_json() for name, series in table.items()}

    def _save(self, section: str, title: str, rest_s: float) -> None:
        raw = who.Contender("raw direct-I/O copy", who.raw_copy, None)
        table = saves(
            [who.ours()[0], *self.peers],
            raw,
            self.state,
            self.place,
            rounds=self.options.rounds,
            rest_s=rest_s,
        )
        self._tell(section, title, table, raw.name)

    def save(self) -> None:
        """Measure saving back to back."""
        self._save("save", f"save, durable, {self.nbytes >> 20} MiB fp32 in 64 tensors, pre-warmed", 0.0)

    def save_rested(self) -> None:
        """Measure saving after idle time."""
        self._save("save-rested", f"save, durable, after {_REST_S:g} s idle before each", _REST_S)

    def _load(self, section: str, title: str, *, cold: bool) -> None:
        reference = "safetensors" if any(p.name == "safetensors" for p in self.peers) else "ckptfmt"
        table = loads(
            [*who.ours(), *self.peers],
            reference,
            self.state,
            self.place,
            rounds=self.options.rounds,
            cold=cold,
        )
        self._tell(section, title, table, reference)

    def load_cold(self) -> None:
        """Measure loading from the disk."""
        self._load("load-cold", "load and read every byte, page cache dropped", cold=True)

    def load_warm(self) -> None:
        """Measure loading from the page cache."""
        self._load("load-warm", "load and read every byte, from the page cache", cold=False)

    def verify(self) -> None:
        """Measure complete verification from the page cache."""
        path = self.place / "verify"
        ckptfmt.save(self.state, path)
        times = [timed(lambda: _must_be_good(path)) for _ in range(self.options.rounds + 1)][1:]
        rate = self.nbytes / float(np.median(times)) / 1e9
        who.remove(path)
        print(f"\nverify, page cache warm: {rate:.1f} GB/s")
        self.figures["verify"] = {"gigabytes_per_second": rate}

    def small(self) -> None:
        """Measure many small tensors."""
        state = small_state()
        able = [peer for peer in self.peers if peer.name in ("torch.save", "safetensors")]
        print(f"\n{len(state)} tensors of 256 bytes, microseconds for each tensor (medians)")
        self.figures["small"] = figures = {}
        for contender in [*who.ours()[:2], *able]:
            path = self.place / "small"
            save, load = [], []
            for _ in range(self.options.rounds):
                save.append(timed(lambda c=contender, p=path: c.save(state, p)))  # type: ignore[misc]
                load.append(timed(lambda c=contender, p=path: c.load(p)))  # type: ignore[misc]
                who.remove(path)
            each = [float(np.median(times)) / len(state) * 1e6 for times in (save, load)]
            figures[contender.name] = {"save_us": each[0], "load_us": each[1]}
            print(f"  {contender.name:28} save {each[0]:6.1f}   load {each[1]:6.1f}")

    def memory(self) -> None:
        """Measure extra memory, in processes of their own."""
        self.figures["memory"] = figures = {}
        for what in ("save", "verify"):
            command = [sys.executable, "-m", "tools.bench.memory", what, str(self.place / "memory")]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            figures[what] = json.loads(result.stdout)
        print("\nextra anonymous memory, MiB:", {k: v["extra_mib"] for k, v in figures.items()})

    def import_(self) -> None:
        """Measure importing, numpy included."""
        command = [
            sys.executable,
            "-c",
            (
                "import time; t = time.perf_counter(); import ckptfmt; ckptfmt.save; ckptfmt.load; "
                "print(time.perf_counter() - t)"
            ),
        ]
        times = [
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(9)
        ]
        print(f"\nimport ckptfmt with save, load and numpy: {np.median(times) * 1e3:.0f} ms")
        self.figures["import"] = {"milliseconds": float(np.median(times)) * 1e3}


def _must_be_good(path: Path) -> None:
    if not ckptfmt.check(path).ok:
        raise AssertionError(path)


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("sections", nargs="*", default=[], choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the large state")
    parser.add_argument("--place", type=Path, help="a directory on the file system to measure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    print(
        f"ckptfmt {ckptfmt.__version__}, numpy {np.__version__}, Python {platform.python_version()}", end=""
    )
    with tempfile.TemporaryDirectory(dir=options.place or Path.cwd(), prefix=".bench-") as place:
        bench = Bench(options, Path(place))
        print("; not installed: " + "; ".join(bench.missing) if bench.missing else "")
        for section in options.sections or SECTIONS:
            run: Callable[[], None] = getattr(
                bench, "import_" if section == "import" else section.replace("-", "_")
            )
            run()
    if options.json:
        options.json.write_text(json.dumps(bench.figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
