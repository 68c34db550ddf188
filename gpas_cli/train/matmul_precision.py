"""Which of PyTorch's float32 matrix products to use: found by a probe on this machine, with the cell's own shapes.

`torch.set_float32_matmul_precision` names a trade, not an arithmetic: "medium" is the same arithmetic by another
library on one processor (oneDNN, up to twice as fast), bfloat16 on another, TF32 on a GPU. So the error is measured as
well as the time, against float64, and a path that is not float32 in fact is not taken. Two paths round differently, so
the choice is recorded: all runs of a machine and every attempt of a run use the same one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpas_cli.data import disk
from gpas_cli.errors import DataError
from gpas_cli.processor import cpu_model
from gpas_cli.spec.size import Size

PATHS = ("highest", "medium")
# Largest error of an element over the largest element. float32 sums of up to 11,008 terms stay below it.
TOLERANCE = 2e-6
# A path is taken only if it is faster by this factor, so that repeated probes agree.
MARGIN = 1.25
_ROUNDS = 7
# Rows of the probe's product: 512, or as few as keep it near a GFLOP.
_ROWS, _FLOPS = 512, 2**30


@dataclass(frozen=True)
class MatmulChoice:
    """The path taken; its error as in TOLERANCE; its speed over that of "highest".

    `origin` says what decided: `checkpoint` (the run used it before), `record` (a run of this machine chose it before),
    `probe` (measured now and recorded) or `unrecorded`.
    """

    path: str
    error: float
    speedup: float
    origin: str


def choose_matmul(size: Size, device: torch.device, before: str = "", record: Path | None = None) -> MatmulChoice:
    """Choose and set the path for the feed-forward network's product, (rows, hidden) x (hidden, ffn).

    The time of a path varies from run to run, so the choice is made once: `before`, the path of the run's checkpoint,
    decides; else the choice that an earlier run recorded under the same conditions in the folder `record`; else a
    probe, whose choice is recorded. Whatever was chosen before is taken only if it is float32 here as well. Where the
    choice cannot be recorded, "highest" is taken, so that a run that starts again takes the same path. Without
    `record` the probe decides for this process alone.
    """
    probe = _Probe.of(size, device)
    if before:
        found = probe.choice(before, "checkpoint")
    elif record is None:
        found = probe.choice(probe.fastest(), "probe")
    else:
        found = _recorded(probe, _conditions(size, device), record)
    torch.set_float32_matmul_precision(found.path)
    return found


def _recorded(probe: _Probe, conditions: Mapping[str, object], folder: Path) -> MatmulChoice:
    """The choice on record, or the probe's, which is then recorded."""
    path = folder / f"{disk.digest(conditions)}.json"
    try:
        if known := _read(path):
            return probe.choice(known, "record")
        with disk.locked(folder):
            if known := _read(path):
                return probe.choice(known, "record")
            found = probe.choice(probe.fastest(), "probe")
            facts = {"error": found.error, "speedup": found.speedup, "host": socket.gethostname(), "time": time.time()}
            disk.write_json(path, {"conditions": conditions, "path": found.path, **facts})
            return found
    except DataError:
        return probe.choice(PATHS[0], "unrecorded")


def _read(path: Path) -> str:
    """The recorded choice, "" where there is none."""
    known = (disk.read_json(path) or {}).get("path")
    return known if known in PATHS else ""


def _conditions(size: Size, device: torch.device) -> dict[str, object]:
    """What the fastest path depends on."""
    cuda = device.type == "cuda"
    return {
        "processor": torch.cuda.get_device_name(device) if cuda else cpu_model(),
        "instructions": "" if cuda else torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "hidden": size.hidden,
        "ffn": size.ffn,
    }


@dataclass(frozen=True)
class _Probe:
    """Error and seconds of every path on this machine."""

    errors: Mapping[str, float]
    times: Mapping[str, float]

    @classmethod
    def of(cls, size: Size, device: torch.device) -> _Probe:
        generator = torch.Generator().manual_seed(0)
        rows = max(64, min(_ROWS, _FLOPS // (2 * size.hidden * size.ffn)))
        x = torch.randn(rows, size.hidden, generator=generator).to(device)
        weight = torch.randn(size.ffn, size.hidden, generator=generator).to(device)
        exact = x.double() @ weight.double().t()
        # The first product of each is not timed: libraries set themselves up.
        errors = {path: _error(_timed(path, x, weight)[1], exact) for path in PATHS}
        series = [[_timed(path, x, weight)[0] for path in PATHS] for _ in range(_ROUNDS)]
        # The least time: whatever else the machine does only adds.
        return cls(errors, dict(zip(PATHS, map(min, zip(*series, strict=True)), strict=True)))

    def fastest(self) -> str:
        """The path to take where none was taken before."""
        best = min(self._exact(), key=lambda path: self.times[path], default=PATHS[0])
        return best if self.times[PATHS[0]] >= MARGIN * self.times[best] else PATHS[0]

    def choice(self, path: str, origin: str) -> MatmulChoice:
        """The choice of `path`, or of "highest" where `path` is not float32 here."""
        path = path if path in self._exact() else PATHS[0]
        return MatmulChoice(path, self.errors[path], self.times[PATHS[0]] / self.times[path], origin)

    def _exact(self) -> list[str]:
        return [path for path in PATHS if self.errors[path] <= TOLERANCE]


def _error(product: Tensor, exact: Tensor) -> float:
    return float((product.double() - exact).abs().max() / exact.abs().max())


def _timed(path: str, x: Tensor, weight: Tensor) -> tuple[float, Tensor]:
    torch.set_float32_matmul_precision(path)
    _wait(x.device)
    began = time.perf_counter()
    product = torch.nn.functional.linear(x, weight)
    _wait(x.device)
    return time.perf_counter() - began, product


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
