"""The network part of a cell: everything that determines the function and its initial parameters.

size: the shape. Parameter count = 2 V d + L (4 d^2 + 3 d f + norms d) + d, without gates.
embed: the stages after the embedding's lookup (Spike No More, section 4 and appendix).
init: the choice of initialisation, whose rules `gpas_cli.model.init` implements.
family: the parts of a decoder other than the wiring of its norms: LLaMA's (the GPAS experiments), GPT's or BERT's.
parametrisation: how all that depends on width and depth.

At the end stand the two conditions of Spike No More for a stable network at initialisation: a large shortcut, the
stream that enters the first layer with a standard deviation close to 1, and small sub-layers, whose output matrices
start at 1/sqrt(2L) of the others (Table 5). No torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

from gpas_cli.spec.gate import Gate, slot
from gpas_cli.spec.norm import Factor, Norm, Scheme, Wiring
from gpas_cli.spec.parametrisation import AdamFactors, Parametrisation
from gpas_cli.spec.parse import plain, setting
from gpas_cli.structure import Frozen

_NORMS = ("rmsnorm", "layernorm", "dyt")
QK_NORMS = ("none", "head", "width")
FFNS = ("swiglu", "gelu", "relu", "silu")

_PRESETS = ("normal", "scaled", "small", "xavier", "deepnorm", "deepnorm-inverted")
EMBED_STAGES = ("scale", "layernorm", "rmsnorm", "detach")
# In the paper Scaled Embed, at sqrt(2/5) = 0.63, and Embed LN, at 1, have a large shortcut; vanilla has 0.02 to 0.013.
_LARGE = 0.5
_TOO_LARGE = 2.0  # the paper's networks with 5 and 50 are worse than with 1 (Figure 11)
_SMALL_PRESETS = ("scaled", "small")


class Family(Frozen, kw_only=True):
    """The parts of every layer, the positions and the head.

    norm: every norm N of the scheme, and the one before the head: RMSNorm (weight), LayerNorm (weight and bias), or in
    their place `dyt`, w tanh(s x) + b with a learned number s (Zhu et al. 2025).
    ffn: `swiglu` is W_down(silu(W_gate x) * W_up x); the others are W_down(act(W_up x)) (Spike No More, equation 3 and
    appendix E), with `gelu` in the tanh form of GPT-2 and Megatron-LM. positions: `rotary` in every attention, or a
    `learned` table of `context` rows, added to the embedding after its stages. bias: on every projection of attention
    and FFN, never on the head. tied: the head is the embedding table.

    qk_norm: queries and keys are normalised, by the family's norm and before rotary positions: each `head` by itself,
    with one weight for all heads (Dehghani et al. 2023; Qwen3), or the `width` of all heads together (OLMo 2).

    input_norm: the norm N once more on the input of the first layer, after embedding, positions and token types.
    qkv_bias: a bias on queries, keys and values alone (Qwen2).

    token_types: rows of a learned table of token types (segments), 0 for none. Text here has one segment, so that all
    tokens have the first type: the same vector is added to all of them. head_transform: N(gelu(W x)) between the final
    norm and the head, the transform of BERT's head.

    `bert` is the network of Devlin et al. 2018; the scheme decides the place of its norms (`norm: post` in the
    paper, `pre` in Megatron-LM). As with all schemes, a final norm follows the last layer. Its head has no bias. BERT's
    eps is `size: {eps: 1e-12}`, and its dropout, which is a setting of the cell, 0.1.

    `gpt` is the network of Spike No More. The paper names the GPT series and Megatron-LM, shows biases (footnote 2),
    W_1 and W_2, and its 350M network (24 layers of 1024, ffn 4096) has 350M parameters only if head and embedding are
    tied. It does not state the positions; GPT and Megatron-LM learn them. GPT's eps is `size: {eps: 1e-5}`.

    encoder: the first half of the layers is an encoder, whose final states the second half, a decoder, reads by
    cross-attention; for `objective: translation`. `encoder-decoder` is the network of Vaswani et al. 2017, whose
    positions are `sinusoidal`, with one table for the embeddings of both and the head.
    """

    norm: str = setting("rmsnorm", choices=_NORMS, omit_default_from_key=True)
    ffn: str = setting("swiglu", choices=FFNS, omit_default_from_key=True)
    positions: str = setting("rotary", choices=("rotary", "learned", "sinusoidal"), omit_default_from_key=True)
    context: int = setting(2048, low=1, high=1_048_576, omit_default_from_key=True)
    bias: bool = setting(False, omit_default_from_key=True)
    qkv_bias: bool = setting(False, omit_default_from_key=True)
    tied: bool = setting(False, omit_default_from_key=True)
    qk_norm: str = setting("none", choices=QK_NORMS, omit_default_from_key=True)
    input_norm: bool = setting(False, omit_default_from_key=True)
    token_types: int = setting(0, low=0, high=1024, omit_default_from_key=True)
    head_transform: bool = setting(False, omit_default_from_key=True)
    encoder: bool = setting(False, omit_default_from_key=True)

    @property
    def network(self) -> str:
        """Where the class of the network is: "module:class"."""
        return "gpas_cli.model.seq2seq:Translator" if self.encoder else "gpas_cli.model.llama:Llama"

    def row_length(self, tokens: int) -> int:
        """Return how many of `tokens` a network can be given at once: no more than its learned positions."""
        return min(tokens, self.context) if self.positions == "learned" else tokens


_GPT = Family(norm="layernorm", ffn="gelu", positions="learned", bias=True, tied=True)
FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "gpt": _GPT,
    "bert": replace(_GPT, context=512, input_norm=True, token_types=2, head_transform=True),
    "encoder-decoder": replace(_GPT, ffn="relu", positions="sinusoidal", encoder=True),
}


class Init(Frozen, kw_only=True):
    """Initialisation preset and the two free standard deviations.

    normal: N(0, std^2). scaled: normal, with o and down divided by sqrt(2L). small: std sqrt(2/(5d)) and scaled outputs
    (Spike No More). xavier: Xavier normal. deepnorm: Xavier, gain (8L)^(-1/4) on v, o, gate, up, down.
    deepnorm-inverted: the same with (8L)^(1/4), as in the code of Mix-LN and The Curse of Depth.
    `embed_std` defaults to sqrt(2/5), the "Scaled Embed" of the GPAS experiments: with it every preset has a large
    shortcut, `small` too. The vanilla of Spike No More needs a tied head, as `gpt` has, or `embed_std: sqrt(2/(5d))`.
    `everywhere`: Xavier for embedding, head and learned positions as well, as in Spike No More. `zero_last_row`: keep
    vocabulary row V-1 at zero without gradient, like the reference, whose padding index is -1. It defaults to false if
    the text or the objective may have that id, and with a head tied to the embedding: a row of text that begins with it
    would be exactly 0, where each norm multiplies gradients by 1/sqrt(eps). With a tied head, `embed_std` defaults to
    the std of the matrices. Learned positions start like the matrices, with `std` in xavier and deepnorm*; biases start
    at 0.
    """

    preset: str = setting("normal", choices=_PRESETS)
    std: float = setting(0.02, above=0, high=10)
    embed_std: float = setting(math.sqrt(0.4), above=0, high=100)
    zero_last_row: bool = setting(True)
    everywhere: bool = setting(False, omit_default_from_key=True)

    @property
    def unread(self) -> tuple[str, ...]:
        """The standard deviations that have no effect with this preset."""
        if self.everywhere and self.preset == "xavier":
            return ("std", "embed_std")
        return ("std",) if self.preset == "small" else ()


def small_std(hidden: int) -> float:
    """Return sqrt(2/(5d)), the standard deviation of the preset `small` (Spike No More)."""
    return math.sqrt(2 / (5 * hidden))


def usual_embed_std(preset: str, std: float, hidden: int, *, tied: bool) -> float:
    """Return the default of `embed_std`: the matrices' if the embedding is also the head, else sqrt(2/5)."""
    if not tied:
        return Init().embed_std
    return small_std(hidden) if preset == "small" else std


