"""The float32 product: the fastest one of the processor whose result is float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpas_cli.spec.model import Size

# The largest error of an element, relative to the largest element. float32 sums of up to 11,008 terms stay below it.
TOLERANCE = 2e-6
_WIDE = 512  # features; narrower networks spend more time in attention


@dataclass(frozen=True)
class MatmulChoice:
    """The float32 product of a run."""

    path: str  # the value of `torch.set_float32_matmul_precision`
    error: float  # of an element, as in TOLERANCE
    origin: str  # what chose it: the `processor`, or the run's `checkpoint`


def choose_matmul(size: Size, device: torch.device, before: str = "") -> MatmulChoice:
    """Set and return the float32 product: `before`, the one of the run's checkpoint, else the fastest of the processor.

    With AVX-512 "medium" is float32 in another library, oneDNN, and twice as fast in wide networks; it makes attention
    slow in narrow ones. On other processors it is no faster, or bfloat16, on a GPU TF32. So its error is measured with
    the cell's shapes, and a product that is not float32 is not taken. The choice depends on network, processor and
    torch alone, so that a busy machine computes the same digits as an idle one.
    """
    avx512 = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"
    path = before or ("medium" if avx512 and size.hidden >= _WIDE else "highest")
    error = _product_error(path, size, device)
    if error > TOLERANCE:
        path = "highest"
        error = _product_error(path, size, device)
    return MatmulChoice(path, error, "checkpoint" if path == before else "processor")


def _product_error(path: str, size: Size, device: torch.device) -> float:
    """Set the product and return its error."""
    torch.set_float32_matmul_precision(path)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, size.hidden, generator=generator).to(device)
    weight = torch.randn(size.ffn, size.hidden, generator=generator).to(device)
    exact = x.double() @ weight.double().t()
    return float(((x @ weight.t()).double() - exact).abs().max() / exact.abs().max())
