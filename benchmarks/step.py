"""Compare an update of the bundled trainer with `transformers`' LlamaForCausalLM, and one with GPAS with one without.

    python benchmarks/step.py --quick --json
    OMP_NUM_THREADS=1 python benchmarks/step.py --quick --part padded

The sides of a ratio alternate in one run: a round does each once, and the ratio is the median over rounds. An update is
forward, backward and fused Adam on both sides, in float32 or under autocast to bfloat16. The network is LLaMA 71M
(hidden 512, 12 layers, vocabulary 32,000) on rows of 256, full or padded like C4's documents (76 % real tokens). Our
layers are compiled, as in trainings of this length. Times are CPU seconds on one thread of a CPU, which other load
affects least, and otherwise seconds. Peak memory is that of a process of its own. Needs `pip install transformers`.

    padded            our real tokens per second / theirs with an attention mask, padded rows, the same matrix products
    padded_unmasked   the same without a mask: right padding needs none with causal attention
    padded_compiled   the same without a mask, their network compiled, with its loss (only with --compile)
    padded_compiled_masked  the same with their attention mask
    full              our real tokens per second / theirs, full rows, the same matrix products
    full_compiled     the same, their network compiled, with its loss (only with --compile)
    out_of_the_box    the same on padded rows with a mask in float32, each side with its own matrix product
    memory            our peak memory / theirs, padded rows
    memory_full       the same on full rows
    gpas_time         our update with GPAS / without, full rows
    gpas_memory       our peak memory with GPAS / without

Beside a ratio are the shares of the product ceiling that the two sides reach: the FLOP/s of the network's matrix
products for real tokens, over the FLOP/s of these products alone (`products.py`), measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from gpu_scale import TINY, TINY_TEXT, wait
from products import Products

from gpas_cli.processor import cpu_model
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.bench import WARMUP_UPDATES, SyntheticBatches, peak_memory, synthetic_loop
from gpas_cli.train.device import choose_device, make_deterministic
from gpas_cli.train.precision import choose_matmul

if TYPE_CHECKING:
    from rivals import Rival

DEVICE = choose_device()
PYTORCH_PATH = "highest"  # PyTorch's default float32 matrix product
PARTS = ("padded", "full", "gpas", "memory")
# In float32. Speeds are at least these, by the instructions that PyTorch uses; the others are at most these.
SPEED_GOALS = {
    "AVX512": {"padded": 2.0, "full": 1.4, "out_of_the_box": 1.5, "padded_compiled": 1.3, "full_compiled": 1.05},
    "AVX2": {"padded": 1.45, "full": 1.05, "out_of_the_box": 1.5, "padded_compiled": 1.3, "full_compiled": 1.05},
}
COST_GOALS = {"memory": 0.8, "memory_full": 0.8, "gpas_time": 1.01, "gpas_memory": 1.01}


@dataclass(frozen=True)
class Setting:
    """What is trained: LLaMA 71M, Pre-LN, or if `shrink`, a tiny network that does not take a compiler."""

    precision: str
    rows: int
    shrink: bool = False

    def cell(self, gate: str = "none") -> Cell:
        optim = {"lr": 1e-3, "warmup": 1, "steps": 10_000, "batch": self.rows}
        what = {"size": TINY, "data": TINY_TEXT} if self.shrink else {"size": "71m", "data": "c4"}
        return cell_from({**what, "gate": gate, "precision": self.precision, "optim": optim})

    def ours(self, gate: str = "none", *, padded: bool) -> Callable[[], None]:
        """Return a function that does the next update of the bundled trainer."""
        resources = Resources(compile="off" if self.shrink else "auto")
        loop = synthetic_loop(self.cell(gate), resources, padded=padded)

        def update() -> None:
            make_deterministic(torch.get_num_threads())
            loop.update()

        return update

    def theirs(self, *, padded: bool, compiled: bool = False) -> Rival:
        """Return the training by `transformers` on the same batches, with an attention mask on padded rows."""
        from rivals import Rival  # importing transformers takes two seconds

        cell, backend = self.cell(), "aot_eager" if self.shrink else "inductor"
        name = "transformers, compiled" if compiled else "transformers"
        return Rival(name, cell, SyntheticBatches(cell, padded=padded), masked=padded, backend=backend)


@dataclass(frozen=True)
class Side:
    """What one side of a comparison does in a round, with this float32 matrix product."""

    do: Callable[[], object]
    path: str


@dataclass(frozen=True)
class Ratio:
    """A ratio; the shares of the product ceiling that we and they reach; and the goal in words, "" without one."""

    value: float
    our_share: float | None = None
    their_share: float | None = None
    goal: str = ""

    def __str__(self) -> str:
        if self.our_share is None or self.their_share is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({100 * self.our_share:.0f} / {100 * self.their_share:.0f} %)"


def take_turns(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every side in every round, after warm-up rounds in which layers compile."""
    clock = time.process_time if DEVICE.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-WARMUP_UPDATES, rounds):
        for name, side in sides.items():
            torch.set_float32_matmul_precision(side.path)
            wait()
            began = clock()
            side.do()
            wait()
            if number >= 0:
                seconds[name].append(clock() - began)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], over: str, under: str) -> float:
    """Return the median over rounds of the ratio of seconds in the same round."""
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