class Embed(Frozen, kw_only=True):
    """Stages in order: `scale` by `multiplier`, `layernorm` or `rmsnorm`, `detach` to gamma E + (1 - gamma) sg(E).

    multiplier: by default sqrt(d), as in Scaled Embed. Figure 11 has embeddings with standard deviation 5 and 50.
    """

    stages: tuple[str, ...] = setting((), choices=EMBED_STAGES)
    detach_gamma: float = setting(0.1, low=0, high=1)
    multiplier: float | None = setting(None, above=0, high=1e6, omit_default_from_key=True)

    def factor(self, hidden: int) -> float:
        """Return the factor of the stage `scale` for embeddings of `hidden` features."""
        return math.sqrt(hidden) if self.multiplier is None else self.multiplier


EMBEDS: dict[str, Embed] = {
    "plain": Embed(),
    "scaled": Embed(stages=("scale",)),
    "layernorm": Embed(stages=("layernorm",)),
    "rmsnorm": Embed(stages=("rmsnorm",)),
    "detach": Embed(stages=("detach",)),
}


class Size(Frozen, kw_only=True):
    """Shape of a LLaMA-style decoder: no biases, SwiGLU, rotary positions, untied head.

    decoder_layers: how many of the `layers` a decoder beside an encoder has, by default half of them.

    kv_heads: heads of keys and values, each for heads / kv_heads heads of queries in a row (grouped-query attention,
    Ainslie et al. 2023); by default as many as `heads`. head_dim: the features of a head, by default hidden / heads
    (Qwen3 has others). rope_factor: by how much rotary positions are slowed down: all
    of them (Chen et al. 2023), or, with rope_context, the context before, those that turn less than `rope_low` times in
    it, none of those that turn more than `rope_high` times, and the others in between (Llama 3.1).
    """

    hidden: int = setting(low=2, high=65_536)
    ffn: int = setting(low=1, high=262_144)
    heads: int = setting(low=1, high=1024)
    layers: int = setting(low=1, high=1024)
    vocab: int = setting(32_000, low=8, high=10_000_000)
    eps: float = setting(1e-6, above=0, high=0.1)
    rope_theta: float = setting(10_000.0, above=0)
    decoder_layers: int | None = setting(None, low=1, high=1024, omit_default_from_key=True)
    kv_heads: int | None = setting(None, low=1, high=1024, omit_default_from_key=True)
    head_dim: int | None = setting(None, low=1, high=65_536, omit_default_from_key=True)
    rope_factor: float = setting(1.0, low=1, high=1024, omit_default_from_key=True)
    rope_context: int = setting(0, low=0, high=1_048_576, omit_default_from_key=True)
    rope_low: float = setting(1.0, above=0, omit_default_from_key=True)
    rope_high: float = setting(4.0, above=0, omit_default_from_key=True)

    @property
    def head_width(self) -> int:
        """The features of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def q_hidden(self) -> int:
        """The features of queries, and of what attention returns, in all heads."""
        return self.head_width * self.heads

    @property
    def kv_hidden(self) -> int:
        """The features of keys, and of values, in all their heads."""
        return self.head_width * (self.kv_heads or self.heads)


def _size(hidden: int, ffn: int, heads: int, layers: int, vocab: int = 32_000, eps: float = 1e-6) -> Size:
    return Size(hidden=hidden, ffn=ffn, heads=heads, layers=layers, vocab=vocab, eps=eps)


SIZES: dict[str, Size] = {
    "9m": _size(128, 352, 4, 4),
    "20m": _size(256, 688, 4, 4),
    "35m": _size(384, 1024, 8, 6),
    "40m": _size(416, 1024, 8, 8),
    "60m": _size(512, 1376, 8, 8),
    "71m": _size(512, 1368, 8, 12),
    "100m": _size(640, 1708, 10, 12, vocab=32_100),
    "130m": _size(768, 2048, 12, 12),
    "250m": _size(768, 2560, 16, 24),
    "350m": _size(1024, 2736, 16, 24),
    "1b": _size(2048, 5461, 32, 24),
    "3b": _size(2560, 6848, 32, 32),
    "7b": _size(4096, 11008, 32, 32),
    "bert-base": _size(768, 3072, 12, 12, vocab=30_522, eps=1e-12),
    "bert-large": _size(1024, 4096, 16, 24, vocab=30_522, eps=1e-12),
    # RaPTr states 1.6B parameters and 24 layers. The vocabulary is T5's, which has 100 ids for sentinels.
    "ul2": _size(2048, 7168, 16, 24, vocab=32_128),
    "quickstart": _size(32, 88, 2, 12, vocab=512),
}

# Rows of a validation batch in the published scripts, over all their GPUs. The published average is sum / (n + 1), so
# the number of batches n decides by how much it is too low.
_REFERENCE_ROWS = {
    SIZES[name]: rows for name, rows in {"71m": 256, "130m": 256, "250m": 256, "350m": 512, "1b": 128, "7b": 32}.items()
}


def usual_validation_rows(size: Size, batch: int) -> int:
    """Return the rows of a validation batch: the reference's for its sizes, else as many as a training batch has."""
    return _REFERENCE_ROWS.get(size, batch)


