"""Networks whose parameters have moved from their initial values, as after training."""

from collections.abc import Mapping
from typing import Any

import torch

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model


def moved_network(spec: Mapping[str, Any]) -> Llama:
    """Return a network in float64: norms are not 1, biases are not 0."""
    made = build(parse_model({"init": {"std": 0.2}, **spec}), seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made
