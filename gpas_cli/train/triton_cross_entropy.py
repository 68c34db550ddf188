"""The Triton kernel of `softmax_gradients`. Importing this file imports triton, which CUDA builds of torch bring."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits that a program reads at once, and its warps. A thread takes 40 registers on sm_90, so three programs of 16
# warps fill a multiprocessor: on 132 of them, 396 rows of 32,000 bfloat16 logits are in flight, 25 MB, and the second
# reading finds them in the cache of 50 MB.
_BLOCK = 8192
_WARPS = 16
_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}


def launch(logits: Tensor, targets: Tensor, exact: torch.dtype, z_loss: float, wanted: bool, vocab: int) -> Tensor:
    """Compute `cross_entropy.softmax_gradients` in one kernel."""
    assert logits.is_contiguous()
    rows, width = logits.shape
    chosen = logits.new_empty(rows, 1, dtype=exact)
    wide = torch.promote_types(logits.dtype, torch.float32)
    _softmax_gradients[rows,](
        logits, targets, chosen, z_loss,
        vocab=vocab, width=width, wide=_DTYPES[wide], exact=_DTYPES[exact], wanted=wanted, block=_BLOCK,
        num_warps=_WARPS,
    )  # fmt: skip
    return chosen


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_gradients(  # type: ignore[no-untyped-def]
    logits, targets, chosen, z_loss,
    vocab: tl.constexpr, width: tl.constexpr, wide: tl.constexpr, exact: tl.constexpr, wanted: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Compute one row. The sum of exponentials is relative to the largest logit so far, which takes one reading.

    Whole rows of `width` columns are read and written: aligned ones, 16 bytes at once, whatever the vocabulary.
    """
    row = tl.program_id(0).to(tl.int64)
    first = logits + row * width
    target = tl.maximum(tl.load(targets + row), 0)
    # Read before the first reduction, behind which all warps wait for each other: afterwards the logits are replaced.
    own = tl.load(first + target).to(wide)
    largest = tl.full((), float("-inf"), wide)
    total = tl.zeros((), wide)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        part = tl.load(first + columns, columns < width, float("-inf")).to(wide)
        part = tl.where(columns < vocab, part, float("-inf"))
        higher = tl.maximum(largest, tl.max(part, 0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # of a block that is all -inf, as masked logits are
        total = total * tl.exp(largest - finite) + tl.sum(tl.exp(part - finite), 0)
        largest = higher
    log_z = largest + tl.log(total)
    tl.store(chosen + row, (own - log_z).to(exact))
    if wanted:
        slope = 1 + 2 * z_loss * log_z
        for start in range(0, width, block):
            columns = start + tl.arange(0, block)
            inside = columns < width
            part = tl.load(first + columns, inside, float("-inf")).to(wide)
            part = tl.where(columns < vocab, part, float("-inf"))
            probabilities = tl.exp((part - log_z).to(exact).to(wide)).to(exact).to(wide)
            gradients = (probabilities * slope).to(exact).to(wide) - (columns == target).to(wide)
            tl.store(first + columns, gradients, inside)
