"""Whether a training can start from the weights of a network, and what this changes. No torch.

The network must be of LLaMA's kind: LLaMA, Qwen2, Qwen3 or Mistral in `transformers`. A weight whose output the cell's
wiring multiplies by a constant is divided by it. So a training starts with the network's function where each layer is
x + f(N(x)) up to constants and gates begin with act(alpha) = 0: Pre-LN, LNS with `apply: scale`, LayerScale, learned
scalars, 1/sqrt(2L). Elsewhere, as with the new norms of Sandwich-LN, it starts with another function.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gpas_cli.extensions.networks.network import PinnedNetwork, shapes, unusable, weight_files
from gpas_cli.files import parse_json
from gpas_cli.spec.gate import activation
from gpas_cli.spec.model import Family, Model, Size
from gpas_cli.spec.norm import FACTORS, Factor, Norm, Wiring
from gpas_cli.words import listed

_KINDS = ("llama", "qwen2", "qwen3", "mistral")
_ROPE = {"linear": (), "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")}
_TABLE = "model.embed_tokens.weight"


def absence(asked: tuple[PinnedNetwork, Model], cache: Path, root: Path) -> str:
    """Return why a training of a model cannot start from a network on this machine, "" if it can."""
    network, model = asked
    folder = network.folder(root)
    if network.hf and not folder.exists():
        return f"start: {network.hf} is not on this machine: hf download {network.hf} --revision {network.revision}"
    if fault := unusable(folder):
        return f"start: {fault}"
    if not weight_files(folder):
        return f"start: {folder} has no weights as safetensors, from which alone a training starts"
    try:
        size, family = shape_of(parse_json((folder / "config.json").read_text("utf-8")))
        found = shapes(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"its config.json has no {error}" if isinstance(error, KeyError) else error
        return f"start: {network.source}: {reason}"
    if differing := _differing(model, Size(**size), Family(**family)):
        size = {"name": Path(network.source).name, **size}
        written = f"size: {_written(size)} and family: {_written({'like': 'llama', **family})}"
        return f"start: {network.source} has {differing}; write {written}"
    wanted = dict(_shapes(model))
    if others := [
        f"{name} is {found.get(name)}, not {shape}" for name, shape in wanted.items() if found.get(name) != shape
    ]:
        return f"start: {network.source}: its config.json does not describe its weights: {listed(others)}"
    reason = _without_place(model, network.source)
    return f"start: {reason}" if reason else ""


def unfit(model: Model, before: Model, source: str) -> str:
    """Return why a training of a model cannot start from the network of the cell `source`, "" if it can."""
    if differing := _differing(model, before.size, before.family):
        return f"{source} has {differing}"
    if before.gate and before.gate != model.gate:
        return f"{source} has a gate, which this training must have too"
    if same_but_gates(model, before):
        return ""
    learned = any(isinstance(getattr(part, name), Factor) for part in _parts(before) for name in FACTORS)
    if reason := f"{before.norm.title} has learned factors" if learned else changed(replace(before, gate=None)):
        return f"{source} can start a training with its own norms, factors and embedding only: {reason}"
    return _without_place(model, source)


def same_but_gates(model: Model, before: Model) -> bool:
    """Return whether two networks differ at most in their gates, and in how they are initialised."""
    return replace(before, gate=model.gate, init=model.init) == model


def _without_place(model: Model, source: str) -> str:
    """Return why the norms of a network of the kind have no place in a model, "" if they have."""
    if not all(part.in_norm for part in _parts(model)):
        return f"norm: {model.scheme} has no norm before each sub-layer, as {source} has"
    if any(norm and norm.init != 1 for part in _parts(model) for norm in part.norms):
        return f"the weights of {source} replace the first values by which norm: {model.scheme} differs"
    return ""


def shape_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of `size` and `family` for a configuration of transformers. Raises ValueError with the reason
    if the network is of another kind, and LookupError without a setting."""
    kind = config.get("model_type")
    if kind not in _KINDS:
        raise ValueError(f"its model_type is {kind}; a training starts from {', '.join(_KINDS)}")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    way = rope.get("rope_type", rope.get("type", "default"))
    biased = bool(config.get("attention_bias"))
    window = config.get("use_sliding_window", kind == "mistral") and config.get("sliding_window")
    faults = {
        f"its hidden_act is {config.get('hidden_act')}, not silu": config.get("hidden_act") != "silu",
        f"its rotary positions are scaled by {way}; valid: {', '.join(_ROPE)}": way not in ("default", *_ROPE),
        "not all of its projections have biases": biased and (kind != "llama" or not config.get("mlp_bias")),
        f"its tokens attend only to the last {window}": bool(window),
    }
    if reason := next((reason for reason, holds in faults.items() if holds), ""):
        raise ValueError(reason)
    spellings = {"hidden": "hidden_size", "ffn": "intermediate_size", "heads": "num_attention_heads",
                 "layers": "num_hidden_layers", "vocab": "vocab_size", "eps": "rms_norm_eps"}  # fmt: skip
    size = {name: config[spelling] for name, spelling in spellings.items()}
    theta = rope.get("rope_theta") or config.get("rope_theta")
    size |= {"rope_theta": float(theta)} if theta and theta != Size.rope_theta else {}
    kept = config.get("num_key_value_heads") or heads
    size |= {"kv_heads": kept} if kept != heads else {}
    wide = config.get("head_dim") or hidden // heads
    size |= {"head_dim": wide} if wide * heads != hidden else {}
    if way in _ROPE:
        own = ("rope_factor", "rope_context", "rope_low", "rope_high")
        size |= {name: rope[spelling] for name, spelling in zip(own, ("factor", *_ROPE[way]), strict=False)}
    parts = {"tied": bool(config.get("tie_word_embeddings")), "qkv_bias": kind == "qwen2", "bias": biased}
    family = {name: True for name, holds in parts.items() if holds}
    return size, family | ({"qk_norm": "head"} if kind == "qwen3" else {})