class Model(Frozen, kw_only=True):
    """A decoder: shape, normalisation scheme, gate, embedding, initialisation, family and parametrisation."""

    size: Size
    scheme: str
    norm: Scheme
    gate: Gate | None
    embed: Embed
    init: Init
    family: Family = field(default_factory=Family)
    parametrisation: Parametrisation = field(default_factory=Parametrisation)

    def wiring(self, layer: int) -> Wiring:
        """Return the wiring of layer `layer` = 1..layers."""
        if self.family.encoder:
            return self.norm.wiring_beside(layer, self.encoder_layers, self.decoder_layers)
        own, how, depth = self.norm.wiring(layer, self.size.layers), self.parametrisation, self.size.layers
        if how.depth(depth) == 1:
            return own
        base = self.norm.wiring(how.base_layer(layer, depth), how.base_layers)
        # Mix-LN may have a Pre-LN layer in one and a Post-LN layer in the other; neither has constants.
        found = base if _slots(base) == _slots(own) else own
        return _with_branches(found, how.branch(depth))

    @property
    def shares_values(self) -> bool:
        """Whether a layer's attention reads the values of layer 1."""
        return any(self.wiring(layer).first_value != 0 for layer in range(2, self.size.layers + 1))

    @property
    def joined_layers(self) -> str:
        """Why no layer can be removed from the network, "" if each can."""
        values = f"layers of norm: {self.scheme} read the values of layer 1, so none is removed alone"
        return values if self.shares_values else ""

    @property
    def base_hidden(self) -> int:
        """The width whose initial values and embedding the parametrisation keeps; without one the network's."""
        return self.parametrisation.base_hidden or self.size.hidden

    @property
    def base_layers(self) -> int:
        """The depth whose initial values the parametrisation keeps; without one the network's."""
        return self.parametrisation.base_layers or self.decoder_layers

    @property
    def encoder_layers(self) -> int:
        """The layers of the encoder, which are the first ones, 0 without one."""
        return self.size.layers - (self.size.decoder_layers or self.size.layers // 2) if self.family.encoder else 0

    @property
    def decoder_layers(self) -> int:
        """The layers of the decoder."""
        return self.size.layers - self.encoder_layers

    @property
    def head_norm(self) -> Norm:
        """The norm whose output the head multiplies, with the multiplier 1/m of the logits (`spec.parametrisation`)."""
        return Norm(scale=1 / self.parametrisation.width(self.size.hidden))

    @property
    def query_factor(self) -> float:
        """The factor of attention's queries."""
        return self.parametrisation.query(self.size.hidden, self.size.heads)

    def adam_factors(self, name: str, shape: tuple[int, ...]) -> AdamFactors:
        """Return the factors of the recipe for the parameter `name` of `gpas_cli.model.llama`."""
        layer = int(name.partition(".layers.")[2].partition(".")[0] or 0) + 1
        slots = self.gate_slots(layer)
        slot = slots["mlp_gate" in name]
        return self.parametrisation.adam(name, shape, self.size.hidden, self.size.layers, slot)

    def gate_slots(self, layer: int) -> tuple[str, str] | tuple[None, None]:
        """Return the slots of the residual formula that have the gate in attention and in the feed-forward network of
        layer `layer`, None without a gate."""
        if self.gate is None:
            return None, None
        attention, ffn = (slot(part, self.gate.site) for part in self.wiring(layer).parts)
        return attention, ffn

    def to_mapping(self, *, for_key: bool = False) -> dict[str, Any]:
        """Return the sections as JSON-ready data, which `parse_model` turns into an equal model."""
        return dict(self._for_key) if for_key else self._mapping(for_key=False)

    @cached_property
    def _for_key(self) -> dict[str, Any]:
        return self._mapping(for_key=True)

    def _mapping(self, *, for_key: bool) -> dict[str, Any]:
        parts = {name: plain(getattr(self, name), for_key=for_key) for name in ("size", "gate", "embed", "init")}
        family = plain(self.family, for_key=for_key)
        # Keys were published before families existed: they omit LLaMA's, whose fields all have their defaults.
        rest = {"family": family} if family or not for_key else {}
        if self.parametrisation != Parametrisation():
            rest["parametrisation"] = plain(self.parametrisation)
        return {**parts, "norm": self._norm(for_key), **rest}

    def _norm(self, for_key: bool) -> dict[str, Any]:
        if self.norm.origin is None:
            scheme = (self.norm.same_as if for_key else "") or self.scheme
            return {"scheme": scheme, **plain(self.norm, for_key=for_key)}
        # The text and the fields of a plugin scheme may change without changing the network; its wiring decides.
        named = {"scheme": "plugin"} if for_key else {"scheme": self.scheme, **plain(self.norm)}
        return {**named, "wiring": self.wiring_digest}

    @property
    def wiring_digest(self) -> str:
        """A hash of the wiring of all layers: 16 hexadecimal digits."""
        layers = [_non_defaults(self.wiring(layer)) for layer in range(1, self.size.layers + 1)]
        return hashlib.sha256(json.dumps(layers, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _slots(wiring: Wiring) -> tuple[object, ...]:
    own = *(norm is None for norm in wiring.norms), wiring.home, wiring.bottom, wiring.first_value == 0, wiring.qkv_norm
    return own, wiring.ffn and _slots(wiring.ffn)


def _with_branches(wiring: Wiring, scale: float) -> Wiring:
    ffn, branch = wiring.ffn and _with_branches(wiring.ffn, scale), wiring.branch
    scaled = replace(branch, scale=scale) if isinstance(branch, Factor) else scale * branch
    return replace(wiring, branch=scaled, ffn=ffn)


def _non_defaults(part: Wiring | Norm | Factor) -> dict[str, Any]:
    """Return the fields that differ from their defaults, so that new fields do not change old digests."""
    values = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) != f.default}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Wiring | Norm | Factor):
        return _non_defaults(value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _embedding_std(model: Model) -> float:
    """Return the standard deviation of the embedding table's elements at initialisation."""
    return _xavier(model.size.vocab, model.base_hidden) if model.init.everywhere else model.init.embed_std


def shortcut_std(model: Model) -> float:
    """Return the standard deviation of the stream that enters the first layer, after the stages and with positions."""
    if model.family.input_norm:
        return 1.0
    std = _embedding_std(model)
    for stage in model.embed.stages:
        if stage == "scale":
            std *= model.embed.factor(model.base_hidden)
        elif stage in ("layernorm", "rmsnorm"):
            std = 1.0
    return math.hypot(std, _positions_std(model))


def has_large_shortcut(model: Model) -> bool:
    """Return whether the stream starts with a standard deviation of about 1, or more."""
    return shortcut_std(model) >= _LARGE


def has_small_sublayers(model: Model) -> bool:
    """Return whether the initialisation scales the output matrices of sub-layers by 1/sqrt(2L)."""
    return model.init.preset in _SMALL_PRESETS


def conditions(model: Model) -> str:
    """Return both conditions in words: "stream starts at std 0.632 (large shortcut), ..."."""
    shortcut = "large" if has_large_shortcut(model) else "small"
    sublayers = "small sub-layers" if has_small_sublayers(model) else "sub-layers not scaled by 1/sqrt(2L)"
    return f"stream starts at std {shortcut_std(model):.3g} ({shortcut} shortcut), {sublayers}"


def remark(model: Model) -> str:
    """Return how the shortcut differs from what the names of the settings suggest, "" if it does not."""
    std = shortcut_std(model)
    if "scale" in model.embed.stages and model.embed.multiplier is None and std > _TOO_LARGE:
        return (
            f"embed: scaled multiplies an embedding of std {_embedding_std(model):.3g}, so the stream starts at "
            f"{std:.3g}; Scaled Embed of Spike No More starts at 0.632: set init.embed_std or embed.multiplier"
        )
    if model.init.preset == "small" and model.embed.stages in ((), ("detach",)) and std >= _LARGE:
        small = small_std(model.base_hidden)
        return (
            f"init: small starts the embedding at std {_embedding_std(model):.3g}, a large shortcut; the vanilla of "
            f"Spike No More starts at sqrt(2/(5d)) = {small:.3g}: set init.embed_std or use family: gpt"
        )
    return ""


def _positions_std(model: Model) -> float:
    if model.family.positions != "learned":
        return math.sqrt(0.5) if model.family.positions == "sinusoidal" else 0.0
    if model.init.everywhere:
        return _xavier(model.family.context, model.base_hidden)
    return small_std(model.base_hidden) if model.init.preset == "small" else model.init.std


def _xavier(rows: int, columns: int) -> float:
    return math.sqrt(2 / (rows + columns))
