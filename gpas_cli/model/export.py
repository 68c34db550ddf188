"""Write a network as a folder that `transformers` loads: as plain LLaMA if its weights allow it, else with its code.

config.json             the configuration; for a network with its own code also the wiring of every layer
generation_config.json  the special tokens for `generate`
model.safetensors       the weights under the names of Hugging Face LLaMA; `gpas_cli.model.llama` names all others
modeling_gpas.py        the code of a network that is not plain LLaMA (`trust_remote_code=True`)
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

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
        "torch_dtype": str(network.model.embed_tokens.weight.dtype).removeprefix("torch."),
        **shared,
    }


def _generation(shared: Mapping[str, Any]) -> str:
    """Return generation_config.json: the special tokens for `generate`."""
    return _json({name: value for name, value in shared.items() if name.endswith("_token_id")})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def check_target(folder: Path) -> None:
    """Raise GpasError unless `folder` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GpasError(f"{folder} already exists and is not an empty folder; name a new one")


def write_folder(folder: Path, network: Llama, files: Mapping[str, str]) -> None:
    """Write the weights of `network` and `files`, name -> text, to `folder`, which appears complete or not at all.

    Raises GpasError if the folder exists and is not empty, or cannot be written.
    """
    check_target(folder)
    aside = folder.parent / f".{folder.name}.{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in network.state_dict().items()}
        # transformers refuses files without this metadata.
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner can read
        aside.replace(folder)
    except (OSError, SafetensorError) as error:
        raise GpasError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
