"""The networks of the golden files: which cell a file's name means, and its parameters by the filling rule."""

import re
from pathlib import Path

import numpy as np
import torch
from canonical_names import canonical_name
from golden_inputs import value

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.model import Model
from gpas_cli.spec.parse_cell import parse_model

GOLDEN = Path(__file__).parent / "golden"
SCHEMES = {
    "pre": "pre", "post": "post", "deeppost": "deepnorm", "sandwich": "sandwich", "post_pre": "mix", "lns": "lns",
}  # fmt: skip
ACTIVATIONS = {"scale_silu": "silu-beta-8", "leaky_relu": "leaky-relu"}
EMBEDS = {"embed_ln_rms": "rmsnorm", "embed_ln": "layernorm", "embed_scaled": "scaled", "embed_detach": "detach"}


def gate_of(name: str) -> dict | None:
    if "_gpas" not in name:
        return None
    gate: dict = {"like": "gpas", "init": 0.1}
    if match := re.search(r"_act_(\w+)", name):
        gate["activation"] = ACTIVATIONS.get(match[1], match[1])
    if match := re.search(r"_pos_(\w+)", name):
        gate["site"] = match[1].replace("_", "-")
    return {**gate, "stop_gradient": "nosg" not in name, "learnable": "predefined" not in name}


def model_of(name: str) -> Model:
    """Return the model part of a cell for a golden file's name."""
    base = re.match(r"deeppost|post_pre|post|pre|sandwich|lns", name)[0]
    norm = {"scheme": "lns", "apply": "scale" if "const" in name else "init"} if base == "lns" else SCHEMES[base]
    embed = next((word for tag, word in EMBEDS.items() if tag in name), "plain")
    size = {"hidden": 32, "ffn": 88, "heads": 4, "layers": 4, "vocab": 97}
    return parse_model({"size": size, "norm": norm, "gate": gate_of(name), "embed": embed})


def filled(name: str, dtype: torch.dtype, *, zero_gates: bool = False) -> Llama:
    """Return the network of a golden file with its parameters set by the filling rule."""
    network = build(model_of(name), dtype=dtype)
    for key, tensor in network.state_dict().items():
        lns = name.startswith("lns") and "const" not in name
        tensor.copy_(torch.from_numpy(value(canonical_name(key), tuple(tensor.shape), lns=lns, zero_gates=zero_gates)))
    return network


def close(ours: object, golden: object, tolerance: float, scale: float = 1e-3) -> None:
    # Sums that cancel to nearly nothing are compared on this scale.
    floor = tolerance * max(float(np.max(np.abs(golden))), scale)
    np.testing.assert_allclose(ours, golden, rtol=tolerance, atol=floor)
