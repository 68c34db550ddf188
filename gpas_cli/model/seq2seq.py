"""An encoder and a decoder from the blocks of `model.llama`: Vaswani et al. 2017 with any scheme and gate.

Rows are those of `objective: translation`: the tokens of the source, which `Visible.prefix` counts and the last one of
which is the separator, then those of the target. The encoder reads the source in both directions. The decoder begins
with the separator, and its layers have three sub-layers, each inside the same residual formula:

    self-attention to the tokens before, cross-attention to the encoder's normalised states, feed-forward network

The modules of cross-attention are named `cross_attn`, `cross_layernorm`, `cross_branch_norm` and `cross_out_norm`, and
`cross_gate` if sub-layers have gates of their own; the norm after the encoder is `model.encoder_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.attention import Attention, Positions, Visible
from gpas_cli.model.dropout import Dropout, dropped
from gpas_cli.model.llama import Block, Decoder, Llama, Residual, SubLayer, norm_of
from gpas_cli.model.packing import Packing
from gpas_cli.model.rope import rotate
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm

_CROSS = 2  # the third site of dropout in a layer


class Sinusoids(nn.Module):
    """sin(t / 10000^(2i/d)) in the first half of the features and cos in the second, added to the embedding (Vaswani et
    al. 2017, whose sines and cosines alternate: the same up to the order of the features)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.hidden = hidden
        self._tables: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}

    def forward(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        time = packing.time if packing else x.shape[1]
        key = (time, x.device, x.dtype)
        if key not in self._tables:
            i = torch.arange(0, self.hidden, 2, dtype=torch.float64)
            angles = torch.outer(torch.arange(time, dtype=torch.float64), 10_000 ** (-i / self.hidden))
            table = torch.cat((angles.sin(), angles.cos()), -1)[:, : self.hidden]
            self._tables = {key: table.to(x.device, x.dtype)}
        table = self._tables[key]
        return x + (table.index_select(0, packing.index % time) if packing else table)


class CrossAttention(Attention):
    """softmax(q k^T / sqrt(h)) v with queries from the decoder, keys and values from the states of the encoder."""

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the states (batch, time, hidden): (batch, heads, time, head_dim) each."""
        return self._heads(self._normed(self.k_norm, self.k_proj(memory)), None), self._heads(self.v_proj(memory), None)

    def read(self, x: Tensor, kept: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        """Return what the tokens x (batch, time, hidden) read; seen: which keys there are, (batch, 1, 1, keys)."""
        q = self._heads(self._normed(self.q_norm, self.q_proj(x)), None).to(kept[1].dtype)
        y = F.scaled_dot_product_attention(q, kept[0].to(kept[1].dtype), kept[1], attn_mask=seen)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Reading(Positions, kw_only=True):
    """Positions in a decoder that reads an encoder's states `memory`, (batch, time, hidden), where they are `seen`,
    bool, (batch, 1, 1, time)."""

    memory: Tensor
    seen: Tensor


class DecoderBlock(Block):
    """A layer of a decoder that reads an encoder."""

    def __init__(self, model: Model, layer: int):
        super().__init__(model, layer)
        wiring = model.wiring(layer)
        self.cross_attn = CrossAttention(model, layer)
        self.cross_layernorm = norm_of(model, wiring.in_norm)
        self.cross_branch_norm = norm_of(model, wiring.branch_norm)
        self.cross_out_norm = norm_of(model, wiring.out_norm)
        skip = self.factor_of(wiring.skip, "skip_factor", "cross", model.size.hidden)
        branch = self.factor_of(wiring.branch, "factor", "cross", model.size.hidden)
        norms = (self.cross_layernorm, self.cross_branch_norm, self.cross_out_norm)
        self._cross = Residual(*norms, skip, branch, self.gates(model, layer, "cross", model.gate_slots(layer)[0]))

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """x: (batch, time, hidden) -> same shape. `positions` is a `Reading`."""
        assert isinstance(positions, Reading)
        kept = self.cross_attn.keys_and_values(positions.memory)
        return self.applied(x, lambda h: self.self_attn(h, positions), kept, positions.seen, positions.dropout)

    def sublayers(self, positions: Positions) -> tuple[SubLayer, ...]:
        """Return the three sub-layers; applied one after the other they equal `forward`."""
        first, last = super().sublayers(positions)
        cross = SubLayer(self._cross, self.cross_attn, self.cross_attn.o_proj, lambda h: self._read(h, positions))
        return first, cross, last

    def _read(self, x: Tensor, positions: Positions) -> Tensor:
        assert isinstance(positions, Reading)
        return self.cross_attn.read(x, self.cross_attn.keys_and_values(positions.memory), positions.seen)

    def applied(
        self,
        x: Tensor,
        attend: Callable[[Tensor], Tensor],
        kept: tuple[Tensor, Tensor],
        seen: Tensor,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Apply the layer, with `attend` as its self-attention, to x (batch, time, hidden). kept: what its
        cross-attention takes from the encoder, where that is `seen`."""
        bottom = x if self.bottom else None
        x = self._attention.apply(x, lambda h: dropped(attend(h), dropout, Dropout.ATTENTION))
        x = self._cross.apply(x, lambda h: dropped(self.cross_attn.read(h, kept, seen), dropout, _CROSS))
        return self._feed_forward.apply(x, lambda h: dropped(self.mlp(h), dropout, Dropout.FEED_FORWARD), bottom)


class Stacks(Decoder):
    """Embedding, encoder, decoder and their final norms: token ids -> final states of the decoder.

    `layers` has the layers of both, the encoder's first.
    """

    def __init__(self, model: Model):
        super().__init__(model)
        self.encoder_layers = model.encoder_layers
        for place in range(self.encoder_layers, model.size.layers):
            self.layers[place] = DecoderBlock(model, place + 1)
        self.encoder_norm = norm_of(model, Norm())
        self.stack_ends = (self.encoder_norm,)
        if model.family.positions == "sinusoidal":
            self.embed_positions = Sinusoids(model.size.hidden)

    def forward(
        self,
        tokens: Tensor,
        packing: Packing | None = None,
        visible: Visible | None = None,
        active: ActiveLayers | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """tokens: (batch, time) int64 -> (batch, time, hidden), or (1, n) -> (1, n, hidden) with a packing.

        States of tokens before the separator mean nothing: they have no targets.
        """
        if visible is None or visible.prefix is None or active is not None:
            raise ValueError("a network with an encoder reads rows of a source and a target, with all layers")
        if packing is not None:  # both halves of a row are padded by themselves
            tokens = _spread(tokens, packing)
            dropout = dropout and replace(dropout, keys=_spread(dropout.keys, packing))
        prefix, (fewest, most), time = visible.prefix, visible.bounds, tokens.shape[1]
        memory, seen = self.encode(tokens[:, :most], prefix, dropout and replace(dropout, keys=dropout.keys[:, :most]))
        first = prefix - 1  # the separator
        steps = torch.arange(time - fewest + 1, device=tokens.device)
        places = (first[:, None] + steps).clamp(max=time - 1)
        own = dropout and replace(dropout, keys=dropout.keys.gather(1, places))
        x = self.decode(tokens.gather(1, places), memory, seen, own)
        back = (torch.arange(time, device=tokens.device) - first[:, None]).clamp(0, len(steps) - 1)
        back = back + len(steps) * torch.arange(len(back), device=tokens.device)[:, None]
        found = x.flatten(0, 1).index_select(0, back.flatten()).view(*back.shape, -1)
        return packing.join(found) if packing is not None else found

    def encode(self, tokens: Tensor, lengths: Tensor, dropout: Dropout | None = None) -> tuple[Tensor, Tensor]:
        """Return the encoder's states of the sources, (batch, time, hidden), and which of them there are, bool, (batch,
        1, 1, time). tokens: (batch, time), padded on the right; lengths: (batch,), each at least 1."""
        x = self._embedded(tokens, dropout)
        visible = Visible.of(lengths, tokens.shape[1], later=False)
        positions = self.positions(x, None, visible)
        for number, layer in enumerate(self.layers[: self.encoder_layers], 1):
            x = layer(x, replace(positions, dropout=dropout.in_layer(number)) if dropout else positions)
        assert visible.mask is not None
        return self.encoder_norm(x), visible.mask

    def decode(self, tokens: Tensor, memory: Tensor, seen: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Return the final states of the decoder for targets (batch, time) that begin with the separator, given what
        `encode` returns: (batch, time, hidden)."""
        x = self._embedded(tokens, dropout)
        positions = Reading(self.positions(x).tables, memory=memory, seen=seen)
        for number, layer in enumerate(self.layers[self.encoder_layers :], self.encoder_layers + 1):
            x = layer(x, replace(positions, dropout=dropout.in_layer(number)) if dropout else positions)
        return self.norm(x)  # type: ignore[no-any-return]

    def _embedded(self, tokens: Tensor, dropout: Dropout | None) -> Tensor:
        x = self.embed_tokens(tokens)
        if dropout and dropout.words:
            x = dropout.without_words(x)
        x = self.after_lookup(x, None).to(self.stream or x.dtype)
        return dropped(x, dropout and dropout.in_layer(Dropout.EMBEDDING), Dropout.EMBEDDING)


def _spread(numbers: Tensor, packing: Packing) -> Tensor:
    """Return numbers of a stream's tokens, (1, n), as rows (rows, time)."""
    return numbers[0].index_select(0, packing.token).view(packing.rows, packing.time)


class Translator(Llama):
    """The network of `family: encoder-decoder`: both stacks and the head."""

    stack = Stacks
    model: Stacks


class Writer:
    """Predicts the next tokens of targets that grow together: the logits of reading them again, up to rounding.

    Keys and values of earlier tokens and of the encoder's states are kept. capacity: the most tokens.
    """

    def __init__(self, network: Translator, memory: Tensor, seen: Tensor, capacity: int):
        """memory, seen: what `Stacks.encode` returns, a row for each target."""
        self.network = network
        self.capacity = capacity
        self._seen = seen
        self._cross = [layer.cross_attn.keys_and_values(memory) for layer in self._layers()]
        self._kept: list[tuple[Tensor, Tensor]] = []  # of each layer, (rows, heads, tokens, h)
        self._length = 0

    def _layers(self) -> Iterator[DecoderBlock]:
        decoder = self.network.model
        return (layer for layer in decoder.layers[decoder.encoder_layers :] if isinstance(layer, DecoderBlock))

    def next_logits(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Append `tokens` (rows,) to the targets and return the logits after them, (rows, vocab).

        parents: the rows that the targets continue, (rows,); None for the same ones.
        """
        decoder = self.network.model
        if parents is not None:
            self._kept = [(k.index_select(0, parents), v.index_select(0, parents)) for k, v in self._kept]
        place = torch.full_like(tokens, self._length)
        stream = Packing.at(place, self.capacity)
        x = decoder.entered(tokens[None], stream)
        tables = decoder.positions(x, stream).tables
        turns = (tables[0][self._length], tables[1][self._length]) if tables else None
        x = x.transpose(0, 1)
        kept: Sequence[tuple[Tensor, Tensor] | None] = self._kept or [None] * len(self._cross)
        self._kept = []
        for layer, cross, past in zip(self._layers(), self._cross, kept, strict=True):
            x = layer.applied(x, partial(self._attended, layer.self_attn, turns, past), cross, self._seen)
        self._length += 1
        return F.linear(self.network.head_transform(decoder.norm(x[:, -1])), self.network.head)

    def _attended(
        self, attention: Attention, turns: tuple[Tensor, Tensor] | None, past: tuple[Tensor, Tensor] | None, x: Tensor
    ) -> Tensor:
        q, k, v = attention.projected(x, None)
        if turns is not None:
            q, k = rotate(q, turns), rotate(k, turns)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        self._kept.append((k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return attention.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
