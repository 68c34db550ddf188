"""Every architecture against the reference outputs: loss, logits, hidden states, the gradient of every parameter."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from canonical_names import canonical_parameters
from golden_inputs import forward_case, probe
from golden_networks import GOLDEN, close, filled

from gpas_cli.model.llama import Llama

FORWARD = sorted(
    path.stem for path in GOLDEN.glob("*.json") if re.match(r"(?!train_|init_stats|lr_schedule)", path.stem)
)


def language_loss(network: Llama, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(ids)
    logits = network(tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0), logits


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("case", ["plain", "padded"])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_and_gradients(name: str, case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())["cases"][case]
    network = filled(name, dtype)
    hidden = []
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
            # A gate's gradient is a sum over all activations; here the absolute values of its terms add up to 3 to 5.
            scale = 1e-2 if name.endswith(".gate") else 1e-3
            close(np.linalg.norm(gradient), golden["grads"][name]["l2"], tolerance, scale)
            close(probe(gradient), golden["grads"][name]["probe"], 10 * tolerance, scale)
    gates = [gradient.item() for name, gradient in gradients.items() if name.endswith(".gate") and "mlp" not in name]
    if gates:
        close(gates, golden["gate_grads"], 10 * tolerance)
    close(np.sqrt(sum((g**2).sum() for g in gradients.values())), golden["total_grad_l2"], tolerance)
