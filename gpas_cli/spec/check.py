"""Rules across fields: make different spellings of a network equal, refuse contradictory settings with the reason."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.data import ENDLESS, PAIR_SOURCES, Data
from gpas_cli.spec.gate import Gate, activation, canonical
from gpas_cli.spec.model import QK_NORMS, Embed, Family, Init, Model, usual_validation_rows
from gpas_cli.spec.norm import FACTORS, GATE_SLOTS, SCHEMES, Factor, Mix, Norm, Peri, Wiring
from gpas_cli.spec.objective import Masked, Objective, Translated
from gpas_cli.spec.optim import ADAM, MuonSettings, Optim, unread_settings
from gpas_cli.spec.parametrisation import Parametrisation
from gpas_cli.spec.translation import LANGUAGES, both

_HUB_FILES = re.compile(r"[\w.-]+/[\w.-]+:\S+")
_HUB_FILES_EXAMPLE = "mlfoundations/dclm-baseline-1.0:*.jsonl.zst"
# Tokenizers with ids of their own: what a message calls these, and how many there are.
_IDS = {"t5": ("T5's 32000 pieces", 32_000), "gpt2": ("GPT-2's 50257 ids", 50_257)}


def canonical_model(model: Model) -> Model:
    """Return the canonical spelling of a network: fields without effect get their default, equal sites get one name."""
    gate = _canonical_gate(model) if model.gate else None
    embed = model.embed if "detach" in model.embed.stages else replace(model.embed, detach_gamma=Embed().detach_gamma)
    if embed.multiplier == math.sqrt(model.base_hidden):
        embed = replace(embed, multiplier=None)
    init = replace(model.init, **{name: getattr(Init(), name) for name in model.init.unread})
    family = model.family
    if family.positions != "learned":
        family = replace(family, context=Family().context)
    if family.bias:
        family = replace(family, qkv_bias=False)
    size = model.size
    kv_heads = None if size.kv_heads == size.heads else size.kv_heads
    head_dim = None if size.q_hidden == size.hidden else size.head_dim
    model = replace(model, size=replace(size, kv_heads=kv_heads, head_dim=head_dim))
    how = model.parametrisation.canonical(model.size.hidden, model.size.heads, model.size.layers)
    if family.encoder and 2 * (model.size.decoder_layers or 0) == model.size.layers:
        model = replace(model, size=replace(model.size, decoder_layers=None))
    return replace(model, gate=gate, embed=embed, init=init, family=family, parametrisation=how)


def canonical_optim(optim: Optim, model: Model, last_stage: int | None = None) -> Optim:
    """Return the canonical spelling of a recipe: gate clipping needs a trainable gate; 0 is the name of a default.

    last_stage: the number of updates of the depth's last stage, None if it has no stages.
    """
    gated = model.gate is not None and model.gate.learnable
    if not gated:
        optim = replace(optim, clip_gates=0.0)
    if not gated or optim.clip == 0:
        optim = replace(optim, clip_over="all")
    if optim.mean_rows == optim.batch:
        optim = replace(optim, mean_rows=0)
    if optim.validation_rows == usual_validation_rows(model.size, optim.batch):
        optim = replace(optim, validation_rows=0)
    if optim.stop == optim.steps:
        optim = replace(optim, stop=0)
    if optim.horizon == optim.steps:
        optim = replace(optim, horizon=0)
    if optim.schedule_settings is not None:
        schedule = optim.schedule_settings.canonical(optim.warmup, optim.steps, last_stage)
        # `constant` was published before this rule, so its keys contain min_ratio.
        min_ratio = optim.min_ratio if schedule.reads_min_ratio else Optim.min_ratio
        optim = replace(optim, schedule_settings=schedule, min_ratio=min_ratio)
    unread = unread_settings(optim.kind)
    usual: dict[str, Any] = {field.name: field.default for field in fields(optim) if field.name in unread}
    return replace(optim, optimizer=optim.kind.name, **usual)


def _canonical_gate(model: Model) -> Gate:
    gate = model.gate
    assert gate is not None
    gate = replace(gate, activation=canonical(gate.activation))
    layers = range(1, model.size.layers + 1)
    at_home = all(model.gate_slots(layer) == tuple(part.home for part in model.wiring(layer).parts) for layer in layers)
    if at_home:
        gate = replace(gate, site="home")
    if isinstance(gate.init, tuple) and len(set(gate.init)) == 1 and len(gate.init) == model.size.layers:
        gate = replace(gate, init=gate.init[0])
    if not gate.learnable and not gate.from_trained:
        # With a fixed value, sharing a parameter makes no difference.
        gate = replace(gate, share="layer")
    return gate


def check_wiring(model: Model, recorded: str | None = None) -> Iterator[Problem]:
    """Yield what is wrong with the wiring of a plugin scheme. `recorded` is the digest that it must have."""
    if model.norm.origin is None:
        return
    depth = model.size.layers
    name = model.norm.origin.name
    for layer in range(1, depth + 1):
        fault = _wiring_fault(model, layer)
        if fault:
            yield Problem(("norm",), f"{name}: wiring({layer}, {depth}) of '{model.scheme}' {fault}")
            return
    for known, cls in SCHEMES.items():
        if all(cls().wiring(layer, depth) == model.wiring(layer) for layer in range(1, depth + 1)):
            yield Problem(
                ("norm",), f"with {depth} layers '{model.scheme}' equals the scheme '{known}'; write norm: {known}"
            )
            return
    if recorded not in (None, model.wiring_digest):
        yield Problem(("norm",), f"{name}: the wiring of '{model.scheme}' has changed since this cell was recorded")


def _wiring_fault(model: Model, layer: int) -> str:
    try:
        wiring: object = model.wiring(layer)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    if not isinstance(wiring, Wiring) or not isinstance(wiring.parts[1], Wiring):
        return f"is {wiring!r}, not a Wiring"
    if wiring.qkv_norm not in QK_NORMS:
        return f"has the qkv_norm {wiring.qkv_norm!r}; {nearest(wiring.qkv_norm, QK_NORMS)}"
    ffn = wiring.ffn
    if ffn and (ffn.ffn, ffn.qkv_norm, ffn.first_value) != (None, "none", 0):
        return "has an ffn with an ffn or with settings of attention or of the whole layer"
    return next(filter(None, (_part_fault(part, layer) for part in wiring.parts)), "")


def _part_fault(wiring: Wiring, layer: int) -> str:
    norms = [norm for norm in wiring.norms if norm is not None]
    if not all(isinstance(norm, Norm) for norm in norms):
        return "has a norm that is neither None nor a Norm"
    numbers = [(name, getattr(norm, name)) for norm in norms for name in ("init", "scale")]
    for name in FACTORS:
        factor = getattr(wiring, name)
        numbers.append((name, factor.init if isinstance(factor, Factor) else factor))
    for name, number in numbers:
        if not isinstance(number, int | float) or not math.isfinite(number):
            return f"has the {name} {number!r}, which is not a finite number"
    if layer == 1 and wiring.first_value != 0:
        return "reads the values of layer 1 in layer 1 itself; its first_value must be 0"
    if wiring.home not in GATE_SLOTS:
        return f"has the home {wiring.home!r}; {nearest(wiring.home, GATE_SLOTS)}"
    return ""


def check_model(model: Model) -> list[Problem]:
    """Return every rule that a network breaks."""
    return [
        *_check_size(model),
        *_check_encoder(model),
        *_check_scheme(model),
        *_check_gate(model),
        *_check_embed(model),
        *_check_init(model),
    ]


def _check_size(model: Model) -> Iterator[Problem]:
    size = model.size
    if size.hidden % size.heads and not size.head_dim:
        what = f"hidden {size.hidden} is not divisible by {size.heads} heads"
        yield Problem(("size", "heads"), f"{what}; name the features of a head with head_dim")
    elif size.head_width % 2 and model.family.positions == "rotary":
        where = ("size", "head_dim" if size.head_dim else "heads")
        yield Problem(where, f"rotary positions need an even head dimension, not {size.head_width}")
    if size.heads % (size.kv_heads or 1):
        yield Problem(("size", "kv_heads"), f"{size.heads} heads cannot share {size.kv_heads} heads of keys evenly")
    slowed = size.rope_factor > 1 and model.family.positions == "rotary"
    read = {"rope_factor": model.family.positions == "rotary", "rope_context": slowed}
    for name in ("rope_factor", "rope_context", "rope_low", "rope_high"):
        if getattr(size, name) != getattr(type(size), name) and not read.get(name, slowed and size.rope_context):
            needed = "rope_context" if slowed else "rope_factor" if name != "rope_factor" else "rotary positions"
            yield Problem(("size", name), f"has no effect without {needed}; remove it")
    if size.rope_low >= size.rope_high:
        yield Problem(("size", "rope_low"), f"{size.rope_low:g} is not below rope_high, {size.rope_high:g}")


def _check_encoder(model: Model) -> Iterator[Problem]:
    family = model.family
    if not family.encoder:
        if model.size.decoder_layers is not None:
            yield Problem(("size", "decoder_layers"), "needs family: encoder-decoder; remove it")
        if family.positions == "sinusoidal":
            yield Problem(("family", "positions"), "sinusoidal needs family: encoder-decoder; write learned or rotary")
        return
    last = model.wiring(model.size.layers)
    if model.shares_values or last.qkv_norm != "none" or last.ffn:
        yield Problem(
            ("norm",),
            f"{model.scheme} has no place for attention to an encoder; nearest: {'post' if last.ffn else 'pre'}",
        )
    if model.size.layers % 2 and model.size.decoder_layers is None:
        what = f"{model.size.layers} layers cannot be half an encoder's and half a decoder's"
        yield Problem(("size", "layers"), f"{what}; write decoder_layers")
    elif model.encoder_layers < 1:
        what = f"{model.decoder_layers} of {model.size.layers} layers leave none for the encoder"
        yield Problem(("size", "decoder_layers"), f"{what}; at most {model.size.layers - 1}")
    if model.parametrisation != Parametrisation():
        yield Problem(("parametrisation",), "has no rule for an encoder beside a decoder; write standard")
    for name in ("input_norm", "token_types", "head_transform"):
        if getattr(family, name):
            yield Problem(("family", name), "is not for encoder-decoder")


def _check_scheme(model: Model) -> Iterator[Problem]:
    if isinstance(model.norm, Mix):
        stacks = (model.encoder_layers, model.decoder_layers) if model.family.encoder else (model.size.layers,)
        post = sum(map(model.norm.post_layers, stacks))
        if post in (0, model.size.layers):
            same = "pre" if post == 0 else "post"
            each = " and ".join(map(str, stacks))
            yield Problem(
                ("norm", "post_fraction"),
                f"{model.norm.post_fraction:g} of {each} layers is {post} Post-LN layers, "
                f"which is the scheme '{same}'; write norm: {same}",
            )
    if model.family.qk_norm != "none" and any(
        model.wiring(layer).qkv_norm != "none" for layer in range(1, model.size.layers + 1)
    ):
        yield Problem(
            ("family", "qk_norm"),
            f"norm: {model.scheme} has norms of queries, keys and values; remove the setting or write none",
        )
    if isinstance(model.norm, Peri) and not {"rmsnorm", "layernorm"} & set(model.embed.stages):
        yield Problem(("embed",), "Peri-LN without a norm after the embedding is Sandwich; write norm: sandwich")


def _check_gate(model: Model) -> Iterator[Problem]:
    gate = model.gate
    if gate is None:
        return
    starts = gate.starts(model.size.layers)
    if len(starts) != model.size.layers:
        yield Problem(("gate", "init"), f"has {len(starts)} values for {model.size.layers} layers")
        return
    shares, slopes = zip(*(activation(gate.activation, a) for a in starts), strict=True)
    undefined = [a for a, *found in zip(starts, shares, slopes, strict=True) if not all(map(math.isfinite, found))]
    if undefined:
        yield Problem(("gate", "activation"), f"{gate.activation} has no finite value and slope at {undefined[0]:g}")
        return
    if any(share >= 1 for share in shares):
        yield Problem(("gate", "init"), f"{gate.activation}({max(starts):g}) >= 1 turns the residual stream off")
    if not gate.learnable and not gate.from_trained and not any(shares):
        yield Problem(("gate", "init"), "a fixed gate at 0 has no effect; set gate: none, gate.init or from_trained")
    if gate.learnable and not any(slopes):
        yield Problem(
            ("gate", "activation"),
            f"{gate.activation} has gradient 0 at {starts[0]:g}, so a gate that starts there never changes; "
            "set another gate.init",
        )
    layers = range(1, model.size.layers + 1)
    # Each gate scales exactly the input of a norm.
    scaled_away = model.family.norm != "dyt" and not any(shares)
    places = [pair for n in layers for pair in zip(model.gate_slots(n), model.wiring(n).parts, strict=True)]
    if scaled_away and all(slot == "sum" and part.out_norm is not None for slot, part in places):
        yield Problem(
            ("gate", "site"),
            f"the norm after the sum removes any scale, so a gate at {gate.site} that starts at 0 gets no gradient and "
            "has no effect; use site: home",
        )


def _check_embed(model: Model) -> Iterator[Problem]:
    stages = model.embed.stages
    if len(set(stages)) < len(stages):
        yield Problem(("embed", "stages"), "names a stage twice")
    if "detach" in stages and model.embed.detach_gamma == 1:
        yield Problem(("embed", "detach_gamma"), "1 has no effect; remove the stage 'detach'")
    if "scale" not in stages and model.embed.multiplier is not None:
        yield Problem(
            ("embed", "multiplier"), "has no effect without the stage 'scale'; write embed: {like: scaled, ...}"
        )
    if "scale" in stages and model.embed.multiplier == 1:
        yield Problem(("embed", "multiplier"), "1 has no effect; remove the stage 'scale'")


def _check_init(model: Model) -> Iterator[Problem]:
    init = model.init
    if init.everywhere and init.preset != "xavier":
        yield Problem(("init", "everywhere"), f"is for preset: xavier; {init.preset} has its own std for the embedding")
    if model.family.tied and model.init.zero_last_row:
        yield Problem(
            ("init", "zero_last_row"), "a tied head also trains the last row; remove the setting or write false"
        )


def check_training(model: Model, data: Data, optim: Optim, objective: Objective) -> list[Problem]:
    """Return every rule across network, text, recipe and objective that is broken."""
    own = objective.reserved
    return [
        *_check_data(model, data, own),
        *_check_documents(data, objective),
        *_check_translation(model, data, objective),
        *_check_optim(data, optim, objective),
        *_check_optimizer(model, optim),
        *_check_objective(model, data, objective),
    ]


def _check_objective(model: Model, data: Data, objective: Objective) -> Iterator[Problem]:
    if objective.reserved and model.init.zero_last_row:
        yield Problem(
            ("init", "zero_last_row"),
            f"keeps the last id at zero, which objective {objective.kind} uses; remove the setting or write false",
        )
    if isinstance(objective, Masked) and objective.mask_token and data.tokenizer == "bpe":
        yield Problem(
            ("objective", "mask_token"),
            "a tokenizer that is trained on the text has no mask token; leave the setting out to use the last id",
        )
    for problem in objective.problems_in(data.length):
        yield problem.under("objective")


def _check_data(model: Model, data: Data, own: int) -> Iterator[Problem]:
    """Yield what is wrong with the text. `own`: the number of ids that the objective reserves."""
    if found := data.problems():
        yield from (problem.under("data") for problem in found)
        return
    vocab = model.size.vocab - own
    beside = f", without the {own} that the objective reserves," if own else ""
    if data.source in ("pairs", "hf-pairs") and not both(data.path):
        yield Problem(("data", "path"), f"'{data.path}' does not name both languages, such as train.{{en,de}}")
    if data.source == "pairs" and data.validation and not both(data.validation):
        yield Problem(
            ("data", "validation"), f"'{data.validation}' does not name both languages, such as dev.{{en,de}}"
        )
    if data.source in ("files", "hf") and not data.path:
        yield Problem(("data", "path"), f"is required with source: {data.source}")
    if data.source == "hf-files" and not _HUB_FILES.fullmatch(data.path):
        yield Problem(("data", "path"), f"'{data.path}' is not OWNER/NAME:GLOB, such as {_HUB_FILES_EXAMPLE}")
    if data.source in ("stdlib", "c4", LANGUAGES) and data.path:
        yield Problem(("data", "path"), f"has no effect with source: {data.source}")
    if data.validation and data.source not in ("files", "pairs"):
        yield Problem(("data", "validation"), f"needs source: files; {data.source} has its own validation text")
    if data.malformed == "skip" and data.source not in ("files", "hf", "hf-files"):
        yield Problem(("data", "malformed"), f"has no effect with source: {data.source}")
    if data.validation and data.validation == data.path:
        yield Problem(("data", "validation"), "names the training text; name other files")
    if data.tokenizer == "bpe" and vocab < 260:
        yield Problem(("size", "vocab"), f"{vocab}{beside} is too small for a byte-level BPE; at least 260")
    family = model.family
    if family.positions == "learned" and family.context < data.length:
        yield Problem(("family", "context"), f"{family.context} is shorter than a row of {data.length} tokens")
    title, ids = _IDS.get(data.tokenizer, ("", 0))
    if vocab < ids:
        remedy = f"set size.vocab: {ids + own} or data.tokenizer: bpe"
        remedy += " (unless set, data is c4 and its tokenizer t5)" if data.tokenizer == "t5" else ""
        yield Problem(("size", "vocab"), f"{vocab}{beside} is smaller than {title}; {remedy}")


def _check_documents(data: Data, objective: Objective) -> Iterator[Problem]:
    if data.documents == "separate" and data.layout != "pack":
        yield Problem(("data", "documents"), f"has no effect with layout: {data.layout}: a row is one document already")
    elif data.documents == "separate" and not objective.causal:
        yield Problem(("data", "documents"), f"separate needs objective: causal; this is {objective.kind}")


def _check_translation(model: Model, data: Data, objective: Objective) -> Iterator[Problem]:
    translates = isinstance(objective, Translated)
    if translates != model.family.encoder:
        yield Problem(
            ("objective",),
            "translation needs family: encoder-decoder"
            if translates
            else f"{objective.kind} is not for encoder-decoder; write objective: translation",
        )
    if data.batches == "tokens" and not translates:
        yield Problem(("data", "batches"), "tokens is for objective: translation; remove the setting or write rows")
    if translates != (data.source in PAIR_SOURCES):
        needed = f"translation needs pairs, data.source: {', '.join(PAIR_SOURCES)}"
        other = f"{objective.kind} needs text; the pairs of data.source: {data.source} are for objective: translation"
        yield Problem(("data", "source"), needed if translates else other)
    elif translates and data.layout != "pad":
        yield Problem(("data", "layout"), "translation needs layout: pad, where a row is a pair")
    elif translates and data.tokenizer == "t5":
        yield Problem(("data", "tokenizer"), "t5 has no line end, which separates the sides of a pair; write bpe")


def _check_optim(data: Data, optim: Optim, objective: Objective) -> Iterator[Problem]:
    if optim.warmup >= optim.steps:
        yield Problem(("optim", "warmup"), f"{optim.warmup} is not shorter than the {optim.steps} steps")
    else:
        found = optim.decay_of_rate.problems(optim.warmup, optim.steps, optim.min_ratio)
        yield from (problem.under("optim") for problem in found)
    if optim.stop > optim.steps:
        yield Problem(("optim", "stop"), f"{optim.stop} is after the last of the {optim.steps} steps")
    if 0 < optim.horizon < optim.steps:
        yield Problem(("optim", "horizon"), f"{optim.horizon} is before the last of the {optim.steps} steps")
    elif optim.horizon and not any(part.source in ENDLESS for part in data.parts):
        yield Problem(("optim", "horizon"), f"has no effect with source: {data.source}, all of which is read anyway")
    if optim.mean_rows and optim.batch % optim.mean_rows:
        yield Problem(("optim", "mean_rows"), f"{optim.mean_rows} does not divide the batch of {optim.batch}")
    elif optim.mean_rows and data.layout == "pack" and objective.causal:
        yield Problem(
            ("optim", "mean_rows"), "has no effect with data.layout: pack: all rows have the same number of tokens"
        )


def _check_optimizer(model: Model, optim: Optim) -> Iterator[Problem]:
    """Yield why the rules of `spec.parametrisation`, which are Adam's, do not suit the optimizer."""
    kind = model.parametrisation.kind
    if kind == Parametrisation().kind or optim.optimizer == ADAM.name:
        return
    own = optim.optimizer_settings
    if not isinstance(own, MuonSettings):
        yield Problem(
            ("optim", "optimizer"),
            f"parametrisation: {kind} has no rule for {optim.optimizer}; write optimizer: adam, or muon with "
            "matrix_scale: original",
        )
    elif own.matrix_scale != "original":
        yield Problem(
            ("optim", "matrix_scale"),
            f"parametrisation: {kind} does not support matrix_scale {own.matrix_scale} (its updates grow with the "
            "width); use original",
        )
    elif model.parametrisation.alpha != 1:
        yield Problem(("parametrisation", "alpha"), "other than 1 has no rule for muon; write 1")