@dataclass
class Comparison:
    """Our training of one kind of rows and theirs, and the products alone, in turns."""

    setting: Setting
    padded: bool
    rounds: int
    path: str  # the float32 matrix product of both sides

    def __post_init__(self) -> None:
        self._theirs = self.setting.theirs(padded=self.padded)
        self._products = Products(self.setting.cell())
        self._ours = Side(self.setting.ours(padded=self.padded), self.path)
        self.rates: dict[str, float] = {}  # real tokens per second, and FLOP/s of the products alone

    def ratios(self, *, compiled: bool) -> dict[str, Ratio]:
        """Return the ratios by name. `compiled`: also those to their network compiled."""
        rows = "padded" if self.padded else "full"
        theirs = {rows: Side(self._theirs.update, self.path)}
        if self.padded:
            theirs["padded_unmasked"] = Side(self._unmasked, self.path)
            if self.setting.precision == "fp32":
                theirs["out_of_the_box"] = Side(self._theirs.update, PYTORCH_PATH)
        found = self._against(theirs)
        if compiled:  # in place of the other, as more networks in turns favour us
            theirs.clear()
            self._theirs = self.setting.theirs(padded=self.padded, compiled=True)
            found |= self._against(self._compiled(rows))
        return found

    def _compiled(self, rows: str) -> dict[str, Side]:
        unmasked = {f"{rows}_compiled": Side(self._unmasked, self.path)}
        return unmasked | ({"padded_compiled_masked": Side(self._theirs.update, self.path)} if self.padded else {})

    def _unmasked(self) -> None:
        self._theirs.masked = False
        self._theirs.update()
        self._theirs.masked = self.padded

    def _against(self, theirs: Mapping[str, Side]) -> dict[str, Ratio]:
        products = Side(self._products.multiply, self.path)
        seconds = take_turns({"ours": self._ours, **theirs, "products": products}, self.rounds)
        ceiling = self.rounds * self._products.flops / sum(seconds["products"])
        batches = SyntheticBatches(self.setting.cell(), padded=self.padded)
        tokens = sum(batches.at(step).predicted for step in range(WARMUP_UPDATES, WARMUP_UPDATES + self.rounds))
        rates = {name: tokens / sum(seconds[name]) for name in ("ours", *theirs)}
        self.rates |= rates | {"product_ceiling_flops": ceiling}
        share = {name: rate * self._products.flops_per_token / ceiling for name, rate in rates.items()}
        return {name: Ratio(ratio(seconds, name, "ours"), share["ours"], share[name]) for name in theirs}


def gpas_time(setting: Setting, rounds: int, path: str) -> Ratio:
    """Return the time of an update with GPAS over that of one without, on full rows."""
    sides = {gate: Side(setting.ours(gate, padded=False), path) for gate in ("none", "gpas")}
    return Ratio(ratio(take_turns(sides, 2 * rounds), "gpas", "none"))


def memory_of(who: str, setting: Setting, *, padded: bool) -> int:
    """Return the peak bytes of three updates in a process of their own."""
    command = [sys.executable, __file__, "--only", who, "--precision", setting.precision, "--rows", str(setting.rows)]
    flags = ["--padded"] * padded + ["--shrink"] * setting.shrink
    return int(subprocess.run([*command, *flags], check=True, stdout=subprocess.PIPE).stdout)


def compare_memory(setting: Setting) -> tuple[dict[str, Ratio], dict[str, Any]]:
    """Return the ratios of peak memory, and the bytes of each side."""
    names = ("none", "gpas", "theirs")
    padded, full = ({name: memory_of(name, setting, padded=padded) for name in names} for padded in (True, False))
    ratios = {
        "memory": Ratio(padded["none"] / padded["theirs"]),
        "memory_full": Ratio(full["none"] / full["theirs"]),
        "gpas_memory": Ratio(full["gpas"] / full["none"]),
    }
    return ratios, {"padded": padded, "full": full}


