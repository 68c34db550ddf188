"""torch.compile, layer by layer: one graph serves every layer that is wired alike."""

from __future__ import annotations

from typing import Any

import torch

from gpas_cli.model.llama import Llama


def compile_layers(network: Llama, backend: Any = "inductor") -> None:
    """Compile every layer, whole: a graph break is an error. The first step of each new shape takes a while.

    What wraps a layer stays outside of its graph: probes, shards that are gathered, activations that are recomputed.
    """
    for layer in network.model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend, fullgraph=True)
