"""Attention on a CPU in float32 and float64, a block at a time whose scores stay in the processor's cache.

PyTorch's own kernel (`scaled_dot_product_attention`) multiplies small blocks, computes padding as well, and is several
times slower where `torch.set_float32_matmul_precision` selects oneDNN's product. Here a block holds several heads and,
if rows are short, several rows; rows have their own lengths; and keys that no query of a block sees are left out. As in
FlashAttention (Dao et al. 2022), the backward pass computes the scores again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from gpas_cli.model.second_order import by_autograd

# Scores that exist at once, 1 MB of float32: they are read and written about ten times.
SCORES = 2**18
QUERIES = 128  # of a block: more of them see more keys that come later, fewer make short products


def takes_stream(device: torch.device, time: int) -> bool:
    """Return whether `cpu_attention` should have rows of up to `time` tokens as one stream without padding: short rows
    are faster all at once, padding included."""
    return device.type == "cpu" and time > QUERIES


def suits_cpu(*tensors: Tensor) -> bool:
    """Return whether `cpu_attention` takes queries, keys and values of these dtypes, or made from such an input."""
    if any(x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) for x in tensors):
        return False
    return not torch.is_autocast_enabled("cpu")


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None = None, seen: Tensor | None = None, causal: bool = True
) -> Tensor:
    """Return softmax(q k^T / sqrt(h) + mask) v: (rows, heads, time, h).

    q, k, v: (rows, heads, time, h). bounds, (rows + 1,), integers: where each row begins in a stream of rows without
    padding and where the last ends; q, k and v are then (1, heads, n, h). seen, bool, (rows or 1, 1, time or 1, time):
    whether a query (third) sees a key (last), every query at least one. causal: whether a token sees itself and the
    tokens before it alone; not with `seen`.
    """
    q, k, v = (x.contiguous() for x in (q, k, v))
    return _Attention.apply(q, k, v, bounds, seen, causal)  # type: ignore[no-any-return, no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def plain(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, seen: Tensor | None, causal: bool) -> Tensor:
        """Compute the same by differentiable operations."""
        if bounds is not None:
            rows = [[x[:, :, begin:end] for x in (q, k, v)] for begin, end in pairwise(bounds.tolist())]
            return torch.cat([_Attention.plain(q, k, v, None, None, causal) for q, k, v in rows], 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores + later_keys(q.shape[2], q.dtype)
        elif seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        return torch.softmax(scores, -1) @ v

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, seen: Tensor | None, causal: bool
    ) -> Tensor:
        attend = _attend_in_graph if torch.compiler.is_compiling() else _attend
        y, sums = attend(q, k, v, bounds, seen, causal)
        ctx.save_for_backward(q, k, v, bounds, seen, y, sums)
        ctx.causal = causal
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bounds, seen, y, sums = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return (*_differentiate_in_graph(q, k, v, bounds, seen, ctx.causal, y, sums, d_y), None, None, None)
        if torch.is_grad_enabled():  # the gradients are differentiated, too
            return (*by_autograd(_Attention.plain, (q, k, v), d_y, bounds, seen, ctx.causal), None, None, None)
        return (*_differentiate(q, k, v, bounds, seen, ctx.causal, y, sums, d_y), None, None, None)


Place = tuple[slice, slice, slice]  # of rows, heads and tokens


class _Block(NamedTuple):
    """Some queries and the keys that they see: slices of the first three dimensions of q and of k. `seen`: the part of
    the mask; `later`: how many of the last keys some of the queries come before, 0 if attention is not causal."""

    queries: Place
    keys: Place
    seen: Tensor | None
    later: int


def _blocks(q: Tensor, bounds: Tensor | None, seen: Tensor | None, causal: bool) -> Iterator[_Block]:
    rows, heads, time, _ = q.shape
    if bounds is not None:
        spans = [(slice(0, 1), begin, end) for begin, end in pairwise(bounds.tolist())]
    else:
        some_rows = max(1, SCORES // (heads * time * time)) if time <= QUERIES else 1
        spans = [(slice(first, first + some_rows), 0, time) for first in range(0, rows, some_rows)]
    for own_rows, begin, end in spans:
        for start in range(begin, end, QUERIES):
            stop = min(start + QUERIES, end)
            last = stop if causal else end
            later = stop - start if causal else 0
            some_heads = max(1, SCORES // ((stop - start) * (last - begin)))
            for head in range(0, heads, some_heads):
                own_heads = slice(head, head + some_heads)
                queries, keys = (own_rows, own_heads, slice(start, stop)), (own_rows, own_heads, slice(begin, last))
                yield _Block(queries, keys, _part(seen, queries), later)


def _part(seen: Tensor | None, queries: Place) -> Tensor | None:
    if seen is None:
        return None
    rows, _, tokens = queries
    seen = seen[rows] if len(seen) > 1 else seen
    return seen[:, :, tokens] if seen.shape[2] > 1 else seen


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, seen: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the outputs, laid out as (rows, time, heads, h), and the logarithms to the base 2 of the sums of
    exponentials, (rows, heads, time, 1)."""
    y, sums = _empty_outputs(q)
    for block in _blocks(q, bounds, seen, causal):
        own = block.queries
        shares = _scores(q, k, block)
        most = shares.amax(-1, keepdim=True)
        total = shares.sub_(most).exp2_().sum(-1, keepdim=True)
        found = shares @ _heads(v, block.keys)
        torch.div(found.view(y[own].shape), total.view(sums[own].shape), out=y[own])
        sums[own] = most.add_(total.log2_()).view(sums[own].shape)
    return y, sums


