"""The decoder: LLaMA with the residual wiring of a cell. Parameter names are those of Hugging Face LLaMA.

Parameters that LLaMA does not have are named `attn_branch_norm` and `mlp_branch_norm` (Sandwich), `attn_out_norm` and
`mlp_out_norm` (Post, DeepNorm), `attn_factor`, `mlp_factor`, `attn_skip_factor` and `mlp_skip_factor`, or `factor` for
both sub-layers (learned factors), `self_attn.value` and `self_attn.first_value` (value residual), `gate.alpha` (shared
by a layer's two sub-layers) or `attn_gate.alpha` and `mlp_gate.alpha`, `model.embed_positions.weight` (learned
positions), `model.embed_types.weight`, `model.embed_norm` and `head_transform` (BERT). A feed-forward network of two
matrices has `up_proj` and `down_proj`; a network with a tied head has no `lm_head`.

In this file: what precedes the first layer (the table's lookup, the stages after it, token types and learned
positions), the residual formula, the layer, the decoder, and the language model.
"""

from __future__ import annotations

import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.attention import Attention, FirstValues, Positions, Visible
from gpas_cli.model.dropout import Dropout, dropped
from gpas_cli.model.init import initialise
from gpas_cli.model.layers import (
    FFN_ACTIVATIONS,
    GpasGate,
    LayerNorm,
    LearnedFactor,
    RMSNorm,
    feed_forward,
    norm_slot,
    times,
)
from gpas_cli.model.packing import Packing
from gpas_cli.model.rope import Rope
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import EMBED_STAGES, Model, Size
from gpas_cli.spec.norm import GATE_SLOTS, Factor, Norm
from gpas_cli.structure import Frozen


