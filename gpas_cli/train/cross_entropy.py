"""The elementwise part of the head: from logits to log-probabilities and, in the logits' place, to gradients.

On a GPU it is one kernel (`gpas_cli.train.triton_cross_entropy`) that reads the logits twice, the second time from its
cache, and writes them once. On a CPU it is a few operations of torch. `F.linear_cross_entropy` of torch 2.13 replaces
neither: it has no z-loss, passes over a chunk's logits once for each eager operation, adds gradients up in the dtype of
its inputs where it needs as little memory ("compact"), and subtracts the targets with `index_add_`, which is a sort on
GPUs with deterministic algorithms.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor, library

from gpas_cli.errors import first_line


@library.custom_op("gpas::softmax_gradients", mutates_args={"logits"})
def softmax_gradients(
    logits: Tensor, targets: Tensor, exact: torch.dtype, z_loss: float, wanted: bool, vocab: int
) -> Tensor:
    """Return log p(target) of each row in `exact`, shape (n, 1), and if `wanted` replace the logits by the gradients of
    -log p(target) + z_loss * log^2 Z.

    logits: (n, vocab), contiguous, or wider: what further columns have does not count, and their gradients are zero.
    targets: (n,), those below 0 count as 0. Log-probabilities and probabilities are rounded to `exact`, which is wide
    unless the loss is one of bfloat16. One operation, on a GPU one kernel.
    """
    if has_triton(logits.device):
        from gpas_cli.train.triton_cross_entropy import launch

        return launch(logits, targets, exact, z_loss, wanted, vocab)
    own = logits[:, :vocab].contiguous()
    scratch = own if exact == own.dtype else torch.empty_like(own, dtype=exact)
    chosen = softmax_gradients_by_torch(own, targets, scratch, z_loss, wanted)
    if wanted and vocab < logits.shape[1]:
        logits.zero_()[:, :vocab] = own
    return chosen


@softmax_gradients.register_fake
def _shape(logits: Tensor, targets: Tensor, exact: torch.dtype, z_loss: float, wanted: bool, vocab: int) -> Tensor:
    return logits.new_empty(len(logits), 1, dtype=exact)


def softmax_gradients_by_torch(logits: Tensor, targets: Tensor, scratch: Tensor, z_loss: float, wanted: bool) -> Tensor:
    """Compute `softmax_gradients` with torch. scratch: a buffer like the logits, of dtype `exact`, which is
    overwritten; the logits themselves if they have this dtype.
    """
    place = targets.clamp_min(0)[:, None]
    # log Z is the difference of a logit and its log-probability
    own = logits.gather(1, place) if wanted and z_loss else None
    logarithms = torch.log_softmax(logits, -1, scratch.dtype, out=scratch)
    chosen = logarithms.gather(1, place)
    if wanted:
        gradients = logarithms.exp_()
        if own is not None:
            wide = torch.promote_types(scratch.dtype, torch.float32)
            gradients.mul_(1 + 2 * z_loss * (own.to(wide) - chosen.to(wide)))
        _subtract_one_hot(gradients, place)
        if gradients.dtype != logits.dtype:
            logits.copy_(gradients)
    return chosen


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Return whether `device` is a GPU on which the kernel compiles and runs. Warns with the reason if it does not.

    CUDA builds of torch for Linux bring triton, which needs a C compiler and Python's headers.
    """
    if device.type != "cuda":
        return False
    try:
        from gpas_cli.train.triton_cross_entropy import launch

        targets = torch.zeros(1, dtype=torch.int64, device=device)
        launch(torch.ones(1, 2, device=device), targets, torch.float32, 0.0, True, 2)
    except Exception as error:  # its class depends on what is missing
        warnings.warn(f"Triton's kernel is not used, which makes training slower: {first_line(error)}", stacklevel=2)
        return False
    return True


def _subtract_one_hot(gradients: Tensor, place: Tensor) -> None:
    """Subtract 1 at column place[i, 0] of each row i."""
    if gradients.device.type == "cpu":
        gradients.scatter_add_(1, place, torch.full_like(place, -1, dtype=gradients.dtype))
    else:  # on a GPU, deterministic scattering is a sort
        gradients.sub_(torch.arange(gradients.shape[1], device=gradients.device) == place)
