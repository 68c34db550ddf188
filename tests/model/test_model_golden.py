"""Every architecture against the reference outputs: loss, logits, hidden states, the gradient of every parameter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden_inputs import forward_case, probe, value

from gpas_cli.model.llama import Llama, build
from gpas_cli.model.names import canonical_name, canonical_parameters
from gpas_cli.spec.cell import parse_model
from gpas_cli.spec.model import Model

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMES = {
    "pre": "pre",
    "post": "post",
    "deeppost": "deepnorm",
    "sandwich": "sandwich",
    "post_pre": "mix",
    "lns": "lns",
}
ACTIVATIONS = {"scale_silu": "silu-beta-8", "leaky_relu": "leaky-relu"}
EMBEDS = {"embed_ln_rms": "rmsnorm", "embed_ln": "layernorm", "embed_scaled": "scaled", "embed_detach": "detach"}
FORWARD = sorted(
    path.stem for path in GOLDEN.glob("*.json") if re.match(r"(?!train_|init_stats|lr_schedule)", path.stem)
)


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
    """The model part of a cell for a golden file's name."""
    base = re.match(r"deeppost|post_pre|post|pre|sandwich|lns", name)[0]
    norm = {"scheme": "lns", "apply": "scale" if "const" in name else "init"} if base == "lns" else SCHEMES[base]
    embed = next((word for tag, word in EMBEDS.items() if tag in name), "plain")
    size = {"hidden": 32, "ffn": 88, "heads": 4, "layers": 4, "vocab": 97}
    return parse_model({"size": size, "norm": norm, "gate": gate_of(name), "embed": embed})


def filled(name: str, dtype: torch.dtype, *, zero_gates: bool = False) -> Llama:
    """The network of a golden file with its parameters set by the filling rule."""
    network = build(model_of(name), dtype=dtype)
    for key, tensor in network.state_dict().items():
        lns = name.startswith("lns") and "const" not in name
        tensor.copy_(torch.from_numpy(value(canonical_name(key), tuple(tensor.shape), lns=lns, zero_gates=zero_gates)))
    return network


def language_loss(network: Llama, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(ids)
    logits = network(tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0), logits


def close(ours: object, golden: object, tolerance: float) -> None:
    # Sums that cancel to nearly nothing are compared on the scale of 1e-3.
    floor = tolerance * max(float(np.max(np.abs(golden))), 1e-3)
    np.testing.assert_allclose(ours, golden, rtol=tolerance, atol=floor)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("case", ["plain", "padded"])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_and_gradients(name: str, case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())["cases"][case]
    network, hidden = filled(name, dtype), []
    for layer in network.model.layers:
        layer.register_forward_pre_hook(lambda _, args: hidden.append(args[0].detach().double()))
    network.model.norm.register_forward_hook(lambda _, __, out: hidden.append(out.detach().double()))
    loss, logits = language_loss(network, forward_case(case))
    loss.backward()
    flat = logits.detach().double().numpy()
    close(loss.item(), golden["loss"], tolerance)
    close(np.linalg.norm(flat), golden["logits"]["l2"], tolerance)
    close([flat.sum(), probe(flat)], [golden["logits"]["sum"], golden["logits"]["probe"]], 10 * tolerance)
    close([h.norm().item() for h in hidden], golden["hidden_l2"], tolerance)
    close([probe(h) for h in hidden], golden["hidden_probe"], 10 * tolerance)
    compare_gradients(network, golden, tolerance)


def compare_gradients(network: Llama, golden: dict, tolerance: float) -> None:
    gradients = {name: p.grad.double().numpy() for name, p in canonical_parameters(network).items()}
    assert set(golden["grads"]) - set(gradients) <= {name for name in golden["grads"] if name.endswith(".gate")}
    for name, gradient in gradients.items():
        if name in golden["grads"]:
            close(np.linalg.norm(gradient), golden["grads"][name]["l2"], tolerance)
            close(probe(gradient), golden["grads"][name]["probe"], 10 * tolerance)
    gates = [gradient.item() for name, gradient in gradients.items() if name.endswith(".gate") and "mlp" not in name]
    if gates:
        close(gates, golden["gate_grads"], 10 * tolerance)
    close(np.sqrt(sum((g**2).sum() for g in gradients.values())), golden["total_grad_l2"], tolerance)
