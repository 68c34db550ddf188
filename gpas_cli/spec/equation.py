"""Describe in words, for `gpas explain`, the equation of every layer and the layers that train in each update.

Equations follow from the wiring alone. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gpas_cli.spec.cost import CellParts, computed_flops, relative_flops
from gpas_cli.spec.depth import LayerSchedule
from gpas_cli.spec.gate import ACTIVATIONS
from gpas_cli.spec.model import Family, Model
from gpas_cli.spec.norm import Factor, Norm, Wiring
from gpas_cli.spec.parametrisation import Parametrisation

_FACTORS = {
    "sqrt": "s = sqrt(distance to the next layer on the path)",
    "linear": "s = distance to the next layer on the path",
    "inverse": "s = 1 / (the probability that the layer is kept)",
    "none": "s = 1",
}
_SKIPPED = {
    "keep": "the optimizer leaves the weights and the state of a skipped layer alone",
    "zero": "the optimizer sees a gradient of zero for a skipped layer",
}


def equation(model: Model, layer: int) -> str:
    """Return the update of a sub-layer of layer `layer` = 1..layers: "N(2.21 G(x) + f(x))" for DeepNorm with GPAS.

    If the two sub-layers differ (B2T), return both: "N(x + f(x)), then N(b + x + f(x)) with b the layer's input".
    """
    bottom = "b + " if model.wiring(layer).bottom else ""
    first, second = (_sublayer(model, layer, part, bottom if part else "") for part in (0, 1))
    if first == second:
        return first
    where = " with b the layer's input" if bottom else ""
    return f"{first}, then {second}{where}"


def _sublayer(model: Model, layer: int, part: int, bottom: str) -> str:
    wiring = model.wiring(layer).parts[part]
    gated = model.gate_slots(layer)[part]

    def gate(slot: str, text: str) -> str:
        if slot != gated:
            return text
        return f"G({text})" if not text.startswith("(") else f"G{text}"

    entry = gate("entry", "x")
    inside = gate("in", _norm(wiring.in_norm, entry))
    branch = gate("branch", _norm(wiring.branch_norm, f"f({inside})"))
    skip = gate("skip", entry)
    total = gate("sum", f"{bottom}{_times(wiring.skip, 'a', skip)} + {_times(wiring.branch, 'b', branch)}")
    return gate("out", _norm(wiring.out_norm, total))


def _times(factor: float | Factor, letter: str, text: str) -> str:
    if isinstance(factor, Factor):
        return f"{letter} * {text}" if factor.wide else f"{letter} {text}"
    return text if factor == 1 else f"{factor:.4g} {text}"


def _norm(norm: Norm | None, text: str) -> str:
    if norm is None:
        return text
    factor = "" if norm.scale == 1 else f"{norm.scale:.4g} "
    return f"{factor}N({text})"


def equations(model: Model) -> list[tuple[int, int, str]]:
    """Return runs of consecutive layers with equal equations as (first, last, equation); layers count from 1."""
    layers = range(1, model.size.layers + 1)
    runs = []
    for (_, text), group in groupby(layers, key=lambda layer: (layer > model.encoder_layers, equation(model, layer))):
        members = list(group)
        runs.append((members[0], members[-1], text))
    return runs


def _embedding(model: Model) -> str:
    """Return the input of the first layer, with E[t] the token's row: "RMSNorm(E[t])", or "E[t] + P" with positions,
    "N(E[t] + P + T)" in BERT."""
    text = "E[t]"
    for stage in model.embed.stages:
        gamma = model.embed.detach_gamma
        text = {
            "scale": f"{model.embed.factor(model.size.hidden):.4g} {text}",
            "layernorm": f"LayerNorm({text})",
            "rmsnorm": f"RMSNorm({text})",
            "detach": f"{gamma:g} {text} + {1 - gamma:g} sg({text})",
        }[stage]
    parts = model.family
    added = "".join([" + P" if parts.positions != "rotary" else "", " + T" if parts.token_types else ""])
    return f"N({text}{added})" if parts.input_norm else f"{text}{added}"


def family(model: Model) -> str:
    """Describe N, the feed-forward network and the head where they differ from LLaMA's, "" if nowhere."""
    parts = model.family
    llama = Family()
    swiglu = "FFN(x) = W_down (silu(W_gate x) * W_up x)"
    descriptions = {
        "norm": {"layernorm": "N is LayerNorm", "dyt": "N(x) = w tanh(s x) + b"}.get(parts.norm, "N is RMSNorm"),
        "ffn": swiglu if parts.ffn == "swiglu" else f"FFN(x) = W_down {parts.ffn}(W_up x)",
        "positions": f"P has {parts.context} learned positions" if parts.positions == "learned" else "P is sinusoidal",
        "bias": "projections have biases",
        "qkv_bias": "queries, keys and values have biases",
        "tied": "the head is E",
        "qk_norm": f"q = N(W_q x) and k = N(W_k x), {_over(parts.qk_norm)}",
        "token_types": f"T is the first of {parts.token_types} token types",
        "head_transform": "the head reads N(gelu(W x)) of the final states",
        "encoder": "f is self-attention, cross-attention to N of the encoder's last x in the decoder, and FFN in turn",
    }
    return "; ".join(text for name, text in descriptions.items() if getattr(parts, name) != getattr(llama, name))


