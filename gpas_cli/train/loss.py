"""The language-modelling loss, as a sum over targets: the parts of a batch add up to the same loss however it is split.

The logits of all tokens never exist at once (at 71M, with 512 rows of 256, they would take 17 GB in float32), and
nothing is computed for padding.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, library

from gpas_cli.data.loader import IGNORED, Batch, Draw, lengths_needed
from gpas_cli.errors import first_line
from gpas_cli.model.attention import Visible
from gpas_cli.model.dropout import Dropout
from gpas_cli.model.dtensors import to_device
from gpas_cli.model.layers import aligned_rows
from gpas_cli.model.llama import LanguageModel
from gpas_cli.model.packing import Packing
from gpas_cli.model.ragged import has_ragged
from gpas_cli.spec.cost import GPU_LOGITS
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.structure import Frozen
from gpas_cli.train.precision import Precision

# Logits that exist at once on a CPU: 64 MB of float32, and half as much if there is a bfloat16 copy.
_CHUNK_LOGITS = 2**24
_TILE = 256  # rows of a chunk: whole tiles of a GPU's products of matrices


# On a GPU the elementwise part of the head is one kernel (`gpas_cli.train.triton_cross_entropy`) that reads the logits
# twice, the second time from its cache, and writes them once. On a CPU it is a few operations of torch.
# `F.linear_cross_entropy` of torch 2.13 replaces neither: it has no z-loss, passes over a chunk's logits once for each
# eager operation, adds gradients up in the dtype of its inputs where it needs as little memory ("compact"), and
# subtracts the targets with `index_add_`, which is a sort on GPUs with deterministic algorithms.
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
    if _uses("triton", logits.device):
        from gpas_cli.train.triton_cross_entropy import launch

        return launch(logits, targets, exact, z_loss, wanted, vocab)
    own = logits[:, :vocab].contiguous()
    scratch = own if exact == own.dtype else torch.empty_like(own, dtype=exact)
    chosen = _softmax_gradients_by_torch(own, targets, scratch, z_loss, wanted)
    if wanted and vocab < logits.shape[1]:
        logits.zero_()[:, :vocab] = own
    return chosen


@softmax_gradients.register_fake
def _shape(logits: Tensor, targets: Tensor, exact: torch.dtype, z_loss: float, wanted: bool, vocab: int) -> Tensor:
    return logits.new_empty(len(logits), 1, dtype=exact)


def _softmax_gradients_by_torch(
    logits: Tensor, targets: Tensor, scratch: Tensor, z_loss: float, wanted: bool
) -> Tensor:
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
def _has_triton(device: torch.device) -> bool:
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


def _subtract_one_hot(gradients: Tensor, place: Tensor, amount: float = 1.0) -> None:
    """Subtract `amount` at column place[i, 0] of each row i."""
    if gradients.device.type == "cpu":
        gradients.scatter_add_(1, place, torch.full_like(place, -amount, dtype=gradients.dtype))
    else:  # on a GPU, deterministic scattering is a sort
        gradients.sub_(_one_hot(place, gradients), alpha=amount)


def _one_hot(place: Tensor, like: Tensor) -> Tensor:
    return (torch.arange(like.shape[1], device=like.device) == place).to(like.dtype)


class DeviceRows(Frozen):
    """Rows of a batch on their device.

    `inputs` and `targets` are (rows, time) without a packing, else (1, n): positions that no target depends on are left
    out at the end of rows. IGNORED targets do not count.
    """

    inputs: Tensor
    targets: Tensor
    packing: Packing | None
    visible: Visible | None = None  # None where attention is causal
    targeted: Packing | None = None  # the tokens that have a target, where only some of them do; None: all count
    dropout: Dropout | None = None  # None but in training

    @classmethod
    def of(
        cls,
        inputs: NDArray[np.int64],
        targets: NDArray[np.int64],
        device: torch.device,
        prefix: NDArray[np.int64] | None = None,
        starts: NDArray[np.bool_] | None = None,
    ) -> DeviceRows:
        """Return the rows of (rows, time) arrays of token ids on `device`; `prefix` and `starts`: as in `Batch`.

        With `starts` every document, or the part of it in a row, is a row of the packing.
        """
        time = targets.shape[1]
        if starts is not None:
            inputs, targets = (array.reshape(1, -1) for array in (inputs, targets))
            documents = _packing(_documents(starts), time, device, causal=True)
            return cls(_move(inputs, device), _move(targets, device), documents)
        needed = lengths_needed(targets, prefix)
        visible = None if prefix is None else _visible(targets, prefix, device)
        packing = None
        if needed.min() < time:
            needed[0] = max(1, needed[0])  # in a batch without any target, indexing still needs one position
            held = (np.arange(time) < needed[:, None]).ravel()
            inputs, targets = (a.reshape(1, -1)[:, held] for a in (inputs, targets))
            packing = _packing(held, time, device, causal=visible is None)
        targeted = None if prefix is None else _packing(_targeted(targets), targets.shape[1], device, causal=False)
        return cls(_move(inputs, device), _move(targets, device), packing, visible, targeted)

    @classmethod
    def of_batch(cls, batch: Batch, part: slice, device: torch.device) -> DeviceRows:
        """Return some of the rows of a batch on `device`."""
        own = batch.part(part)
        return cls.of(own.inputs, own.targets, device, own.prefix, own.starts)

    def with_dropout(self, rate: float, draw: Draw, rows: Iterable[int], time: int, words: float = 0.0) -> DeviceRows:
        """Return these rows, the ones with the numbers `rows` and of length `time` in their batch, with dropout, and
        with the dropout of `words`."""
        drawn = np.stack([draw.words(row, time) >> np.uint64(32) for row in rows])
        keys = _move(drawn.astype(np.uint32).view(np.int32), self.inputs.device)
        if self.packing is not None:
            keys = keys.reshape(1, -1)
            # Only rows with padding have fewer tokens than places; a packing of documents counts its documents' tokens.
            keys = keys if keys.numel() == self.inputs.numel() else keys.index_select(1, self.packing.index)
        return replace(self, dropout=Dropout(rate, keys, words))


def _documents(starts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which positions hold a token, (documents * time,), if each document has a row of length `time`.

    `starts`: where documents begin in rows of that length; the first token of a row begins one.
    """
    time = starts.shape[1]
    (first,) = np.nonzero(starts.ravel())
    lengths = np.diff(first, append=starts.size)
    return (np.arange(time) < lengths[:, None]).ravel()


