"""Fold a Pre-LN or LNS network, with its gates and embedding stages, into the weights of a plain LLaMA.

Let c be a gate's factor 1 - act(alpha), and C the running product of all factors applied to the stream x. RMSNorm is
invariant to the scale of its input, so z = x / C follows Pre-LN without a gate once every output projection is divided
by the C of its sum:

    x <- c (x + f(N(x)))        becomes        z <- z + f(N(z)) / C        (C before this gate)

The final norm absorbs the last C. The stages between the lookup and the first layer depend on the token alone and are
applied to the table. Only the norms' eps does not fold: relative to z it has another size than relative to x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.model.layers import GpasGate, RMSNorm
from gpas_cli.model.llama import Block, Llama, Residual
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm, Wiring
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import parse_model


def obstacle(model: Model) -> str:
    """Return why `model` cannot be folded into a plain LLaMA, or "" if it can."""
    llama = _plain_model(model)
    for layer in range(1, model.size.layers + 1):
        if _without_factors(model.wiring(layer)) != llama.wiring(layer):
            return f"layer {layer} of {model.norm.title} is not wired like LLaMA's, x + f(N(x))"
    if model.family.qk_norm == "width":
        return "its queries and keys are normalised over all heads together"
    if replace(model, scheme=llama.scheme, norm=llama.norm, gate=None, embed=llama.embed, init=llama.init) != llama:
        return "it differs from LLaMA in more than norms, gates and embedding stages"
    return ""


def _without_factors(wiring: Wiring) -> Wiring:
    """Return the wiring without the parts that fold: factors, the initial weight of norms and the gate's home."""
    norm = wiring.in_norm and replace(wiring.in_norm, init=Norm().init, scale=Norm().scale)
    return replace(wiring, in_norm=norm, skip=Wiring().skip, home=Wiring().home)


def _plain_model(model: Model) -> Model:
    """Return LLaMA, that is Pre-LN, of the same shape; Qwen3 if queries and keys are normalised by head."""
    by_head = {"family": {"qk_norm": "head"}} if model.family.qk_norm == "head" else {}
    return parse_model({"size": plain(model.size), **by_head})


@torch.no_grad()
def fold(network: Llama) -> Llama:
    """Return the plain LLaMA that computes the same function as `network` up to eps, in float32 on the same device.

    `network` is in float32, and its model has no `obstacle`. Raises GpasError if a gate multiplies the stream by 0.
    """
    gone = (".alpha", "embed_stages")
    weights = {name: w for name, w in network.state_dict().items() if not any(part in name for part in gone)}
    weights["model.embed_tokens.weight"] = network.model.embed_stages(network.model.embed_tokens.weight)
    stream = 1.0
    for number, layer in enumerate(network.model.layers):
        stream = _fold_layer(cast(Block, layer), f"model.layers.{number}", weights, stream)
    weights["model.norm.weight"] = cast(Tensor, network.model.norm.weight) * math.copysign(1, stream)
    with torch.device("meta"):
        folded = Llama(_plain_model(network.spec))
    folded.load_state_dict({name: w.detach().float() for name, w in weights.items()}, assign=True)
    return folded


def _fold_layer(layer: Block, prefix: str, weights: dict[str, Tensor], stream: float) -> float:
    """Fold one layer's factors into its `weights`. `stream` is C before the layer; return C after it."""
    for residual, norm, output in _sublayers(layer):
        factor = {slot: _factor(gate) for slot, gate in residual.gates.items()}
        stream *= factor["entry"]
        assert isinstance(residual.in_norm, RMSNorm)
        scaled = residual.in_norm.weight.double() * residual.in_norm.scale
        weights[f"{prefix}.{norm}.weight"] = scaled * factor["in"] * math.copysign(1, stream)
        stream *= factor["skip"] * residual.skip
        if stream == 0:
            raise GpasError(
                f"a gate up to {prefix} multiplies the residual stream by 0, so the network is not a LLaMA; "
                "export it with its own code (--bundled)"
            )
        name = f"{prefix}.{output}.weight"
        weights[name] = weights[name].double() * (factor["branch"] / stream)
        stream *= factor["sum"] * factor["out"]
    return stream


def _sublayers(layer: Block) -> Iterator[tuple[Residual, str, str]]:
    yield layer._attention, "input_layernorm", "self_attn.o_proj"
    yield layer._feed_forward, "post_attention_layernorm", "mlp.down_proj"


def _factor(gate: nn.Module) -> float:
    return 1 - gate.activation(gate.alpha.double()).item() if isinstance(gate, GpasGate) else 1.0


@torch.no_grad()
def logit_difference(ours: Llama, folded: Llama, tokens: Tensor) -> float:
    """Return max |folded - ours| / max |ours| over the logits of `tokens`, (batch, time) int64; NaN if one is NaN."""
    expected = ours(tokens).double()
    difference = folded(tokens).double() - expected
    return float((difference.abs().max() / expected.abs().max()).item())