def _over(heads: str) -> str:
    return "each head" if heads == "head" else "all heads together"


def description(model: Model) -> list[str]:
    """Return the equations of a network line by line: embedding, layers, differences from LLaMA, gate."""
    lines = [f"{'embedding':<14} x <- {_embedding(model)}"] if _embedding(model) != "E[t]" else []
    for first, last, text in equations(model):
        stack = ("decoder" if first > model.encoder_layers else "encoder") if model.family.encoder else ""
        where = f"{stack or 'layers'} {first}-{last}" if last > first else f"{stack or 'layer'} {first}"
        lines.append(f"{where:<14} x <- {text}")
    wiring = model.wiring(model.size.layers)
    norms = [norm for part in wiring.parts for norm in part.norms]
    values = sorted({norm.init for norm in norms if norm is not None and norm.init != 1})
    starts = ", ".join(f"norm weights start at {value:.4g}" for value in values)
    rest = (
        f"last layer: {starts}" if starts else "",
        family(model),
        _gate_line(model) if model.gate else "",
        *_parametrisation_lines(model),
    )
    return [*lines, *_rival_lines(model), *_factor_lines(wiring), *filter(None, rest)]


def _rival_lines(model: Model) -> Iterator[str]:
    """Yield what attention averages where its values have norms or are those of layer 1, too."""
    reading = [layer for layer in range(2, model.size.layers + 1) if model.wiring(layer).first_value != 0]
    if model.wiring(model.size.layers).qkv_norm != "none":
        yield f"queries, keys and values are N(W x), {_over(model.wiring(model.size.layers).qkv_norm)}"
    if reading:
        own = model.wiring(reading[-1])
        mixed = f"{_times(own.value, 'u', 'v')} + {_times(own.first_value, 'u1', 'v1')}"
        yield f"attention of layers {reading[0]}-{reading[-1]} averages {mixed} with v1 the values of layer 1"


def _parametrisation_lines(model: Model) -> Iterator[str]:
    """Yield what the parametrisation multiplies, relative to the base."""
    how, size = model.parametrisation, model.size
    if how == Parametrisation():
        return
    width, depth = how.width(size.hidden), how.depth(size.layers)
    yield f"{how.kind}: width {width:g} x {how.base_hidden}" + (
        f", depth {depth:g} x {how.base_layers}" if how.base_layers else ""
    )
    matrix = model.adam_factors("model.layers.0.self_attn.q_proj.weight", (size.hidden, size.hidden))
    norm = model.adam_factors("model.layers.0.input_layernorm.weight", (size.hidden,))
    yield (
        f"matrices of layers: std x {width**-0.5:.4g}, with Adam rate x {matrix.rate:.4g}, weight decay x "
        f"{matrix.weight_decay:.4g}, eps x {matrix.eps:.4g}; norms and biases: rate x {norm.rate:.4g}"
    )
    yield (
        f"logits x {model.head_norm.scale:.4g}, queries x {model.query_factor:.4g}, branches x "
        f"{how.branch(size.layers):.4g}"
    )