class Scale(nn.Module):
    """factor * x. With factor sqrt(d), "Scaled Embed" of Spike No More."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Detach(nn.Module):
    """gamma x + (1 - gamma) sg(x): the same value, gamma times the gradient ("Embed Detach", Zeng et al. 2023)."""

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * x + (1 - self.gamma) * x.detach()


_STAGES: dict[str, Callable[[Model], nn.Module]] = {
    "scale": lambda model: Scale(model.embed.factor(model.base_hidden)),
    "layernorm": lambda model: LayerNorm(model.size.hidden),
    "rmsnorm": lambda model: RMSNorm(model.size.hidden, model.size.eps),
    "detach": lambda model: Detach(model.embed.detach_gamma),
}
assert _STAGES.keys() == set(EMBED_STAGES)


def embed_stages(model: Model) -> nn.Sequential:
    """Return the stages after the lookup, in order, each under its name in the specification."""
    return nn.Sequential(OrderedDict((name, _STAGES[name](model)) for name in model.embed.stages))


def lookup(size: Size, zero_last_row: bool) -> nn.Embedding:
    """Return the uninitialised table E, shape (vocab, hidden). With `zero_last_row` the last row gets no gradient."""
    padding = size.vocab - 1 if zero_last_row else None
    weight = torch.empty(size.vocab, size.hidden)
    return nn.Embedding(size.vocab, size.hidden, padding_idx=padding, _weight=weight)


class TokenTypes(nn.Module):
    """A vector for each of `types` token types, added to the embedding; weight (types, d). All tokens have the first:
    text is one segment."""

    def __init__(self, types: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return x + self.weight[0]


class LearnedPositions(nn.Module):
    """One vector for each of `context` positions, added to the embedding (Radford et al. 2018); weight (context, d)."""

    def __init__(self, context: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, hidden))

    def forward(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """x: (batch, time, hidden) -> same shape. Raises ValueError if `time` exceeds the number of positions."""
        context = len(self.weight)
        time = packing.time if packing else x.shape[1]
        if time > context:
            raise ValueError(f"{time} tokens in a row, but the network has {context} learned positions")
        # The gradient of a lookup would be a sort on GPUs with deterministic algorithms.
        rows = self.weight[:time]
        return x + (packing.join(rows.expand(packing.rows, -1, -1)) if packing else rows)


class Residual(Frozen):
    """The wiring of one sub-layer. Every scheme and every position of the gate is a choice of its slots.

        x ──► ENTRY ──┬─► in_norm ─► IN ─► f ─► branch_norm ─► BRANCH ──┐
                      │                                                 ▼
                      └─► SKIP ─► · skip ──────────────────── · branch (+) ─► SUM ─► out_norm ─► OUT ─► y

        y = OUT( out_norm( SUM( skip * SKIP(x) + branch * BRANCH( branch_norm( f( IN( in_norm(x) ) ) ) ) ) ) )

    With a bottom-to-top connection (B2T) the layer's input is added to the sum (+) of the layer's last sub-layer.
    Absent slots are `nn.Identity`; the gate, if any, occupies exactly one of ENTRY IN BRANCH SKIP SUM OUT. The block
    owns the modules, so that parameters keep LLaMA's names.
    """

    in_norm: nn.Module
    branch_norm: nn.Module
    out_norm: nn.Module
    skip: float | LearnedFactor
    branch: float | LearnedFactor
    gates: dict[str, nn.Module]

    def apply(self, x: Tensor, f: Callable[[Tensor], Tensor], bottom: Tensor | None = None) -> Tensor:
        """Apply the sub-layer with `f` as its module; x, `bottom` and the result have shape (batch, time, hidden).

        The result has the dtype of x, also where a factor in float32 has widened it."""
        gate, dtype = self.gates, x.dtype
        x = gate["entry"](x)
        # On the skip path the input is saved by whatever the branch begins with; the sum keeps nothing of a branch.
        branch = _saving_input(gate["branch"], self.branch_norm(f(gate["in"](self.in_norm(x)))))
        kept = _saving_input(gate["skip"], x)
        branch = times(self.branch, branch)
        if isinstance(self.skip, LearnedFactor):
            total = branch + self.skip(kept)
        else:  # torch.add applies a constant within the addition; a separate 1 * x would cost a pass over memory
            total = torch.add(branch, kept, alpha=self.skip)
        if bottom is not None:
            total = total + bottom
        y: Tensor = gate["out"](self.out_norm(gate["sum"](total)))
        return y if y.dtype == dtype else y.to(dtype)


def _saving_input(gate: nn.Module, x: Tensor) -> Tensor:
    return gate(x, saves_input=True) if isinstance(gate, GpasGate) else x


Read = Callable[[Tensor, Tensor], Tensor]


class SubLayer(Frozen):
    """One sub-layer of a layer, to inspect or apply by itself: its module, the linear map at the module's end, and the
    residual formula around it."""

    residual: Residual
    module: nn.Module
    output: nn.Linear
    f: Callable[[Tensor], Tensor]

    def apply(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.residual.apply(x, self.f)


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each inside the same residual formula."""

    def __init__(self, model: Model, layer: int):
        super().__init__()
        wiring = model.wiring(layer)
        first, second = wiring.parts
        self.bottom = wiring.bottom
        self.self_attn = Attention(model, layer)
        self.mlp = feed_forward(model.size, model.family)
        self.input_layernorm = norm_of(model, first.in_norm)
        self.attn_branch_norm = norm_of(model, first.branch_norm)
        self.attn_out_norm = norm_of(model, first.out_norm)
        self.post_attention_layernorm = norm_of(model, second.in_norm)
        self.mlp_branch_norm = norm_of(model, second.branch_norm)
        self.mlp_out_norm = norm_of(model, second.out_norm)
        named = (("attn", first), ("mlp", second))
        skips = [self.factor_of(own.skip, "skip_factor", name, model.size.hidden) for name, own in named]
        branches = [self.factor_of(own.branch, "factor", name, model.size.hidden) for name, own in named]
        slots = model.gate_slots(layer)
        gates = self.gates(model, layer, "attn", slots[0]), self.gates(model, layer, "mlp", slots[1])
        around = (self.input_layernorm, self.attn_branch_norm, self.attn_out_norm)
        self._attention = Residual(*around, skips[0], branches[0], gates[0])
        around = (self.post_attention_layernorm, self.mlp_branch_norm, self.mlp_out_norm)
        self._feed_forward = Residual(*around, skips[1], branches[1], gates[1])

    def factor_of(self, spec: float | Factor, name: str, sublayer: str, hidden: int) -> float | LearnedFactor:
        """Return the factor of a sub-layer. One that is learned is added as a module of the layer."""
        if not isinstance(spec, Factor):
            return spec
        own = name if spec.shared else f"{sublayer}_{name}"
        if not hasattr(self, own):
            self.add_module(own, LearnedFactor(spec, hidden))
        return getattr(self, own)  # type: ignore[no-any-return]

    def gates(self, model: Model, layer: int, sublayer: str, slot: str | None) -> dict[str, nn.Module]:
        """Return a module for every gate slot of a sub-layer: the gate in `slot`, the identity in all others. The gate
        is added as a module of the layer, a single one if the sub-layers share it."""
        slots: dict[str, nn.Module] = {name: nn.Identity() for name in GATE_SLOTS}
        if model.gate and slot:
            own = "gate" if model.gate.share == "layer" else f"{sublayer}_gate"
            if not hasattr(self, own):
                self.add_module(own, GpasGate(model.gate, model.gate.starts(model.size.layers)[layer - 1]))
            slots[slot] = getattr(self, own)
        return slots

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """x: (batch, time, hidden), or (1, n, hidden) with a packing -> same shape."""
        bottom, dropout = x if self.bottom else None, positions.dropout
        x = self._attention.apply(x, lambda h: dropped(self.self_attn(h, positions), dropout, Dropout.ATTENTION))
        return self._feed_forward.apply(x, lambda h: dropped(self.mlp(h), dropout, Dropout.FEED_FORWARD), bottom)

    @torch.no_grad()
    def first_token_share(self, x: Tensor, positions: Positions) -> Tensor:
        """Return `Attention.first_token_share` for the stream x that enters the layer."""
        found: list[Tensor] = []

        def attend(h: Tensor) -> Tensor:
            found.append(self.self_attn.first_token_share(h, positions))
            return h

        self._attention.apply(x, attend)
        return found[0]

    def sublayers(self, positions: Positions) -> tuple[SubLayer, ...]:
        """Return attention and the feed-forward network; applied one after the other they equal `forward`."""
        attention = self.self_attn
        mlp = self.mlp
        return (
            SubLayer(self._attention, attention, attention.o_proj, lambda h: attention(h, positions)),
            SubLayer(self._feed_forward, mlp, mlp.down_proj, mlp),
        )


