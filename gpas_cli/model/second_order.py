"""Gradients that can be differentiated again, for functions with a backward pass of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def by_autograd(
    plain: Callable[..., Tensor], inputs: Sequence[Tensor], d_y: Tensor, *more: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `plain` at `inputs`, as differentiable functions of them; None where none is required."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(plain(*inputs, *more), wanted, d_y, create_graph=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)
