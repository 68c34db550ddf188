"""torch.compile, layer by layer: one graph serves every layer that is wired alike."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from gpas_cli.model.llama import Llama

# FLOPs of a training from which a processor's compiled layers pay: hours, of which they save 5 to 10 % for half a
# minute at the start of each attempt.
PAYS = 1e15
# Graphs of a network's layers, which share one code object: for each kind of layer those of full and of packed rows, of
# the first shape and of all others, with gradients and without. Beyond PyTorch's limit, 8, the next one is an error.
GRAPHS = 64


def compile_layers(network: Llama, backend: Any = "inductor", *, dynamic: bool | None = None) -> None:
    """Compile every layer, whole: a graph break is an error. The first step of each new shape takes a while.

    `dynamic`: one graph for all shapes from the start, so that a resumed run computes as one that never stopped; None:
    the first shape has one of its own. What wraps a layer stays outside of its graph: probes, shards that are
    gathered, activations that are recomputed.
    """
    import torch._dynamo  # takes a second, which only what compiles should pay

    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
    for layer in network.model.layers:
        layer.forward = torch.compile(layer.forward, backend=backend, fullgraph=True, dynamic=dynamic)


def worth_compiling(device: torch.device, flops: float) -> bool:
    """Whether a training of so many FLOPs should compile its layers on `device`: on a processor only where it is long
    enough; and where this machine can, which needs a C++ compiler and Python's headers."""
    return (device.type != "cpu" or flops >= PAYS) and _can_compile(device)


@functools.cache
def _can_compile(device: torch.device) -> bool:
    try:
        torch.compile(torch.square)(torch.ones(2, device=device))
    except Exception as error:  # of several kinds, by what is missing
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"layers are not compiled, which would be faster: {reason}", stacklevel=2)
        return False
    return True
