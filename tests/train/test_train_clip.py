"""The order of clipping: all gradients together and then the gates' alone, or gates and other parameters separately."""

from __future__ import annotations

import math

import pytest
import torch

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.optim import clip

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 40}


@pytest.fixture
def network() -> Llama:
    """Return a network whose gates' gradients have norm 6 and all others' norm 8, together 10."""
    made = build(parse_model({"size": SIZE, "gate": "gpas"}), seed=1)
    gates = [gate.alpha for gate in made.gates()]
    others = [p for p in made.parameters() if all(p is not gate for gate in gates)]
    torch.manual_seed(0)
    for parameters, wanted in ((gates, 6.0), (others, 8.0)):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        scale = wanted / norm(parameters)
        for parameter in parameters:
            parameter.grad *= scale
    return made


def norm(parameters: list[torch.nn.Parameter]) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters))


def norms(network: Llama) -> tuple[float, float]:
    """Return the gradient norms of the gates and of the other parameters."""
    gates = [gate.alpha for gate in network.gates()]
    return norm(gates), norm([p for p in network.parameters() if all(p is not gate for gate in gates)])


@pytest.mark.parametrize(
    ("settings", "gates", "others"),
    [
        ({}, 6.0, 8.0),
        ({"clip": 1.0}, 0.6, 0.8),  # the gates are included
        ({"clip_gates": 0.01}, 0.01, 8.0),  # Sandwich-LN + GPAS at 1B
        ({"clip": 1.0, "clip_gates": 0.01}, 0.01, 0.8),  # 7B, as in the code
        ({"clip": 1.0, "clip_gates": 0.01, "clip_over": "others"}, 0.01, 1.0),  # 7B, as in the paper
        ({"clip": 1.0, "clip_gates": 0.7}, 0.6, 0.8),  # after global clipping the gates are already within their bound
        ({"clip": 20.0, "clip_gates": 7.0}, 6.0, 8.0),
    ],
)
def test_norms_after_clipping(network: Llama, settings: dict[str, object], gates: float, others: float) -> None:
    every = list(network.parameters())
    alphas = [gate.alpha for gate in network.gates()]
    total, _ = clip(every, alphas, Optim(lr=1e-3, warmup=1, steps=2, **settings))  # type: ignore[arg-type]
    assert total.item() == pytest.approx(10.0, rel=1e-5)  # the norm before clipping
    # torch divides by the norm plus 1e-6.
    assert norms(network) == pytest.approx((gates, others), rel=2e-4)
