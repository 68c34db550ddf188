"""torch.compile, layer by layer: one graph serves every layer that is wired alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpas_cli.model.llama import Llama


def compile_layers(network: Llama) -> None:
    """Compile every layer, whole: a graph break is an error. The first step of each new shape takes a while."""
    for layer in network.model.layers:
        layer.compile(fullgraph=True)


@contextmanager
def eager(wanted: bool) -> Iterator[None]:
    """Inside the context, if `wanted`, compiled layers run as they are written: probes may look into them."""
    if not wanted:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
