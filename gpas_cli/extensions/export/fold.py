"""Fold the gates of a network into its weights: the same scheme without a gate, or a plain LLaMA.

Let C be the number with x = C z, where x is the residual stream of the network and z that of the folded one, and e, i,
b, k, s, o the factors 1 - act(alpha) of a gate at ENTRY, IN, BRANCH, SKIP, SUM and OUT: one of them, the others are 1.
A norm is invariant to the scale of its input, N(C z) = sign(C) N(z), and f is linear in its first and its last
matrices. Slot by slot, C <- e C at first, and then

    in_norm       present: times i sign(C). Absent: the first matrices of f are multiplied by i C.
    the sum       C <- k C, and C z + b F = C (z + b F / C): branch_norm, without one the last matrix of f, times b / C.
                  Factors of the wiring count with k and b; one of them may be a vector, at the end of f.
    SUM           C <- s C
    out_norm      present: times o sign(C), and C <- 1. Absent: C <- o C.

The final norm absorbs the last C. So what does not fold is a factor of 0 on the stream before a sum. Only the norms'
eps does not fold either: relative to z it has another size than relative to x. With a bottom-to-top connection no gate
is folded: the layer's input, which none scales, is added to the sum of its last sub-layer.

A Pre-LN or LNS network becomes a plain LLaMA in the same way, with the constant factors of its norms, of its skip path
and of its parametrisation; the stages between the lookup and the first layer depend on the token alone and are applied
to the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.model.attention import Positions
from gpas_cli.model.layers import GpasGate, LearnedFactor
from gpas_cli.model.llama import Llama, SubLayer, build
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm, Wiring
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import parse_model

LLAMA_PARTS = ("qk_norm", "qkv_bias", "tied")  # in which the families of `transformers` for LLaMA-like networks differ


def obstacle(model: Model) -> str:
    """Return why `model` cannot be folded into a plain LLaMA, or "" if it can."""
    llama = plain_llama(model)
    for layer in range(1, model.size.layers + 1):
        if _without_factors(model.wiring(layer)) != llama.wiring(layer):
            return f"layer {layer} of {model.norm.title} is not wired like LLaMA's, x + f(N(x))"
    same = {name: getattr(llama, name) for name in ("scheme", "norm", "gate", "embed", "init", "parametrisation")}
    faults = {
        "its queries and keys are normalised over all heads together": model.family.qk_norm == "width",
        "its queries and keys have biases and are normalised": model.family.qk_norm == "head" and model.family.qkv_bias,
        "its width is no multiple of its heads, as LLaMA's is": model.size.hidden % model.size.heads > 0,
        "stages after the embedding change the table, the head too": model.family.tied and model.embed != llama.embed,
        "it differs from LLaMA in more than norms, gates and embedding stages": replace(model, **same) != llama,
    }
    return next((reason for reason, holds in faults.items() if holds), "")


def _without_factors(wiring: Wiring) -> Wiring:
    """Return the wiring without the parts that fold: factors, the initial weight of norms and the gate's home."""
    norm = wiring.in_norm and replace(wiring.in_norm, init=Norm().init, scale=Norm().scale)
    return replace(wiring, in_norm=norm, skip=Wiring().skip, branch=Wiring().branch, home=Wiring().home)


def plain_llama(model: Model) -> Model:
    """Return LLaMA, that is Pre-LN, of the same shape: Qwen3 if queries and keys are normalised by head, Qwen2 if they
    have biases."""
    return parse_model(
        {"size": plain(model.size), "family": {name: getattr(model.family, name) for name in LLAMA_PARTS}}
    )


