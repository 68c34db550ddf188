"""The decoder, assembled: LLaMA with the residual wiring of a cell. Parameter names are Hugging Face LLaMA's.

What LLaMA lacks is called: `attn_branch_norm`, `mlp_branch_norm` (Sandwich), `attn_out_norm`, `mlp_out_norm` (Post,
DeepNorm), `gate.alpha` (shared by a layer's two sub-layers) or `attn_gate.alpha` and `mlp_gate.alpha`,
`model.embed_positions.weight` (learned positions). A feed-forward network of two matrices has `up_proj` and
`down_proj`; a network with a tied head has no `lm_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.attention import Attention, Packing, Places
from gpas_cli.model.embed import LearnedPositions, embed_stages, lookup
from gpas_cli.model.gate import Gate
from gpas_cli.model.init import initialise
from gpas_cli.model.mlp import feed_forward
from gpas_cli.model.norm import norm_slot
from gpas_cli.model.rope import Rope
from gpas_cli.model.wiring import Residual, gates_in
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm

Read = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SubLayer:
    """One sub-layer of a layer, to be looked at or applied alone: its module, the linear map that this ends with, and
    the residual formula around it."""

    residual: Residual
    module: nn.Module
    output: nn.Linear
    f: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.residual(x, self.f)


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each inside the same residual formula."""

    def __init__(self, model: Model, layer: int):
        super().__init__()
        wiring = model.wiring(layer)
        self.bottom = wiring.bottom
        self.self_attn = Attention(model.size, model.family)
        self.mlp = feed_forward(model.size, model.family)
        self.input_layernorm = _norm(model, wiring.in_norm)
        self.attn_branch_norm = _norm(model, wiring.branch_norm)
        self.attn_out_norm = _norm(model, wiring.out_norm)
        self.post_attention_layernorm = _norm(model, wiring.in_norm)
        self.mlp_branch_norm = _norm(model, wiring.branch_norm)
        self.mlp_out_norm = _norm(model, wiring.out_norm)
        gates, slot = self._add_gates(model, layer), model.gate_slot(layer)
        self._attention = Residual(
            self.input_layernorm, self.attn_branch_norm, self.attn_out_norm, wiring.skip, gates_in(slot, gates[0])
        )
        self._feed_forward = Residual(
            self.post_attention_layernorm,
            self.mlp_branch_norm,
            self.mlp_out_norm,
            wiring.skip,
            gates_in(slot, gates[1]),
        )

    def _add_gates(self, model: Model, layer: int) -> tuple[Gate | None, Gate | None]:
        if model.gate is None:
            return None, None
        start = model.gate.starts(model.size.layers)[layer - 1]
        if model.gate.share == "layer":
            self.gate = Gate(model.gate, start)
            return self.gate, self.gate
        self.attn_gate, self.mlp_gate = Gate(model.gate, start), Gate(model.gate, start)
        return self.attn_gate, self.mlp_gate

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """x: (batch, time, hidden), or (1, n, hidden) with a packing -> same shape."""
        bottom = x if self.bottom else None
        x = self._attention(x, lambda h: self.self_attn(h, places))
        return self._feed_forward(x, self.mlp, bottom)

    def sublayers(self, places: Places) -> tuple[SubLayer, SubLayer]:
        """Attention and the feed-forward network, each as a function of the stream; one after the other: `forward`."""
        attention, mlp = self.self_attn, self.mlp
        return (
            SubLayer(self._attention, attention, attention.o_proj, lambda h: attention(h, places)),
            SubLayer(self._feed_forward, mlp, mlp.down_proj, mlp),
        )


def _norm(model: Model, norm: Norm | None) -> nn.Module:
    return norm_slot(norm, model.size.hidden, model.size.eps, model.family.norm)


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids to the final hidden states."""

    def __init__(self, model: Model):
        super().__init__()
        size, family = model.size, model.family
        rotary = family.positions == "rotary"
        self.embed_tokens = lookup(size, model.init.zero_last_row)
        self.embed_stages = embed_stages(model.embed, size)
        self.embed_positions = None if rotary else LearnedPositions(family.context, size.hidden)
        self.layers = nn.ModuleList(Block(model, layer) for layer in range(1, size.layers + 1))
        # Every architecture ends with it, Post-LN and DeepNorm too (two norms in a row there), as the reference.
        self.norm = _norm(model, Norm())
        self.rope = Rope(size.head_dim, size.rope_theta) if rotary else None

    def forward(self, tokens: Tensor, packing: Packing | None = None) -> Tensor:
        """tokens: (batch, time) int64 -> (batch, time, hidden). With a packing (1, n) -> (1, n, hidden)."""
        x = self.embed_stages(self.embed_tokens(tokens))
        x = self.embed_positions(x, packing) if self.embed_positions else x
        places = self.places(x, packing)
        for layer in self.layers:
            x = layer(x, places)
        return self.norm(x)  # type: ignore[no-any-return]

    def blocks(self) -> list[Block]:
        """The layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def places(self, x: Tensor, packing: Packing | None = None) -> Places:
        """Where the tokens of the stream x (batch, time, hidden) stand."""
        time = packing.time if packing else x.shape[1]
        return Places(self.rope(time, x.device, x.dtype) if self.rope else None, packing)


class Llama(nn.Module):
    """The language model: decoder and head. `lm_head` is None where the head is the embedding table."""

    def __init__(self, model: Model):
        super().__init__()
        self.spec = model
        self.model = Decoder(model)
        tied = model.family.tied
        self.lm_head = None if tied else nn.Linear(model.size.hidden, model.size.vocab, bias=False)

    def forward(self, tokens: Tensor, packing: Packing | None = None, read: Read = F.linear) -> Tensor:
        """tokens: (batch, time) int64, or (1, n) with a packing -> logits (batch, time, vocab), or what `read` makes of
        the final hidden states and the head's matrix (vocab, hidden) in their place."""
        head = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return read(self.model(tokens, packing), head)

    def gates(self) -> Iterator[Gate]:
        """Every gate, first layer first."""
        return (module for module in self.modules() if isinstance(module, Gate))


def build(
    model: Model, *, seed: int = 42, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Llama:
    """The initialised network of `model` (from `spec.cell.parse_model`) in `dtype` on `device`.

    On the "meta" device nothing is allocated or initialised: shapes and parameter counts only.
    """
    if torch.device(device).type == "meta":
        with torch.device("meta"):
            return Llama(model)
    network = Llama(model)
    initialise(network, model, seed)
    return network.to(device=device, dtype=dtype)
