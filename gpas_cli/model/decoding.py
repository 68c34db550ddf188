"""Reading with a cache: the keys and values of earlier tokens are kept, so that a new token is computed alone.

Every token of a row has a place, 0, 1, ..., at which its keys and values are kept. Prompts of different lengths are
padded on the right; the next token of a row takes the place after its prompt, over the padding. A token attends to the
places up to its own.

Four prompts of 200 tokens and 32 tokens after each: 1.0 s on a core, where reading whole rows again takes 7 to 12 s (8
layers of width 256).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.model.attention import Attention, FirstValues, Positions
from gpas_cli.model.llama import Block, Llama, Read
from gpas_cli.model.packing import Packing
from gpas_cli.model.rope import rotate


class CachedReader:
    """Predicts the next token of rows that grow: the same logits as reading the whole rows again, up to rounding.

    `capacity`: the most tokens of a row. With b rows and L layers of width d the cache has 2 L b capacity d numbers.
    `prefix`: how many first tokens of each prompt see each other in both directions; none by default.
    """

    def __init__(self, network: Llama, rows: int, capacity: int, prefix: Sequence[int] = ()):
        self.network = network
        self.capacity = capacity
        self._lengths = [0] * rows
        self._prefix = prefix or [0] * rows
        self._kept: dict[Attention, tuple[Tensor, Tensor]] = {}  # keys and values, (rows, heads, capacity, h)

    def next_logits(self, tokens: Sequence[Sequence[int]], read: Read = F.linear) -> Tensor:
        """Append `tokens` to the rows, and return the logits after each row's last token, (rows, vocab), or what `read`
        returns for the states (rows, hidden) and the head's matrix.

        The first call has the prompts, of any lengths, and each later one a single token for each row.
        """
        decoder = self.network.model
        device = self.network.head.device
        counts = torch.tensor([len(row) for row in tokens], device=device)
        width = int(counts.max())
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=device)
        steps = torch.arange(width, device=device)
        places = torch.tensor(self._lengths, device=device)[:, None] + steps
        longest = max(self._lengths) + width
        # The tokens are a stream of which `index` gives the places: embedding and rotation need nothing else of it.
        stream = Packing.at(places.flatten(), self.capacity)
        x = decoder.entered(padded.view(1, -1), stream)
        positions = decoder.positions(x, stream)
        turns = stream.turns(positions.tables) if positions.tables else None
        prefix = torch.tensor(self._prefix, device=device)[:, None, None, None]
        keys = torch.arange(longest, device=device)
        seen = (keys <= places[:, None, :, None]) | (keys < prefix)
        for layer in decoder.layers:
            assert isinstance(layer, Block)
            attention, mlp = layer.sublayers(Positions())
            bottom = x if layer.bottom else None
            attend = partial(
                self._attended, layer.self_attn, turns=turns, places=places, seen=seen, first=positions.first
            )
            x = mlp.residual.apply(attention.residual.apply(x, attend), mlp.f, bottom)
        self._lengths = [length + len(row) for length, row in zip(self._lengths, tokens, strict=True)]
        last = x.view(*padded.shape, -1)[torch.arange(len(tokens), device=x.device), counts - 1]
        return read(self.network.head_transform(decoder.norm(last)), self.network.head)

    def _attended(
        self,
        attention: Attention,
        x: Tensor,
        turns: tuple[Tensor, Tensor] | None,
        places: Tensor,
        seen: Tensor,
        first: FirstValues | None,
    ) -> Tensor:
        """Return what an attention returns for x, (1, rows * n, hidden); places: (rows, n)."""
        q, k, v = attention.projected(x, None, first)
        if turns is not None:
            q, k = rotate(q, turns), rotate(k, turns)
        # (1, heads, rows * n, h) -> (rows, heads, n, h), in the dtype in which attention is computed
        q, k, v = (one[0].view(len(one[0]), *places.shape, -1).transpose(0, 1).to(v.dtype) for one in (q, k, v))
        keys, values = self._extended(attention, k, v, places)
        longest = seen.shape[-1]
        y = F.scaled_dot_product_attention(q, keys[:, :, :longest], values[:, :, :longest], attn_mask=seen)
        return attention.o_proj(y.transpose(1, 2).reshape(*x.shape[:2], -1))  # type: ignore[no-any-return]

    def _extended(self, attention: Attention, k: Tensor, v: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values of `attention`, after k and v, (rows, heads, n, h), are put at their places."""
        if attention not in self._kept:
            shape = (*k.shape[:2], self.capacity, k.shape[3])
            self._kept[attention] = k.new_zeros(shape), v.new_zeros(shape)
        where = places[:, None, :, None].expand_as(k)
        for kept, new in zip(self._kept[attention], (k, v), strict=True):
            kept.scatter_(2, where, new)
        return self._kept[attention]