@torch.no_grad()
def fold(network: Llama, goal: Model) -> Llama:
    """Return the network of `goal` that computes the same function as `network` up to eps, in its dtype and on its
    device.

    `goal` is the model of `network` with `gate=None`, or its `plain_llama` if it has no `obstacle`. Raises GpasError if
    a gate multiplies the stream by 0, for a bottom-to-top connection, or for a gate with DyT.
    """
    if network.spec.gate is not None and network.spec.family.norm == "dyt":
        raise GpasError("dyt does not undo the scale of its input, so no gate folds into the weights before it")
    folded = build(goal, device="meta")
    weights = network.state_dict()
    folded.load_state_dict({name: weights[name].clone() for name in folded.state_dict()}, assign=True)
    if goal.embed != network.spec.embed:
        table = folded.model.embed_tokens.weight
        table.copy_(network.model.embed_stages(table))
    stream = 1.0
    for number, (ours, theirs) in enumerate(zip(network.model.blocks(), folded.model.blocks(), strict=True), start=1):
        if ours.bottom:
            raise GpasError("gates do not fold where a layer's input, which none of them scales, is added to its end")
        try:
            for pair in zip(ours.sublayers(Positions()), theirs.sublayers(Positions()), strict=True):
                stream = _fold_sublayer(*pair, stream)
        except ZeroDivisionError as error:
            message = f"a gate up to layer {number} multiplies the residual stream by 0, which no other factor can undo"
            raise GpasError(message) from error
        queries = theirs.self_attn
        last = queries.q_proj if isinstance(queries.q_norm, nn.Identity) else queries.q_norm
        _multiply(last, 1.0, ours.self_attn.query_factor / queries.query_factor)
    _multiply(folded.model.norm, _sign(stream))
    _multiply(folded.last_norm, 1.0, _constant(network.last_norm, folded.last_norm))
    return folded


def _fold_sublayer(ours: SubLayer, theirs: SubLayer, stream: float) -> float:
    """Fold the factors of a sub-layer. `stream` is C before it; return C after it."""
    own, other = ours.residual, theirs.residual
    factor = {slot: _factor(gate) for slot, gate in own.gates.items()}
    stream *= factor["entry"]
    if isinstance(own.in_norm, nn.Identity):
        for module in theirs.module.modules():
            if isinstance(module, nn.Linear) and module is not theirs.output:
                module.weight.mul_(factor["in"] * stream)
    else:
        _multiply(other.in_norm, _sign(stream), factor["in"] * _constant(own.in_norm, other.in_norm))
    stream *= factor["skip"] * _relative(own.skip, other.skip).item()
    end = theirs.output if isinstance(own.branch_norm, nn.Identity) else other.branch_norm
    branch = factor["branch"] / stream * _constant(own.branch_norm, other.branch_norm)
    _multiply(end, 1.0, branch * _relative(own.branch, other.branch))
    stream *= factor["sum"]
    if isinstance(own.out_norm, nn.Identity):
        return stream * factor["out"]
    _multiply(other.out_norm, _sign(stream), factor["out"] * _constant(own.out_norm, other.out_norm))
    return 1.0


def _relative(ours: float | LearnedFactor, theirs: float | LearnedFactor) -> Tensor:
    """Return a factor of the wiring over that of the folded network, which has the same one or a constant."""
    if isinstance(theirs, LearnedFactor):
        assert isinstance(ours, LearnedFactor)
        return torch.full((1,), ours.scale / theirs.scale, dtype=torch.float64)
    if isinstance(ours, LearnedFactor):
        return ours.scale * ours.weight.double() / theirs
    return torch.tensor([ours], dtype=torch.float64) / theirs


def _factor(gate: nn.Module) -> float:
    return 1 - gate.activation(gate.alpha.double()).item() if isinstance(gate, GpasGate) else 1.0


def _constant(ours: nn.Module, theirs: nn.Module) -> float:
    """Return the constant multiplier of a norm, relative to that of the folded network."""
    return 1.0 if isinstance(ours, nn.Identity) else cast(float, ours.scale) / cast(float, theirs.scale)


def _sign(number: float) -> float:
    return float((number > 0) - (number < 0))


def _multiply(module: nn.Module, sign: float, factor: float | Tensor = 1.0) -> None:
    """Multiply the output of a norm or a linear map by `factor`, and the part that is not the bias also by `sign`."""
    weight = cast(Tensor, module.weight)
    if isinstance(factor, Tensor):
        factor = factor.to(weight.device)
    by_row = factor[:, None] if isinstance(factor, Tensor) and weight.dim() == 2 else factor
    weight.mul_(sign * by_row)
    bias = getattr(module, "bias", None)
    if bias is not None:
        bias.mul_(factor)


@torch.no_grad()
def logit_difference(ours: Llama, folded: Llama, tokens: Tensor) -> float:
    """Return max |folded - ours| / max |ours| over the logits of `tokens`, (batch, time) int64; NaN if one is NaN."""
    expected = ours(tokens).double()
    difference = folded(tokens).double() - expected
    return float((difference.abs().max() / expected.abs().max()).item())