def _visible(targets: NDArray[np.int64], prefix: NDArray[np.int64], device: torch.device) -> Visible:
    """Return what the tokens of the rows see. A mask costs attention its fastest kernels, so full rows have none."""
    time = targets.shape[1]
    if prefix.min() == time:
        return Visible()
    here = _move(prefix, device)
    seen = Visible.of(here, time, later=bool((lengths_needed(targets, None) > prefix).any()))
    return replace(seen, prefix=here, bounds=(int(prefix.min()), int(prefix.max())))


def _targeted(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the flattened rows' tokens have a target; if none has one, the first."""
    found: NDArray[np.bool_] = targets.ravel() != IGNORED
    found[0] |= not found.any()
    return found


def _packing(held: NDArray[np.bool_], time: int, device: torch.device, *, causal: bool) -> Packing:
    """Return the packing of the tokens that are `held` of flattened rows of length `time`, with bounds if it is for
    `causal` attention: no other attention reads them."""
    (index,) = np.nonzero(held)
    token = np.maximum(np.cumsum(held) - 1, 0)
    bounds = None
    if causal and _uses("ragged", device):
        lengths = held.reshape(-1, time).sum(1)
        bounds = _move(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), device)
    return Packing(_move(index, device), _move(token, device), _move(held[:, None], device), time, bounds)


