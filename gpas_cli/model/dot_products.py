"""The dot products of many pairs of tensors: on a GPU in one kernel, however many there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, library

from gpas_cli.model.triton_support import has_triton


@library.custom_op("gpas::dot_products", mutates_args=())
def dot_products(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return <left[i], right[i]>, the sum over all elements of their product, shape (len(left),).

    All tensors have one dtype and device, and left[i] and right[i] have one shape.
    """
    pairs = zip(left, right, strict=True)
    if has_triton(left[0].device):
        from gpas_cli.model.triton_dots import launch

        return launch([(a.contiguous(), b.contiguous()) for a, b in pairs])
    return torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in pairs])


@dot_products.register_fake
def _shape(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return left[0].new_empty(len(left))