def only(who: str, setting: Setting, *, padded: bool) -> None:
    """Do three updates and print the peak memory: the process that `memory_of` starts."""
    update = setting.theirs(padded=padded).update if who == "theirs" else setting.ours(who, padded=padded)
    for _ in range(3):
        update()
    print(peak_memory(DEVICE))


def compare(
    setting: Setting, parts: Sequence[str], rounds: int, path: str, *, compiled: bool
) -> tuple[dict[str, Ratio], dict[str, Any]]:
    """Return the ratios of `parts`, with their goals, and what they were computed from. `path`: our matrix product."""
    ratios: dict[str, Ratio] = {}
    details: dict[str, Any] = {}
    for rows in ("padded", "full"):
        if rows in parts:
            one = Comparison(setting, rows == "padded", rounds, path)
            ratios |= one.ratios(compiled=compiled)
            details[f"{rows}_rates"] = one.rates
    if "gpas" in parts:
        ratios["gpas_time"] = gpas_time(setting, rounds, path)
    if "memory" in parts:
        memory, details["peak_bytes"] = compare_memory(setting)
        ratios |= memory
    return {name: with_goal(name, found, setting) for name, found in ratios.items()}, details


def with_goal(name: str, found: Ratio, setting: Setting) -> Ratio:
    """Return `found` with its goal for this processor and whether it is met. Goals are for float32 on a CPU."""
    if setting.precision != "fp32" or setting.shrink or DEVICE.type != "cpu":
        return found
    least = SPEED_GOALS.get(torch.backends.cpu.get_cpu_capability(), {}).get(name)
    most = COST_GOALS.get(name)
    if least is None and most is None:
        return found
    sign, bound, met = (">=", least, found.value >= least) if least else ("<=", most, found.value <= (most or 0))
    return Ratio(found.value, found.our_share, found.their_share, f"{sign} {bound:g}: {'met' if met else 'missed'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="float32 alone unless --precision is given, few rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=8, help="rows of 256 tokens in an update; a CPU takes 8 at once")
    parser.add_argument("--rounds", type=int, default=0, help="default 7, or 4 with --quick")
    parser.add_argument("--precision", action="append", choices=("fp32", "bf16"))
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part alone; can be repeated")
    parser.add_argument("--compile", action="store_true", help="also compare with their network compiled")
    parser.add_argument("--shrink", action="store_true", help="a tiny network, to try the script")
    parser.add_argument("--padded", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    precisions = asked.precision or (["fp32"] if asked.quick else ["fp32", "bf16"])
    settings = [Setting(precision, asked.rows, asked.shrink) for precision in precisions]
    if asked.only:
        only(asked.only, settings[0], padded=asked.padded)
        return
    rounds = asked.rounds or (4 if asked.quick else 7)
    gemm = choose_matmul(settings[0].cell().model.size, DEVICE)
    results, details = {}, {}
    for setting in settings:
        results[setting.precision], details[setting.precision] = compare(
            setting, asked.part or PARTS, rounds, gemm.path, compiled=asked.compile
        )
    ratios = {precision: {name: asdict(one) for name, one in found.items()} for precision, found in results.items()}
    found = {
        "by_precision": ratios, "details": details, "rows": asked.rows, "rounds": rounds, "load": os.getloadavg(),
        "gemm": vars(gemm), "threads": torch.get_num_threads(), "device": str(DEVICE), "processor": _processor(),
        "versions": {name: version(name) for name in ("torch", "transformers")} | {"python": platform.python_version()},
    }  # fmt: skip
    print(json.dumps(found, indent=2) if asked.json else _table(results))


def _processor() -> str:
    if DEVICE.type == "cuda":
        return torch.cuda.get_device_name()
    return f"{cpu_model()} {torch.backends.cpu.get_cpu_capability()}"


def _table(results: Mapping[str, Mapping[str, Ratio]]) -> str:
    """Return the ratios as a Markdown table, the shares of the ceiling (ours / theirs) in brackets."""
    names = list(dict.fromkeys(name for ratios in results.values() for name in ratios))
    lines = [f"| ratio | {' | '.join(results)} | goal |", "|---" * (len(results) + 2) + "|"]
    for name in names:
        found = [ratios.get(name) for ratios in results.values()]
        goals = next((one.goal for one in found if one and one.goal), "")
        lines.append(f"| {name} | {' | '.join('' if one is None else str(one) for one in found)} | {goals} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
