"""Choose PyTorch's fastest float32 matrix product, by measuring time and error with the cell's shapes.

The values of `torch.set_float32_matmul_precision` do not say which arithmetic is used: "medium" is float32 in another
library on one processor (oneDNN, up to twice as fast), bfloat16 on another, TF32 on a GPU. The error against float64 is
therefore measured as well, and a path that is not float32 is rejected. Two paths round differently, so the choice is
recorded: all runs on a machine, and all attempts of a run, use the same one.
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
from gpas_cli.spec.model import Size

PATHS = ("highest", "medium")
# The largest error of an element, relative to the largest element. float32 sums of up to 11,008 terms stay below it.
TOLERANCE = 2e-6
# A path must be faster by this factor to be chosen, so that repeated probes agree.
MIN_SPEEDUP = 1.25
_ROUNDS = 7
# The probe multiplies 1,024 rows, as many as a batch of the quickstart has, or fewer if that is much more than a GFLOP.
_ROWS = 1024
_FLOPS = 2**30


@dataclass(frozen=True)
class MatmulChoice:
    """The chosen path, its error (as in TOLERANCE) and its speed relative to "highest".

    `origin`: `checkpoint` (the run used it before), `record` (another run of this machine chose it), `probe` (measured
    now and recorded) or `unrecorded` (the choice could not be recorded, so that it is "highest").
    """

    path: str
    error: float
    speedup: float
    origin: str


def choose_matmul(size: Size, device: torch.device, before: str = "", record: Path | None = None) -> MatmulChoice:
    """Choose and set the path for the feed-forward network's product, (rows, hidden) x (hidden, ffn).

    Timings vary from run to run, so the choice is made once. It is `before`, the path in the run's checkpoint; or the
    one that an earlier run recorded under the same conditions in the folder `record`; or that of a probe, which is then
    recorded. An earlier choice is kept only if it is float32 on this machine too. If the choice cannot be recorded, it
    is "highest", so that a restarted run makes the same one. Without `record`, the probe decides for this process only.
    """
    probe = _Probe.of(size, device)
    if before:
        choice = probe.choice(before, "checkpoint")
    elif record is None:
        choice = probe.choice(probe.fastest(), "probe")
    else:
        choice = _recorded(probe, _conditions(size, device), record)
    torch.set_float32_matmul_precision(choice.path)
    return choice


def _recorded(probe: _Probe, conditions: Mapping[str, object], folder: Path) -> MatmulChoice:
    """Return the recorded choice; without one, probe, record the result and return it."""
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
    """Return the recorded choice, "" if there is none."""
    known = (disk.read_json(path) or {}).get("path")
    return known if known in PATHS else ""


def _conditions(size: Size, device: torch.device) -> dict[str, object]:
    """Return everything that the fastest path depends on."""
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
    """The error and the seconds of every path on this machine."""

    errors: Mapping[str, float]
    times: Mapping[str, float]

    @classmethod
    def of(cls, size: Size, device: torch.device) -> _Probe:
        generator = torch.Generator().manual_seed(0)
        rows = max(64, min(_ROWS, _FLOPS // (2 * size.hidden * size.ffn)))
        x = torch.randn(rows, size.hidden, generator=generator).to(device)
        weight = torch.randn(size.ffn, size.hidden, generator=generator).to(device)
        exact = x.double() @ weight.double().t()
        # The first product of each path is not timed: libraries initialise themselves in it.
        errors = {path: _error(_timed(path, x, weight)[1], exact) for path in PATHS}
        series = [[_timed(path, x, weight)[0] for path in PATHS] for _ in range(_ROUNDS)]
        # The minimum: other load on the machine can only add time.
        return cls(errors, dict(zip(PATHS, map(min, zip(*series, strict=True)), strict=True)))

    def fastest(self) -> str:
        """Return the fastest float32 path, or "highest" unless another one is clearly faster."""
        best = min(self._exact(), key=lambda path: self.times[path], default=PATHS[0])
        return best if self.times[PATHS[0]] >= MIN_SPEEDUP * self.times[best] else PATHS[0]

    def choice(self, path: str, origin: str) -> MatmulChoice:
        """Return the choice of `path`, or of "highest" if `path` is not float32 on this machine."""
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