def norm_of(model: Model, norm: Norm | None) -> nn.Module:
    """Return the norm of a slot in the network `model`, the identity for None."""
    return norm_slot(norm, model.size.hidden, model.size.eps, model.family.norm)


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids -> final hidden states. `stack_ends`: norms between layers."""

    stack_ends: tuple[nn.Module, ...] = ()

    def __init__(self, model: Model):
        super().__init__()
        size = model.size
        family = model.family
        learned = family.positions == "learned"
        self.embed_tokens = lookup(size, model.init.zero_last_row)
        self.embed_stages = embed_stages(model)
        self.embed_positions: nn.Module | None = LearnedPositions(family.context, size.hidden) if learned else None
        self.embed_types = TokenTypes(family.token_types, size.hidden) if family.token_types else nn.Identity()
        self.embed_norm = norm_of(model, Norm() if family.input_norm else None)
        self.layers = nn.ModuleList(Block(model, layer) for layer in range(1, size.layers + 1))
        # As in the reference, every scheme ends with this norm, also Post-LN and DeepNorm (two norms in a row).
        self.norm = norm_of(model, Norm() if family.head_transform else model.head_norm)
        self.rope = Rope(size) if family.positions == "rotary" else None
        self.stream: torch.dtype | None = None
        self.shares_values = model.shares_values

    def forward(
        self,
        tokens: Tensor,
        packing: Packing | None = None,
        visible: Visible | None = None,
        active: ActiveLayers | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """tokens: (batch, time) int64 -> (batch, time, hidden). With a packing (1, n) -> (1, n, hidden).

        `visible`: what each token attends to, None for itself and the tokens before it. `active`: the layers to apply,
        each with its factor; None applies all of them with the factor 1. `dropout`: None but in training.
        """
        x = self.entered(tokens, packing)
        x = dropped(x, dropout and dropout.in_layer(Dropout.EMBEDDING), Dropout.EMBEDDING)
        positions = self.positions(x, packing, visible)
        for number, layer, factor in self.applied(active):
            within = replace(positions, dropout=dropout.in_layer(number)) if dropout else positions
            x = _scaled(x, layer(x, within), factor)
        return self.norm(x)  # type: ignore[no-any-return]

    def entered(self, tokens: Tensor, packing: Packing | None = None) -> Tensor:
        """Return the residual stream before the first layer; shapes as in `forward`."""
        x = self.after_lookup(self.embed_tokens(tokens), packing)
        return x if self.stream is None else x.to(self.stream)

    @property
    def changes_lookup(self) -> bool:
        """Whether `after_lookup` does more than return its input."""
        modules = (*self.embed_stages, self.embed_positions or nn.Identity(), self.embed_types, self.embed_norm)
        return not all(isinstance(module, nn.Identity) for module in modules)

    def after_lookup(self, x: Tensor, packing: Packing | None) -> Tensor:
        """Return the input of the first layer for the embeddings x of the tokens; both (batch, time, hidden)."""
        x = self.embed_stages(x)
        x = self.embed_positions(x, packing) if self.embed_positions else x
        return self.embed_norm(self.embed_types(x))  # type: ignore[no-any-return]

    def applied(self, active: ActiveLayers | None = None) -> list[tuple[int, nn.Module, float]]:
        """Return the layers that a forward pass applies, first to last, with their numbers (from 1) and factors."""
        if active is None:
            return [(n, layer, 1.0) for n, layer in enumerate(self.layers, 1)]
        return [(n, self.layers[n - 1], factor) for n, factor in zip(active.layers, active.factors, strict=True)]

    def blocks(self) -> list[Block]:
        """Return the layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def positions(self, x: Tensor, packing: Packing | None = None, visible: Visible | None = None) -> Positions:
        """Return the positions of the tokens of the stream x (batch, time, hidden)."""
        time = packing.time if packing else x.shape[1]
        tables = self.rope(time, x.device, x.dtype) if self.rope else None
        return Positions(tables, packing, visible, first=FirstValues() if self.shares_values else None)