def _move(array: NDArray[Any], device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def summed_loss(
    network: LanguageModel,
    rows: DeviceRows,
    precision: Precision,
    divisor: float = 1.0,
    z_loss: float = 0.0,
    active: ActiveLayers | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the sum of -log p(target) in nats over the targets that are not IGNORED, divided by `divisor`.

    Its gradients are those of the sum of -log p(target) + z_loss * log^2 Z, where Z is the sum of the exponentials of a
    token's logits (PaLM, section 5): the value is the cross entropy alone, whatever `z_loss`. The same holds of
    `smoothing`, the share of the target's probability that all tokens share. active: the layers to apply, None for all.
    """

    def read(hidden: Tensor, head: Tensor) -> Tensor:
        states = hidden.flatten(0, 1)
        targets = rows.targets.flatten()
        if rows.targeted is not None:  # logits are a large part of the work: none without a target
            states = rows.targeted.join(hidden)[0]
            targets = targets.index_select(0, rows.targeted.index)
        dtype = precision.matmul(hidden.dtype)
        with torch.autocast(states.device.type, enabled=False):
            if torch.is_grad_enabled():
                return _LinearCrossEntropy.apply(states, head, targets, dtype, divisor, z_loss, smoothing)  # type: ignore[no-any-return, no-untyped-call]
            return _chunked(states, head, targets, dtype, wanted=False)[0] / divisor

    with precision.compute():
        return network(rows.inputs, rows.packing, read, rows.visible, active, rows.dropout)


def logits_at_once(device: torch.device) -> int:
    """Return how many logits exist at once on such a device."""
    return _CHUNK_LOGITS if device.type == "cpu" else GPU_LOGITS


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum over tokens of -log softmax(W h)[target] / divisor, in chunks of tokens.

    Gradients, the z-loss's included, are computed in the forward pass, while the logits of a chunk exist.
    hidden: (n, d); head: (vocab, d); targets: (n,).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, dtype: torch.dtype, divisor: float, *weights: float
    ) -> Tensor:
        z_loss, smoothing = weights
        total, d_hidden, d_head = _chunked(
            hidden, head, targets, dtype, wanted=True, z_loss=z_loss, smoothing=smoothing
        )
        ctx.save_for_backward(d_hidden, d_head)
        ctx.divisor = divisor
        return total / divisor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_head = ctx.saved_tensors
        gradient = gradient / ctx.divisor
        return d_hidden * gradient, d_head.mul_(gradient), None, None, None, None, None


def _chunk_rows(rows: int, most: int, tile: int) -> int:
    """Return the rows of each chunk but the last: at most `most`, and multiples of `tile` if that many.

    As few chunks as possible, of about equal length: a short last chunk has slow products.
    """
    most = most // tile * tile or most
    even = math.ceil(rows / math.ceil(rows / most))
    return min(math.ceil(even / tile) * tile, most)


def _chunked(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    *,
    wanted: bool,
    z_loss: float = 0.0,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the loss, and if `wanted` the gradients of the smoothed loss plus `z_loss` * log^2 Z.

    Dtypes are explicit: autocast is off.
    """
    weight = aligned_rows(head, dtype)  # further rows are zero, and so are their logits and gradients
    most = max(1, min(len(hidden), logits_at_once(hidden.device) // len(head)))
    rows = _chunk_rows(len(hidden), most, _TILE if hidden.device.type == "cuda" else 1)
    wide = torch.promote_types(dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=hidden.device)
    d_hidden = torch.empty_like(hidden) if wanted else None
    d_head = torch.empty_like(weight, dtype=wide) if wanted else None
    products = _buffer(most, len(weight), dtype, hidden.device)
    # With bfloat16 weights the log-probabilities are bfloat16 too, as in the reference; their sum is not.
    exact = dtype if head.dtype == torch.bfloat16 else wide
    by_torch = hidden.device.type == "cpu" and len(weight) == len(head)
    scratch = products if exact == dtype or not by_torch else torch.empty_like(products, dtype=exact)
    for start in range(0, len(hidden), rows):
        part = slice(start, start + rows)
        states = hidden[part].to(dtype)
        counts = (targets[part] != IGNORED)[:, None]
        logits = torch.mm(states, weight.t(), out=products[: len(states)])
        if by_torch:
            chosen = _softmax_gradients_by_torch(logits, targets[part], scratch[: len(states)], z_loss, wanted)
        else:
            chosen = softmax_gradients(logits, targets[part], exact, z_loss, wanted, len(head))
        if wanted and smoothing:
            logits[:, : len(head)].sub_(smoothing / len(head))
            _subtract_one_hot(logits, targets[part].clamp_min(0)[:, None], -smoothing)
        total -= (chosen.to(wide) * counts).sum()
        if d_hidden is not None and d_head is not None:
            # Ignored targets are masked in the small factors: masking the large one would cost another pass over it.
            torch.mul(logits @ weight, counts, out=d_hidden[part])
            _add_product(d_head, logits.t(), states * counts, first=start == 0)
    return total, d_hidden, None if d_head is None else d_head[: len(head)].to(head.dtype)


def _buffer(rows: int, vocab: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory for logits, (rows, vocab). On a CPU it is kept: to fill new memory takes as long as to multiply."""
    if device.type == "cpu":
        return _kept_buffer(rows, vocab, dtype)
    return torch.empty(rows, vocab, dtype=dtype, device=device)


@functools.lru_cache(maxsize=1)
def _kept_buffer(rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, vocab, dtype=dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add the matrix product a b to `total` in place, or if `first` set `total` to it."""
    beta = 0 if first else 1
    if total.dtype == a.dtype:
        total.addmm_(a, b, beta=beta)
    elif _uses("wider", total.device):
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=beta, out=total)
    elif a.dtype == torch.float16:  # whose largest number a sum over tokens could exceed
        total.addmm_(a.to(total.dtype), b.to(total.dtype), beta=beta)
    elif first:
        total.copy_(a @ b)
    else:
        total += a @ b


@functools.cache
def _accumulates_wider(device: torch.device) -> bool:
    """Return whether `device` is a GPU that adds, with this build of torch, a product of bfloat16 matrices to a float32
    one without rounding it first, and sets a float32 one to it."""
    if device.type != "cuda":
        return False
    try:
        left = torch.ones(16, 264, dtype=torch.bfloat16, device=device)
        left[:, 257:] = 0  # bfloat16 has no 257
        total = torch.full((16, 16), math.nan, device=device)
        for beta in (0, 1):
            torch.addmm(total, left, left.t(), out_dtype=total.dtype, beta=beta, out=total)
        return bool((total == 2 * 257).all())
    except Exception:  # its class depends on the build
        return False


# Kernels that are used on devices where they work. What is computed without them is the same up to rounding.
KERNELS: Mapping[str, Callable[[torch.device], bool]] = {
    "triton": _has_triton,
    "ragged": has_ragged,
    "wider": _accumulates_wider,
}
_agreed: dict[str, Mapping[str, bool]] = {}  # type of device -> whether each kernel is used on it


def use_kernels(device: torch.device, used: Mapping[str, bool]) -> None:
    """Use these KERNELS on such devices, in this process from now on, without a test."""
    _agreed[device.type] = used


def _uses(kernel: str, device: torch.device) -> bool:
    agreed = _agreed.get(device.type)
    return agreed[kernel] if agreed else KERNELS[kernel](device)
