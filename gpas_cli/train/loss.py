"""The language-modelling loss as a sum over targets, so that any split of a batch adds up to the same number.

Two things are never made: the logits of all tokens (at 71M with 512 rows of 256 they would be 17 GB in float32), and
anything at all for padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpas_cli.data.loader import IGNORED
from gpas_cli.model.attention import Packing
from gpas_cli.model.llama import Llama
from gpas_cli.train.precision import Precision

# Logits that exist at once, in elements: 64 MB of float32 (in bfloat16 half of it beside). A GPU's products want more
# tokens than a processor's: 2,097 of 32,000 logits, 256 MB of float32 beside 128 MB of bfloat16.
CHUNK, CHUNK_ON_GPU = 2**24, 2**26


@dataclass(frozen=True)
class DeviceRows:
    """Rows of a batch on their device. Without a packing `inputs` and `targets` are (rows, time), else (1, n): what
    stands behind a row's last target is left out. Targets that are IGNORED do not count."""

    inputs: Tensor
    targets: Tensor
    packing: Packing | None

    @classmethod
    def of(cls, inputs: NDArray[np.int64], targets: NDArray[np.int64], device: torch.device) -> DeviceRows:
        """From (rows, time) arrays of token ids."""
        rows, time = targets.shape
        counts = targets != IGNORED
        needed = np.where(counts.any(1), time - np.argmax(counts[:, ::-1], 1), 0)
        if needed.min() == time:
            return cls(_move(inputs, device), _move(targets, device), None)
        needed[0] = max(1, needed[0])  # a batch without any target: what is read by index is not empty
        held = (np.arange(time) < needed[:, None]).ravel()
        (index,), token = np.nonzero(held), np.maximum(np.cumsum(held) - 1, 0)
        inputs, targets = (a.reshape(1, -1)[:, index] for a in (inputs, targets))
        packing = Packing(_move(index, device), _move(token, device), _move(held[:, None], device), rows, time)
        return cls(_move(inputs, device), _move(targets, device), packing)


def _move(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def summed_loss(network: Llama, rows: DeviceRows, precision: Precision, divisor: float = 1.0) -> Tensor:
    """Sum of -log p(target) in nats over the targets that count, divided by `divisor`."""

    def read(hidden: Tensor, head: Tensor) -> Tensor:
        states, targets, dtype = hidden.flatten(0, 1), rows.targets.flatten(), precision.matmul(hidden.dtype)
        with torch.autocast(states.device.type, enabled=False):
            if torch.is_grad_enabled():
                return _LinearCrossEntropy.apply(states, head, targets, dtype, divisor)  # type: ignore[no-any-return, no-untyped-call]
            return _chunked(states, head, targets, dtype, wanted=False)[0] / divisor

    with precision.compute():
        return network(rows.inputs, rows.packing, read)  # type: ignore[no-any-return]


def logits_at_once(device: torch.device) -> int:
    """How many logits exist at once on such a device, in elements."""
    return CHUNK if device.type == "cpu" else CHUNK_ON_GPU


class _LinearCrossEntropy(torch.autograd.Function):
    """sum over tokens of -log softmax(W h)[target] / divisor, by chunks of tokens; gradients are made going forward,
    while a chunk's logits are there. hidden: (n, d); head: (vocab, d); targets: (n,)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, dtype: torch.dtype, divisor: float) -> Tensor:
        total, d_hidden, d_head = _chunked(hidden, head, targets, dtype, wanted=True)
        ctx.save_for_backward(d_hidden, d_head)
        ctx.divisor = divisor
        return total / divisor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        d_hidden, d_head = ctx.saved_tensors
        gradient = gradient / ctx.divisor
        return d_hidden * gradient, d_head.mul_(gradient), None, None, None


def _chunked(
    hidden: Tensor, head: Tensor, targets: Tensor, dtype: torch.dtype, *, wanted: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, and its gradients if they are `wanted`. Dtypes are explicit here: no autocast."""
    weight, most = head.to(dtype), max(1, min(len(hidden), logits_at_once(hidden.device) // len(head)))
    # As few chunks as there must be, all of about one length: a short rest has slow products.
    rows = math.ceil(len(hidden) / math.ceil(len(hidden) / most))
    wide = torch.promote_types(dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=hidden.device)
    d_hidden = torch.empty_like(hidden) if wanted else None
    d_head = torch.zeros_like(head, dtype=wide) if wanted else None
    # What is large is made once and changed in place: fresh memory costs a third of the product that fills it.
    products = torch.empty(most, len(head), dtype=dtype, device=hidden.device)
    # With bfloat16 weights the log-probabilities are bfloat16 as well, as in the reference; their sum is not.
    exact = dtype if head.dtype == torch.bfloat16 else wide
    logarithms = products if exact == dtype else torch.empty_like(products, dtype=exact)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        states, counts = hidden[part].to(dtype), (targets[part] != IGNORED)[:, None]
        logits = torch.mm(states, weight.t(), out=products[: len(states)])
        logs = torch.log_softmax(logits, -1, exact, out=logarithms[: len(states)])
        place = targets[part].clamp_min(0)[:, None]
        total -= (logs.gather(1, place).to(wide) * counts).sum()
        if d_hidden is not None and d_head is not None:
            d_logits = logs.exp_().scatter_add_(1, place, torch.full_like(place, -1, dtype=exact))
            if exact != dtype:
                d_logits = logits.copy_(d_logits)
            # What does not count is left out of the small factors: the large one is not gone through again.
            torch.mul(d_logits @ weight, counts, out=d_hidden[part])
            _add_product(d_head, d_logits.t(), states * counts)
    return total, d_hidden, None if d_head is None else d_head.to(head.dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
