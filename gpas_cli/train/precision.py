"""The precisions of a training, the scale of its loss, and its float32 product: the fastest one of the processor whose
result is float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from gpas_cli.model.llama import Llama
from gpas_cli.spec.model import Size
from gpas_cli.structure import Frozen

_GOOD_UPDATES = 2000  # with finite gradients, after which the scale of the loss is doubled
# The largest error of an element, relative to the largest element. float32 sums of up to 11,008 terms stay below it.
TOLERANCE = 2e-6
_WIDE = 512  # features; narrower networks spend more time in attention


class Precision(Frozen):
    """`fp32`; `bf16` and `fp16`: autocast, with weights and optimizer state in float32; `bf16_stream`: `bf16` with the
    residual stream in bfloat16, too; `pure_bf16`: everything in bfloat16, the loss included, as in the reference.

    Under `fp16` the loss of a training is scaled (`LossScale`), because float16 has nothing between 0 and 6e-8. The
    gradients of the logits need no scale: they are rounded to float16 before they are divided by the number of targets.
    """

    name: str
    device: torch.device

    @property
    def weights(self) -> torch.dtype:
        """The dtype of the weights."""
        return torch.bfloat16 if self.name == "pure_bf16" else torch.float32

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, None without it."""
        half = {"bf16": torch.bfloat16, "bf16_stream": torch.bfloat16, "fp16": torch.float16}
        return half.get(self.name)

    def apply(self, network: Llama) -> None:
        """Let `network` round its stream as the precision does; its parameters stay the same."""
        network.round_stream(torch.bfloat16 if self.name == "bf16_stream" else None)

    def compute(self) -> AbstractContextManager[object]:
        """Return the context manager of forward passes."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()

    def matmul(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which matrices are multiplied with activations of `dtype`."""
        return self.autocast or dtype


class LossScale(Frozen):
    """What the loss is multiplied by, and its gradients are divided by, in an update; `good`: the updates with finite
    gradients since it last changed.

    As in torch.amp.GradScaler it doubles after _GOOD_UPDATES of them, and halves after an update without. It stays at 1
    or more: gradients that are not finite there are not the scale's fault.
    """

    value: float = 2.0**16
    good: int = 0

    def after(self, *, finite: bool) -> LossScale:
        """Return the scale after an update whose gradients are finite or not."""
        if not finite:
            return LossScale(max(1.0, self.value / 2))
        grows = self.good + 1 == _GOOD_UPDATES
        return LossScale(self.value * 2) if grows else LossScale(self.value, self.good + 1)


class MatmulChoice(Frozen):
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