def _scaled(x: Tensor, y: Tensor, factor: float) -> Tensor:
    """Return x + factor (y - x): the output of a layer with input x whose block has the output y.

    Outside the block's compiled graph, which is then one for all factors.
    """
    if factor == 1:
        return y
    wide = torch.promote_types(x.dtype, y.dtype)
    return torch.lerp(x.to(wide), y.to(wide), factor)


class _HeadTransform(nn.Module):
    """N(gelu(W x + b)): what BERT's head does to the final states before it compares them with the embedding table."""

    def __init__(self, model: Model):
        super().__init__()
        self.dense_proj = nn.Linear(model.size.hidden, model.size.hidden, bias=model.family.bias)
        self.norm = norm_of(model, model.head_norm)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.norm(FFN_ACTIVATIONS["gelu"](self.dense_proj(x)))  # type: ignore[no-any-return]


class LanguageModel(Protocol):
    """What computes losses and likelihoods: a `Llama`, or another module with its call signature."""

    training: bool

    def forward(
        self,
        tokens: Tensor,
        packing: Packing | None = ...,
        read: Read = ...,
        visible: Visible | None = ...,
        active: ActiveLayers | None = ...,
        dropout: Dropout | None = ...,
        /,
    ) -> Tensor:
        """As `Llama.forward`."""
        ...

    __call__ = forward  # type: ignore[misc]  # so that mypy checks calls too: those of modules may have any arguments

    def train(self, mode: bool = ...) -> Any:
        """As `nn.Module.train`."""

    def eval(self) -> Any:
        """As `nn.Module.eval`."""


class Llama(nn.Module):
    """The language model: decoder and head. `lm_head` is None if the head is the embedding table."""

    stack: ClassVar[type[Decoder]] = Decoder

    def __init__(self, model: Model):
        super().__init__()
        self.spec = model
        self.model = self.stack(model)
        tied = model.family.tied
        self.head_transform = _HeadTransform(model) if model.family.head_transform else nn.Identity()
        self.lm_head = None if tied else nn.Linear(model.size.hidden, model.size.vocab, bias=False)

    def forward(
        self,
        tokens: Tensor,
        packing: Packing | None = None,
        read: Read = F.linear,
        visible: Visible | None = None,
        active: ActiveLayers | None = None,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """tokens: (batch, time) int64, or (1, n) with a packing -> logits (batch, time, vocab), or whatever `read`
        returns for the final hidden states and the head's matrix (vocab, hidden). `visible`: None if causal; `active`:
        None for all layers; `dropout`: None but in training."""
        return read(self.head_transform(self.model(tokens, packing, visible, active, dropout)), self.head)

    @property
    def head(self) -> Tensor:
        """The head's matrix, (vocab, hidden)."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def last_norm(self) -> nn.Module:
        """The norm whose output the head multiplies."""
        transform = self.head_transform
        return transform.norm if isinstance(transform, _HeadTransform) else self.model.norm

    def round_stream(self, dtype: torch.dtype | None) -> None:
        """Round the residual stream to `dtype` after the embedding and after every sub-layer; None: do not."""
        self.model.stream = dtype
        for gate in self.gates():
            gate.rounded = dtype

    def gates(self) -> Iterator[GpasGate]:
        """Return every gate, first layer first."""
        return (module for module in self.modules() if isinstance(module, GpasGate))


def build(
    model: Model, *, seed: int = 42, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Llama:
    """Return the initialised network of `model` (from `spec.parse_cell.parse_model`) in `dtype` on `device`.

    On the "meta" device the network has shapes but neither memory nor values.
    """
    kind: type[Llama] = pkgutil.resolve_name(model.family.network)
    if torch.device(device).type == "meta":
        with torch.device("meta"):
            return kind(model)
    network = kind(model)
    initialise(network, model, seed)
    return network.to(device=device, dtype=dtype)
