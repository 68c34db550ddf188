"""Write a network as a folder that `transformers` loads: as plain LLaMA if its weights allow it, else with its code.

A network with an encoder is written as Pegasus (Zhang et al. 2020): Pre-LN with a norm after each stack, sinusoidal
positions and a tied head.

config.json             the configuration; for a network with its own code also the wiring of every layer
generation_config.json  the special tokens for `generate`
model.safetensors       the weights under the names of Hugging Face LLaMA; `gpas_cli.model.llama` names all others
modeling_gpas.py        the code of a network that is not plain LLaMA (`trust_remote_code=True`)
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from gpas_cli.errors import GpasError
from gpas_cli.model.bundle import Bundle
from gpas_cli.model.llama import Llama
from gpas_cli.spec.parse import plain

CODE = "modeling_gpas"
CLASS = "GpasForCausalLM"


def llama_files(network: Llama, shared: Mapping[str, Any]) -> dict[str, str]:
    """Return the text files beside the weights of `network`, a plain LLaMA such as `fold.fold` makes: name -> text.

    LLaMA with queries and keys normalised by head is Qwen3.
    """
    size = network.spec.size
    qwen = network.spec.family.qk_norm == "head"
    config = {
        "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen else "llama",
        "intermediate_size": size.ffn,
        "num_key_value_heads": size.heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": size.eps,
        "rope_theta": size.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        **_common(network, shared),
    }
    return {"config.json": _json(config), "generation_config.json": _generation(shared)}


def pegasus_files(network: Llama, shared: Mapping[str, Any]) -> dict[str, str]:
    """Return the text files beside the weights of `network`, a Pre-LN encoder and decoder such as `fold.fold` makes."""
    size, spec = network.spec.size, network.spec
    each = {"attention_heads": size.heads, "ffn_dim": size.ffn}
    config = {
        "architectures": ["PegasusForConditionalGeneration"],
        "model_type": "pegasus",
        "is_encoder_decoder": True,
        "d_model": size.hidden,
        "encoder_layers": spec.encoder_layers,
        "decoder_layers": spec.decoder_layers,
        **{f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in each.items()},
        "activation_function": "relu",
        "scale_embedding": bool(spec.embed.stages),
        "forced_eos_token_id": None,
        "vocab_size": size.vocab,
        "torch_dtype": _dtype(network),
        **shared,
    }
    return {"config.json": _json(config), "generation_config.json": _generation(shared)}


# The names of modules here -> those of Pegasus.
_PEGASUS = {
    "embed_tokens": "shared", "encoder_norm": "encoder.layer_norm", "norm": "decoder.layer_norm", "o_proj": "out_proj",
    "input_layernorm": "self_attn_layer_norm", "post_attention_layernorm": "final_layer_norm", "mlp.up_proj": "fc1",
    "mlp.down_proj": "fc2", "cross_attn": "encoder_attn", "cross_layernorm": "encoder_attn_layer_norm",
}  # fmt: skip


def pegasus_weights(network: Llama, positions: int) -> dict[str, Tensor]:
    """Return the weights of such a network under the names of Pegasus, with a table of its first `positions`."""
    decoder, first = network.model, network.spec.encoder_layers
    assert decoder.embed_positions is not None
    table = decoder.embed_positions(decoder.embed_tokens.weight.new_zeros(1, positions, network.spec.size.hidden))[0]
    found = {f"model.{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    for name, weight in network.state_dict().items():
        for own, other in _PEGASUS.items():
            name = re.sub(rf"(?<=\.){re.escape(own)}(?=\.)", other, name)
        if place := re.match(r"model\.layers\.(\d+)", name):
            number = int(place[1])
            stack = f"encoder.layers.{number}" if number < first else f"decoder.layers.{number - first}"
            name = f"model.{stack}{name[place.end() :]}"
        found[name] = weight
    return found


def bundled_files(network: Llama, shared: Mapping[str, Any]) -> dict[str, str]:
    """Return the text files beside the weights of any network, with its specification and code: name -> text."""
    model = network.spec
    config = {
        "architectures": [CLASS],
        "model_type": "gpas",
        "auto_map": {"AutoConfig": f"{CODE}.GpasConfig", "AutoModelForCausalLM": f"{CODE}.{CLASS}"},
        **_common(network, shared),
        # The wiring has the constants of the depth.
        "network": replace(model, parametrisation=replace(model.parametrisation, base_layers=0)).to_mapping(),
        "wiring": [plain(model.wiring(layer)) for layer in range(1, model.size.layers + 1)],
    }
    return {
        "config.json": _json(config),
        "generation_config.json": _generation(shared),
        f"{CODE}.py": Bundle("gpas_cli.model.remote").text(),
    }


def _common(network: Llama, shared: Mapping[str, Any]) -> dict[str, Any]:
    size = network.spec.size
    return {
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "tie_word_embeddings": False,
        "torch_dtype": _dtype(network),
        **shared,
    }


def _dtype(network: Llama) -> str:
    return str(network.model.embed_tokens.weight.dtype).removeprefix("torch.")


def _generation(shared: Mapping[str, Any]) -> str:
    """Return generation_config.json: the special tokens for `generate`."""
    return _json({name: value for name, value in shared.items() if name.endswith("_token_id")})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def check_target(folder: Path) -> None:
    """Raise GpasError unless `folder` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GpasError(f"{folder} already exists and is not an empty folder; name a new one")


def write_folder(folder: Path, weights: Mapping[str, Tensor], files: Mapping[str, str]) -> None:
    """Write the weights and `files`, name -> text, to `folder`, which appears complete or not at all.

    Raises GpasError if the folder exists and is not empty, or cannot be written.
    """
    check_target(folder)
    aside = folder.parent / f".{folder.name}.{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
        # transformers refuses files without this metadata.
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner can read
        aside.replace(folder)
    except (OSError, SafetensorError) as error:
        raise GpasError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