def _factor_lines(wiring: Wiring) -> Iterator[str]:
    """Yield what the letters of learned factors stand for."""
    factors = (("a", wiring.skip), ("b", wiring.branch), ("u", wiring.value), ("u1", wiring.first_value))
    for letter, factor in factors:
        if isinstance(factor, Factor):
            kind = "vector" if factor.wide else "number"
            each = "layer" if factor.shared else "branch"
            yield f"{letter} is a learned {kind}, one per {each}, starts at {factor.init:g}"


def _gate_line(model: Model) -> str:
    gate = model.gate
    assert gate is not None
    stream = "sg(x)" if gate.stop_gradient else "x"
    kind = "learnable" if gate.learnable else "fixed"
    start = "another cell's trained values" if gate.from_trained else f"{gate.starts(model.size.layers)[0]:g}"
    share = f"{gate.activation}(alpha)" if gate.activation in ACTIVATIONS else f"({gate.activation})"
    return f"G(x) = x - {share} {stream}; alpha {kind}, one per {gate.share}, starts at {start}"


def depth_lines(cell: CellParts) -> list[str]:
    """Return the schedule line by line: stages with their updates, average, factors; nothing for full depth."""
    schedule = cell.layer_schedule
    depth = schedule.depth
    kinds = {"raptr": _raptr, "stacking": _stacking, "layerdrop": _layerdrop}
    if depth.kind not in kinds:
        return []
    layers = schedule.layers
    average = (
        f"average: {schedule.average():.4g} of {layers} layers, {relative_flops(cell):.3g} of the work of full "
        f"depth, {computed_flops(cell):.3g} of its FLOPs with attention and head"
    )
    return [*kinds[depth.kind](schedule), *_gates(cell), average]


def _gates(cell: CellParts) -> Iterator[str]:
    gate, depth = cell.model.gate, cell.layer_schedule.depth
    if gate is not None and gate.learnable and depth.kind != "stacking" and depth.scale != "none":
        yield "where s is not 1, autograd computes the gradients of gates that no norm follows, which takes memory"


def _raptr(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    fixed = len(depth.fixed_layers())
    always = f"layer{'s' * (fixed > 1)} {depth.fixed} on every path" if fixed else "no layer is on every path"
    yield f"random paths (RaPTr), {always}; all layers are evaluated"
    if depth.full_steps:
        yield f"{_updates(1, depth.full_steps)}: all {schedule.layers} layers"
    for first, last, size in _stages(schedule):
        whole = size == schedule.layers
        p = schedule.kept(first)
        if whole:
            yield f"{_updates(first, last)}: all {size} layers"
        elif depth.drawn == "exactly":
            yield f"{_updates(first, last)}: exactly {size} layers"
        else:
            yield f"{_updates(first, last)}: {size} layers on average; each of the others with probability {min(p):.4g}"
    yield f"a layer computes x + s (Block(x) - x), {_FACTORS[depth.scale]}"
    yield _SKIPPED[depth.skipped]


def _stacking(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    yield "a growing network (stacking); the layers that are there are evaluated"
    for first, last, size in _stages(schedule):
        pairs = ", ".join(f"{layer} from {source}" for layer, source in schedule.copies(first))
        copied = f"; layers copied: {pairs}" if pairs else ""
        yield f"{_updates(first, last)}: the first {size} layers{copied}"
    yield f"the optimizer's state of copied layers is {depth.moments}"


def _layerdrop(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    deepest = schedule.kept(schedule.steps)[-1]
    yield "progressive layer dropping; all layers are evaluated"
    yield (
        f"layer l is kept with probability 1 - (l / {schedule.layers})(1 - theta), theta from 1 to {depth.keep:.4g} as "
        f"exp(-{depth.gamma:g} t / {schedule.steps:,}): layer {schedule.layers} with {deepest:.4g} in the end"
    )
    yield f"a layer computes x + s (Block(x) - x), {_FACTORS[depth.scale]}"
    yield _SKIPPED[depth.skipped]


def _stages(schedule: LayerSchedule) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last update and the number of layers of every stage."""
    ends = (*(start - 1 for start in schedule.starts[1:]), schedule.steps)
    yield from zip(schedule.starts, ends, schedule.sizes, strict=True)


def _updates(first: int, last: int) -> str:
    return f"updates {first:,}-{last:,}" if last > first else f"update {first:,}"