def _differing(model: Model, size: Size, family: Family) -> str:
    """Return in what the size and family of a network differ from those of a model."""
    both = ((model.size, size), (model.family, family))
    pairs = ((one.name, getattr(own, one.name), getattr(other, one.name)) for own, other in both for one in fields(own))
    return listed([f"{name} {found}, not {wanted}" for name, wanted, found in pairs if not _equal(found, wanted)], 9)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two settings are equal. The numbers of a config.json may be those of float32."""
    number = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-6) if number else bool(one == other)


def _written(settings: Mapping[str, Any]) -> str:
    """Return settings as one line of YAML."""
    return f"{{{', '.join(f'{name}: {json.dumps(value)}' for name, value in settings.items())}}}".replace('"', "")


def _shapes(model: Model) -> Iterator[tuple[str, list[int]]]:
    """Yield the matrices and norms that every network of the kind has, and their shapes."""
    size = model.size
    yield _TABLE, [size.vocab, size.hidden]
    yield "model.norm.weight", [size.hidden]
    attention = {"q": size.q_hidden} | dict.fromkeys("kv", size.kv_hidden)
    for layer in range(size.layers):
        place = f"model.layers.{layer}"
        for name, width in attention.items():
            yield f"{place}.self_attn.{name}_proj.weight", [width, size.hidden]
        yield f"{place}.self_attn.o_proj.weight", [size.hidden, size.q_hidden]
        yield from ((f"{place}.mlp.{name}_proj.weight", [size.ffn, size.hidden]) for name in ("gate", "up"))
        yield from ((f"{place}.{name}_layernorm.weight", [size.hidden]) for name in ("input", "post_attention"))
        yield f"{place}.mlp.down_proj.weight", [size.hidden, size.ffn]


def _parts(model: Model) -> list[Wiring]:
    return [part for layer in range(model.size.layers) for part in model.wiring(layer + 1).parts]


def changed(model: Model) -> str:
    """Return why a training of a model starts with another function than the network's, "" if with the same."""
    if model.family.encoder:
        return "it has an encoder and a decoder"
    for number, part in enumerate(_parts(model)):
        usual = replace(part, in_norm=part.in_norm and Norm(), skip=_first(part.skip), branch=1, home="sum", ffn=None)
        if usual != Wiring(in_norm=Norm(), branch=1, home="sum") or not _first(part.branch):
            return f"layer {number // 2 + 1} of {model.norm.title} is not x + f(N(x)) at first"
    if norms := [stage for stage in model.embed.stages if stage not in ("scale", "detach")]:
        return f"embed has {norms[0]}"
    if "scale" in model.embed.stages and model.family.tied:
        return "embed scales the table, which is the head, too"
    return opened(model)


def opened(model: Model) -> str:
    """Return that gates change the function at first, "" if they do not."""
    gate = model.gate
    first = {activation(gate.activation, alpha)[0] for alpha in gate.starts(model.size.layers)} if gate else {0.0}
    return "" if first == {0.0} else "gates begin with act(alpha) other than 0"


def multiplier(model: Model, name: str) -> float:
    """Return by what the network multiplies the output of the parameter `name`, at first."""
    layers, _, rest = name.removeprefix("model.layers.").partition(".")
    if not name.startswith("model.layers."):
        scaled = "scale" in model.embed.stages and not model.family.tied
        table = model.embed.factor(model.base_hidden) if scaled else 1.0
        return {_TABLE: table, "model.norm.weight": model.head_norm.scale}.get(name, 1.0)
    attention, ffn = model.wiring(int(layers) + 1).parts
    query = model.query_factor if model.family.qk_norm == "none" else 1.0
    query_norm = model.query_factor / query
    own = {
        "input_layernorm": attention.in_norm.scale if attention.in_norm else 1.0,
        "post_attention_layernorm": ffn.in_norm.scale if ffn.in_norm else 1.0,
        "self_attn.q_proj": query,
        "self_attn.q_norm": query_norm,
        "self_attn.o_proj": _first(attention.branch) or 1.0,
        "mlp.down_proj": _first(ffn.branch) or 1.0,
    }
    return own.get(rest.rpartition(".")[0], 1.0)


def _first(factor: float | Factor) -> float:
    """Return the first value of a factor of the wiring."""
    return factor.init * factor.scale if isinstance(factor, Factor) else factor
