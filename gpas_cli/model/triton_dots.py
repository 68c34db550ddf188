"""The Triton kernel of `dot_products`. Importing this file imports triton, which comes with CUDA builds of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpas_cli.model.transfer import to_device

PROGRAMS = 64  # programs that share a pair; their partial sums are added in a fixed order
BLOCK = 2048  # elements that a program reads at once
DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def launch(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the dot product of each pair of contiguous tensors, shape (pairs,)."""
    first = pairs[0][0]
    addresses = torch.tensor([[a.data_ptr(), b.data_ptr(), a.numel()] for a, b in pairs], dtype=torch.int64)
    addresses = to_device(addresses, first.device)
    partial = first.new_empty(len(pairs), PROGRAMS)
    steps = triton.cdiv(max(a.numel() for a, _ in pairs), PROGRAMS * BLOCK)
    _partial_sums[len(pairs), PROGRAMS](
        addresses, partial, steps=steps, dtype=DTYPES[first.dtype], programs=PROGRAMS, block=BLOCK, num_warps=8
    )
    return partial.sum(1)


@triton.jit  # type: ignore[untyped-decorator]
def _partial_sums(  # type: ignore[no-untyped-def]
    addresses, partial, steps: tl.constexpr, dtype: tl.constexpr, programs: tl.constexpr, block: tl.constexpr
):
    """Add up every `programs`-th block of a pair. addresses: (pairs, 3), int64: left, right, number of elements."""
    pair = tl.program_id(0)
    program = tl.program_id(1)
    left = tl.load(addresses + 3 * pair).to(tl.pointer_type(dtype))
    right = tl.load(addresses + 3 * pair + 1).to(tl.pointer_type(dtype))
    length = tl.load(addresses + 3 * pair + 2)
    total = tl.zeros((block,), dtype)
    for step in range(steps):
        places = (step * programs + program).to(tl.int64) * block + tl.arange(0, block)
        inside = places < length
        total += tl.load(left + places, inside, 0.0) * tl.load(right + places, inside, 0.0)
    tl.store(partial + pair * programs + program, tl.sum(total, 0))
