"""Which of PyTorch's float32 matrix products to use: found by a probe on this machine, with the cell's own shapes.

`torch.set_float32_matmul_precision` names a trade, not an arithmetic: "medium" is the same arithmetic by another
library on one processor (oneDNN, up to twice as fast), bfloat16 on another, TF32 on a GPU. So the error is measured as
well as the time, against float64, and a path that is not float32 in fact is not taken.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
class Gemm:
    """The path taken; its error as in TOLERANCE; its speed over that of "highest"."""

    path: str
    error: float
    speedup: float


def choose_gemm(size: Size, device: torch.device, before: str = "") -> Gemm:
    """Probe every path with the feed-forward network's product, (rows, hidden) x (hidden, ffn), and set the best; or
    the one that was taken `before`, if it is float32 here as well."""
    generator = torch.Generator().manual_seed(0)
    rows = max(64, min(_ROWS, _FLOPS // (2 * size.hidden * size.ffn)))
    x = torch.randn(rows, size.hidden, generator=generator).to(device)
    weight = torch.randn(size.ffn, size.hidden, generator=generator).to(device)
    exact = x.double() @ weight.double().t()
    # The first product of each is not timed: libraries set themselves up.
    errors = {path: _error(_timed(path, x, weight)[1], exact) for path in PATHS}
    series = [[_timed(path, x, weight)[0] for path in PATHS] for _ in range(_ROUNDS)]
    # The least time: whatever else the machine does only adds.
    times = dict(zip(PATHS, map(min, zip(*series, strict=True)), strict=True))
    exact_enough = [path for path in PATHS if errors[path] <= TOLERANCE]
    path = before if before in exact_enough else _fastest(times, exact_enough)
    torch.set_float32_matmul_precision(path)
    return Gemm(path, errors[path], times[PATHS[0]] / times[path])


def _fastest(times: Mapping[str, float], paths: Sequence[str]) -> str:
    best = min(paths, key=lambda path: times[path], default=PATHS[0])
    return best if times[PATHS[0]] >= MARGIN * times[best] else PATHS[0]


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