def _differentiate(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor | None, seen: Tensor | None, causal: bool,
    y: Tensor, sums: Tensor, d_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k and v, contiguous."""
    d_q, d_k, d_v = _empty_gradients(q)
    d_k.zero_()
    d_v.zero_()
    # the sum over keys of share * d_share, which the gradient of a softmax subtracts
    means = (y * d_y).sum(-1, keepdim=True)
    for block in _blocks(q, bounds, seen, causal):
        q_part, d_y_part = _heads(q, block.queries), _heads(d_y, block.queries)
        shares = _scores(q, k, block).sub_(_heads(sums, block.queries)).exp2_()
        _heads(d_v, block.keys).baddbmm_(shares.transpose(1, 2), d_y_part)
        d_scores = d_y_part @ _heads(v, block.keys).transpose(1, 2)
        d_scores.sub_(_heads(means, block.queries)).mul_(shares)
        torch.bmm(d_scores, _heads(k, block.keys), out=_heads(d_q, block.queries))
        _heads(d_k, block.keys).baddbmm_(d_scores.transpose(1, 2), q_part)
    scale = 1 / math.sqrt(q.shape[-1])
    return d_q.mul_(scale), d_k.mul_(scale), d_v


def _scores(q: Tensor, k: Tensor, block: _Block) -> Tensor:
    """Return the exponents of 2 of which a block's shares are made, (rows * heads, queries, keys)."""
    q_part = _heads(q, block.queries) * (1 / (math.log(2) * math.sqrt(q.shape[-1])))
    scores = q_part @ _heads(k, block.keys).transpose(1, 2)
    if block.later:
        scores[:, :, -block.later :] += later_keys(QUERIES, q.dtype)[: block.later, : block.later]
    elif block.seen is not None:
        scores.view(*q[block.queries].shape[:3], -1).masked_fill_(~block.seen, -math.inf)
    return scores


def _heads(x: Tensor, place: Place) -> Tensor:
    """Return a part of x, (rows, heads, time, ...), as (rows * heads, tokens, ...): a view if it can be one."""
    return x[place].flatten(0, 1)


@functools.lru_cache(maxsize=4)
def later_keys(time: int, dtype: torch.dtype) -> Tensor:
    """Return -inf where a key comes later than a query, 0 elsewhere: (time, time)."""
    return torch.full((time, time), -math.inf, dtype=dtype).triu_(1)


def _empty_outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return memory for what `_attend` returns for such queries."""
    rows, heads, time, width = q.shape
    return q.new_empty(rows, time, heads, width).transpose(1, 2), q.new_empty(rows, heads, time, 1)


def _empty_gradients(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for what `_differentiate` returns for such queries."""
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _operation(function: Callable[..., Any], empty: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return `function` as one operation of compiled graphs. `empty` returns memory for its results, given the queries.

    Its name has that of this module, since files of exported networks have a copy of the module.
    """
    made = library.custom_op(f"{__name__.replace('.', '_')}::{function.__name__}", function, mutates_args=())
    made.register_fake(lambda q, *others: empty(q))
    return made


_attend_in_graph = _operation(_attend, _empty_outputs)
_differentiate_in_graph = _operation(_differentiate, _empty_gradients)
