"""Compile a network layer by layer: layers with the same wiring share one graph."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from gpas_cli.model.llama import Llama

# From so many FLOPs compiling pays on a CPU: such trainings take hours, of which it saves 5 to 10 %, and it costs half
# a minute at the start of each attempt.
WORTHWHILE_FLOPS = 1e15
# All layers share one code object, with a graph for each kind of layer, for full and for packed rows, for the first
# shape and for all others, with and without gradients. PyTorch's own limit is 8; one more graph is an error.
MAX_GRAPHS = 64


def compile_layers(network: Llama, backend: Any = "inductor", *, dynamic: bool | None = None) -> None:
    """Compile every layer in full: a graph break is an error. The first step of each new shape takes longer.

    `dynamic`: True compiles one graph for all shapes from the start, so that a resumed run computes exactly as an
    uninterrupted one; None gives the first shape a graph of its own. Whatever wraps a layer stays outside its graph:
    probes, gathering of shards, recomputation of activations.
    """
    import torch._dynamo  # takes a second to import

    torch._dynamo.config.recompile_limit = max(MAX_GRAPHS, torch._dynamo.config.recompile_limit)
    for layer in network.model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend, fullgraph=True, dynamic=dynamic)


def worth_compiling(device: torch.device, flops: float) -> bool:
    """Return whether a training of `flops` should compile its layers on `device`.

    On a CPU only a long training should; and the machine must be able to, which takes a C++ compiler and Python's
    headers.
    """
    return (device.type != "cpu" or flops >= WORTHWHILE_FLOPS) and _can_compile(device)


@functools.cache
def _can_compile(device: torch.device) -> bool:
    try:
        torch.compile(torch.square)(torch.ones(2, device=device))
    except Exception as error:  # its class depends on what is missing
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"layers are not compiled, which makes training slower: {reason}", stacklevel=2)
        return False
    return True
