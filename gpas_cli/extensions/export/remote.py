"""A network of gpas_cli as a `transformers` model. It needs torch and transformers, but not gpas_cli:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

The model scores text, generates with a cache of keys and values, and can be trained further, with transformers 4.45 or
newer. `gpas_cli.extensions.export.files` bundles this module and its definitions into one file; gpas_cli itself never
imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from gpas_cli.model.attention import Attention, FirstValues, Positions
from gpas_cli.model.llama import Llama
from gpas_cli.model.rope import rotate
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Wiring
from gpas_cli.structure import Frozen

_ROPE_STEP = 256  # number of positions by which the rotary tables grow during generation


class _FixedWiring(Frozen):
    """A scheme given by the wiring of every layer, first layer first, instead of by a rule."""

    layers: tuple[Wiring, ...]

    title: ClassVar[str] = "exported"
    init_preset: ClassVar[str] = "normal"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return self.layers[layer - 1]


def restore(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of the dataclass `cls` from JSON data."""
    hints = get_type_hints(cls)
    return cls(**{name: _restored(hints[name], value) for name, value in values.items()})


def _restored(hint: Any, value: Any) -> Any:
    for option in (hint, *get_args(hint)):
        if is_dataclass(option) and isinstance(value, Mapping):
            return restore(option, value)
    return tuple(value) if isinstance(value, list) else value


class GpasConfig(PretrainedConfig):  # type: ignore[misc]
    """`network`: the model part of the cell {size, norm, gate, embed, init}; `wiring`: slots by layer."""

    model_type = "gpas"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        network: Mapping[str, Any] | None = None,
        wiring: Sequence[Mapping[str, Any]] = (),
        use_cache: bool = True,
        **rest: Any,
    ):
        self.network = dict(network or {})
        self.wiring = list(wiring)
        self.use_cache = use_cache
        super().__init__(**rest)

    def to_model(self) -> Model:
        """Return the specification of the network."""
        scheme = _FixedWiring(tuple(restore(Wiring, layer) for layer in self.wiring))
        rest = {"scheme": self.network["norm"]["scheme"], "norm": scheme}
        model: Model = restore(Model, {**self.network, **rest})
        return model


class _CachedPositions(Positions, kw_only=True):
    """The positions of new tokens after those in a cache."""

    slots: Tensor  # their positions in the cache: (new,), int64
    real: Tensor | None = None
    """False at padding: (batch, all), bool; None if there is no padding, or only on the right, where causal attention
    ignores it."""
    cache: Any = None  # a transformers cache with the keys and values of the tokens before them, or None

    def mask(self, width: int) -> Tensor | None:
        """Return which of `width` keys each new token sees, bool, (batch or 1, 1, new, width); None: causal order."""
        if self.real is None and width == len(self.slots):
            return None
        keys = torch.arange(width, device=self.slots.device)
        seen = keys <= self.slots[:, None]
        if self.real is None:
            return seen[None, None]
        real = F.pad(self.real, (0, width - self.real.shape[1]))[:, None, None]
        # Padding sees itself: a softmax over nothing would be NaN.
        return (seen & real) | (keys == self.slots[:, None])


class _CachedAttention(Attention):
    """Attention over the tokens of this and of earlier calls. `layer` counts from 0."""

    def __init__(self, model: Model, layer: int):
        super().__init__(model, layer + 1)
        self.layer = layer

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """x: (batch, new, hidden) -> same shape."""
        assert isinstance(positions, _CachedPositions)
        assert positions.tables is not None
        q, k, v = self.projected(x, None, positions.first)
        q = rotate(q, positions.tables)
        k = rotate(k, positions.tables)
        if positions.cache is not None:
            k, v = positions.cache.update(k, v, self.layer)
        mask = positions.mask(k.shape[2])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GpasForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The language model with its head."""

    config_class = GpasConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_cache_class = True  # without it, `generate` of transformers 4 uses no cache
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, config: GpasConfig):
        super().__init__(config)
        network = Llama(config.to_model())
        assert network.lm_head is not None  # networks with a tied head are not exported
        for number, layer in enumerate(network.model.blocks()):
            layer.self_attn = _CachedAttention(network.spec, number)
        self.model = network.model
        self.lm_head = network.lm_head
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
    ) -> Any:
        """Return the logits (batch, time, vocab) of `input_ids` (batch, time), or only for the last
        `logits_to_keep` tokens if that is not 0. With `labels` of the same shape, also the mean loss of every next
        token in nats; labels of -100 are ignored.

        `attention_mask`, (batch, time before + time), is 0 at padding on either side. `past_key_values` has the keys
        and values of earlier tokens; `use_cache` (default: as in the config) adds the keys and values of `input_ids`.
        Raises ValueError for a mask of another shape, and for `output_attentions`, which is not supported.
        """
        if output_attentions:
            raise ValueError("output_attentions is not supported: this network never computes attention weights")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        cache = past_key_values if past_key_values is not None or not use_cache else DynamicCache()
        states = self._states(input_ids, attention_mask, cache)
        logits = self.lm_head(states[-1][:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        hidden = tuple(states) if output_hidden_states else None
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, hidden_states=hidden)
        return output.to_tuple() if return_dict is False else output

    def _states(self, tokens: Tensor, attention_mask: Tensor | None, cache: Any) -> list[Tensor]:
        """Return the stream (batch, time, hidden) before each layer, and after the last layer and the final norm."""
        x = self.model.embed_stages(self.model.embed_tokens(tokens))
        before = int(cache.get_seq_length()) if cache is not None else 0
        positions = self._positions(x, before, attention_mask, cache)
        states = [x]
        for layer in self.model.blocks():
            x = layer(x, positions)
            states.append(x)
        states[-1] = self.model.norm(states[-1])
        return states

    def _positions(self, x: Tensor, before: int, attention_mask: Tensor | None, cache: Any) -> _CachedPositions:
        rows, new = x.shape[:2]
        everything, first = before + new, FirstValues()
        slots = torch.arange(before, everything, device=x.device)
        assert self.model.rope is not None
        tables = self.model.rope(-(-everything // _ROPE_STEP) * _ROPE_STEP, x.device, x.dtype)
        if attention_mask is None:
            return _CachedPositions(tables=_at(tables, slots), slots=slots, cache=cache, first=first)
        if tuple(attention_mask.shape) != (rows, everything):
            shape = tuple(attention_mask.shape)
            raise ValueError(f"attention_mask has shape {shape}; this call needs {(rows, everything)}")
        real = attention_mask.bool()
        if before == 0 and not bool((real[:, 1:] & ~real[:, :-1]).any()):  # padding on the right
            return _CachedPositions(tables=_at(tables, slots), slots=slots, cache=cache, first=first)
        # Padding on the left takes no positions: a row has the same positions as without padding.
        indices = (real.long().cumsum(1) - 1).clamp(min=0)[:, before:]
        return _CachedPositions(tables=_at(tables, indices), slots=slots, real=real, cache=cache, first=first)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **_rest: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step of `generate`: the tokens not yet in the cache."""
        before = int(past_key_values.get_seq_length()) if past_key_values is not None else 0
        new = next_sequence_length or (input_ids.shape[1] - before)
        return {
            "input_ids": input_ids[:, -new:],
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
        }

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head


def _at(tables: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of cos and sin at `indices`, (new,) or (batch, new), for (batch, heads, new, head_dim)."""
    cos, sin = (table[indices] for table in tables)
    return (cos, sin) if indices.ndim == 1 else (cos[:, None], sin[:, None])
