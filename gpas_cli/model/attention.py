"""Multi-head self-attention, causal unless the batch has a prefix, with rotary positions unless they are learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.dropout import Dropout
from gpas_cli.model.layers import learned_or_fixed, norm_slot, times
from gpas_cli.model.packing import Packing
from gpas_cli.model.ragged import ragged_attention, suits_ragged
from gpas_cli.model.rope import rotate
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm
from gpas_cli.structure import Frozen


class Visible(Frozen):
    """The tokens that each token attends to, where attention is not causal.

    Every query sees at least one key.
    """

    mask: Tensor | None = None
    """Whether the query (third axis) sees the key (last axis): bool, broadcasts to (rows, heads, time, time). None:
    every token sees every token of its row."""
    prefix: Tensor | None = None
    """How many first tokens all tokens of the row see, which are what an encoder reads: int64, (rows,)."""
    bounds: tuple[int, int] = (0, 0)
    """The least and the largest number in `prefix`."""

    @classmethod
    def of(cls, prefix: Tensor, time: int, *, later: bool) -> Visible:
        """Return what is seen where all tokens of a row see its first `prefix` tokens, int64 (rows,).

        `later`: whether there are tokens after the prefix that see each other causally; otherwise only padding follows.
        """
        place = torch.arange(time, device=prefix.device)
        mask = (place < prefix[:, None])[:, None, None, :]
        return cls(mask | (place <= place[:, None]) if later else mask)


@dataclass
class FirstValues:
    """The values W_v x of layer 1, in the shape of x, for the later layers of the same forward pass."""

    values: Tensor | None = None


class Positions(Frozen):
    """What a layer must know about the tokens of its stream."""

    tables: tuple[Tensor, Tensor] | None = None  # cos and sin of `Rope`; None without rotary positions
    packing: Packing | None = None  # None where the stream consists of whole rows (batch, time, hidden)
    visible: Visible | None = None  # None where attention is causal
    dropout: Dropout | None = None  # of this layer
    first: FirstValues | None = None  # where layer 1 leaves its values; None where no layer reads them


class Attention(nn.Module):
    """softmax(q k^T / sqrt(h) + mask) v. Causal attention has no mask: padding is on the right, where no token attends
    to it.

    With QK-norm, q and k are N(W_q x) and N(W_k x), where N is over a head or over all of them; with QKV-norm v is
    N(W_v x), too (Zhuo et al. 2025). `query_factor`, of the
    parametrisation, multiplies q. With a value residual, v is value * W_v x + first_value * v1, with v1 the W_v x of
    layer 1 (Zhou et al. 2025).
    """

    def __init__(self, model: Model, layer: int):
        super().__init__()
        size, family, wiring = model.size, model.family, model.wiring(layer)
        self.is_first = layer == 1
        self.value = learned_or_fixed(wiring.value, size.kv_hidden)
        self.first_value = learned_or_fixed(wiring.first_value, size.kv_hidden)
        self.query_factor = model.query_factor
        self.heads = size.heads
        self.head_dim = size.head_width
        bias = family.bias or family.qkv_bias
        self.q_proj = nn.Linear(size.hidden, size.q_hidden, bias=bias)
        self.k_proj = nn.Linear(size.hidden, size.kv_hidden, bias=bias)
        self.v_proj = nn.Linear(size.hidden, size.kv_hidden, bias=bias)
        self.o_proj = nn.Linear(size.q_hidden, size.hidden, bias=family.bias)
        over = wiring.qkv_norm if wiring.qkv_norm != "none" else family.qk_norm
        normed = Norm() if over != "none" else None
        own = size.head_width if over == "head" else size.kv_hidden
        width = size.head_width if over == "head" else size.q_hidden
        self.q_norm = norm_slot(normed, width, size.eps, family.norm)
        self.k_norm = norm_slot(normed, own, size.eps, family.norm)
        self.v_norm = norm_slot(normed if wiring.qkv_norm != "none" else None, own, size.eps, family.norm)
        self.norm_by_head = over == "head"

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """x: (batch, time, hidden), or (1, n, hidden) with a packing -> same shape."""
        return self.o_proj(self.averages(x, positions))  # type: ignore[no-any-return]

    def averages(self, x: Tensor, positions: Positions, values: Tensor | None = None) -> Tensor:
        """Return each head's averages of the values that a token attends to, side by side: (batch, time, heads h).

        `values`: what is averaged, in the shape of W_v x, instead of it.
        """
        packing = positions.packing
        # Where there is a kernel for rows of different lengths, it takes the stream as it is.
        bounds = packing.bounds if packing and positions.visible is None else None
        if bounds is not None and not suits_ragged(x, self.head_dim):
            bounds = None
        q, k, v = self.projected(x, packing if bounds is None else None, positions.first, values)
        if positions.tables is not None:
            tables = positions.tables if packing is None or bounds is None else packing.turns(positions.tables)
            q = rotate(q, tables)
            k = rotate(k, tables)
        y = _attended(q, k, v, positions, bounds).transpose(1, 2).flatten(2)
        return y if packing is None or bounds is not None else packing.join(y)

    def first_token_share(self, x: Tensor, positions: Positions) -> Tensor:
        """Return each token's share of attention on the first token of its row, the mean over heads, in float64; NaN of
        first tokens. x: as in `forward` -> (batch, time).

        Each head averages, in place of its values, a one at the first token of a row and zeros elsewhere, by the same
        kernel: no attention matrix is computed.
        """
        packing = positions.packing
        place = packing.index % packing.time if packing else torch.arange(x.shape[1], device=x.device)
        first = (place == 0).expand(x.shape[:2])
        averages = self.averages(x, positions, first[..., None].expand(*x.shape[:2], self.v_proj.out_features))
        return averages.double().mean(-1).masked_fill(first, torch.nan)

    def projected(
        self, x: Tensor, packing: Packing | None, first: FirstValues | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, normalised but not rotated, and values: (batch, heads, time, head_dim) each. Heads
        of queries that share keys and values get a copy each."""
        q = self._normed(self.q_norm, self.q_proj(x))
        if self.query_factor != 1:
            q = q * self.query_factor
        k = self._normed(self.k_norm, self.k_proj(x))
        v = self.v_proj(x)
        v = self._normed(self.v_norm, self._mixed(v, first)) if values is None else values.to(v.dtype)
        return self._heads(q, packing), self._heads(k, packing), self._heads(v, packing)

    def _mixed(self, v: Tensor, first: FirstValues | None) -> Tensor:
        """Return what attention averages for its own values v, which layer 1 leaves for the others."""
        if first is not None and self.is_first:
            first.values = v
        if self.first_value == 0:
            return v
        if first is None or first.values is None:
            raise ValueError("attention reads the values of layer 1, which has not been applied")
        return (times(self.value, v) + times(self.first_value, first.values)).to(v.dtype)

    def _normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        if not self.norm_by_head:
            return norm(x)  # type: ignore[no-any-return]
        return norm(x.reshape(*x.shape[:-1], -1, self.head_dim)).flatten(-2)  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, packing: Packing | None) -> Tensor:
        x = packing.spread(x) if packing else x
        heads = x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
        return heads if heads.shape[1] == self.heads else heads.repeat_interleave(self.heads // heads.shape[1], 1)


def _attended(q: Tensor, k: Tensor, v: Tensor, positions: Positions, bounds: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(h) + mask) v: (batch, heads, time, h).

    `bounds`: where rows begin and end in a stream, which is then the only row of the batch.
    """
    seen = positions.visible
    mask = seen.mask if seen else None
    if bounds is not None and positions.packing is not None:
        q, k, v = (heads[0].transpose(0, 1).to(v.dtype) for heads in (q, k, v))
        return ragged_attention(q, k, v, bounds, positions.packing.time).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=seen is None)
