"""A network of gpas_cli as a model of `transformers`, which needs torch and transformers, and not gpas_cli:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

`gpas_cli.model.bundle` makes one file of this module and of all that it needs; gpas_cli itself never imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, get_args, get_type_hints

import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from gpas_cli.model.llama import Llama
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Wiring


@dataclass(frozen=True)
class Exported:
    """A scheme by its result: the wiring of every layer, first layer first."""

    layers: tuple[Wiring, ...]

    title: ClassVar[str] = "exported"
    init_preset: ClassVar[str] = "normal"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return self.layers[layer - 1]


def restore(cls: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass `cls` from JSON data."""
    hints = get_type_hints(cls)
    return cls(**{name: _restored(hints[name], value) for name, value in values.items()})


def _restored(hint: Any, value: Any) -> Any:
    for option in (hint, *get_args(hint)):
        if is_dataclass(option) and isinstance(value, Mapping):
            return restore(option, value)
    return tuple(value) if isinstance(value, list) else value


class GpasConfig(PretrainedConfig):  # type: ignore[misc]
    """`network`: the cell's model part {size, norm, gate, embed, init}; `wiring`: its slots, one mapping per layer."""

    model_type = "gpas"

    def __init__(self, network: Mapping[str, Any] | None = None, wiring: Sequence[Mapping[str, Any]] = (), **rest: Any):
        self.network = dict(network or {})
        self.wiring = list(wiring)
        super().__init__(**rest)

    def to_model(self) -> Model:
        """The specification of the network."""
        scheme = Exported(tuple(restore(Wiring, layer) for layer in self.wiring))
        rest = {"scheme": self.network["norm"]["scheme"], "norm": scheme}
        model: Model = restore(Model, {**self.network, **rest})
        return model


class GpasForCausalLM(PreTrainedModel):  # type: ignore[misc]
    """The language model. It scores text and can be trained further; it has no cache and does not generate."""

    config_class = GpasConfig
    base_model_prefix = "model"

    def __init__(self, config: GpasConfig):
        super().__init__(config)
        network = Llama(config.to_model())
        # The parts become ours, so that parameters keep their names; the tuple keeps the whole out of the state dict.
        for name, part in network.named_children():
            self.add_module(name, part)
        self._network = (network,)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Logits (batch, time, vocab) of `input_ids` (batch, time). With `labels` of that shape, also the mean loss of
        every next token in nats; labels of -100 do not count.

        `attention_mask` may mark padding on the right, which no real token sees. Raises ValueError for any other.
        """
        if attention_mask is not None and bool((attention_mask[:, 1:] > attention_mask[:, :-1]).any()):
            raise ValueError("this network takes padding on the right only: set tokenizer.padding_side = 'right'")
        logits = self._network[0](input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        output = CausalLMOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head
