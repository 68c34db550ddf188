"""Short names of parameters, the same for every scheme, as the golden files use them."""

from pathlib import Path

import yaml
from torch import nn

_LAYER_NAMES, _NAMES = yaml.safe_load((Path(__file__).parent / "golden/canonical_names.yaml").read_text()).values()


def canonical_name(name: str) -> str:
    """Return `layers.0.attn.q` for `model.layers.0.self_attn.q_proj.weight`, and `layers.0.attn.q_bias` for its bias;
    layers count from 0, as in the state dict."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    if rest.endswith((".bias", ".slope")):
        module, _, part = rest.rpartition(".")
        return f"layers.{layer}.{_LAYER_NAMES[f'{module}.weight']}_{part}"
    return f"layers.{layer}.{_LAYER_NAMES[rest]}"


def canonical_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter of a network under its canonical name."""
    return {canonical_name(name): parameter for name, parameter in network.named_parameters()}
