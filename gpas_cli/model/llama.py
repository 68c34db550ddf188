"""The decoder, assembled: LLaMA with the residual wiring of a cell. Parameter names are Hugging Face LLaMA's.

What LLaMA lacks is called: `attn_branch_norm`, `mlp_branch_norm` (Sandwich), `attn_out_norm`, `mlp_out_norm` (Post,
DeepNorm), `gate.alpha` (shared by a layer's two sub-layers) or `attn_gate.alpha` and `mlp_gate.alpha`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpas_cli.model.attention import Attention
from gpas_cli.model.embed import embed_stages, lookup
from gpas_cli.model.gate import Gate
from gpas_cli.model.init import initialise
from gpas_cli.model.mlp import MLP
from gpas_cli.model.norm import RMSNorm, norm_slot
from gpas_cli.model.rope import Rope
from gpas_cli.model.wiring import Residual, gates_in
from gpas_cli.spec.model import Model


@dataclass(frozen=True)
class SubLayer:
    """One sub-layer of a layer, to be looked at or applied alone: its module and the residual formula around it."""

    residual: Residual
    module: nn.Module
    f: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.residual(x, self.f)


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each inside the same residual formula."""

    def __init__(self, model: Model, layer: int):
        super().__init__()
        size, wiring = model.size, model.wiring(layer)
        self.self_attn = Attention(size)
        self.mlp = MLP(size)
        self.input_layernorm = norm_slot(wiring.in_norm, size.hidden, size.eps)
        self.attn_branch_norm = norm_slot(wiring.branch_norm, size.hidden, size.eps)
        self.attn_out_norm = norm_slot(wiring.out_norm, size.hidden, size.eps)
        self.post_attention_layernorm = norm_slot(wiring.in_norm, size.hidden, size.eps)
        self.mlp_branch_norm = norm_slot(wiring.branch_norm, size.hidden, size.eps)
        self.mlp_out_norm = norm_slot(wiring.out_norm, size.hidden, size.eps)
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

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        x = self._attention(x, lambda h: self.self_attn(h, tables))
        return self._feed_forward(x, self.mlp)

    def sublayers(self, tables: tuple[Tensor, Tensor]) -> tuple[SubLayer, SubLayer]:
        """Attention and the feed-forward network, each as a function of the stream; one after the other: `forward`."""
        attention = SubLayer(self._attention, self.self_attn, lambda h: self.self_attn(h, tables))
        return attention, SubLayer(self._feed_forward, self.mlp, self.mlp)


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids to the final hidden states."""

    def __init__(self, model: Model):
        super().__init__()
        size = model.size
        self.embed_tokens = lookup(size, model.init.zero_last_row)
        self.embed_stages = embed_stages(model.embed, size)
        self.layers = nn.ModuleList(Block(model, layer) for layer in range(1, size.layers + 1))
        # Every architecture ends with it, Post-LN and DeepNorm too (two norms in a row there), as the reference.
        self.norm = RMSNorm(size.hidden, size.eps)
        self.rope = Rope(size.head_dim, size.rope_theta)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, time) int64 -> (batch, time, hidden)."""
        x = self.embed_stages(self.embed_tokens(tokens))
        tables = self.rope(tokens.shape[1], x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, tables)
        return self.norm(x)  # type: ignore[no-any-return]


class Llama(nn.Module):
    """The language model: decoder and untied head."""

    def __init__(self, model: Model):
        super().__init__()
        self.spec = model
        self.model = Decoder(model)
        self.lm_head = nn.Linear(model.size.hidden, model.size.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, time) int64 -> logits (batch, time, vocab)."""
        return self.lm_head(self.model(tokens))  # type: ignore[no-any-return]

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
