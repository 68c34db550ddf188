"""Layers compile without a graph break, whatever the scheme and the gate's place."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from gpas_cli.data.loader import IGNORED
from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.gate_gradient import GateGradients, NotDetermined
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.probe import activation_variance
from gpas_cli.spec.cell import parse_model
from gpas_cli.spec.gate import SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.train.compiling import compile_layers, eager
from gpas_cli.train.loss import Rows, summed_loss
from gpas_cli.train.precision import Precision

# Raised and handled inside torch.compile itself.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 6, "vocab": 50}
FP32 = Precision("fp32", torch.device("cpu"))
TOKENS = np.random.default_rng(1).integers(0, 50, (4, 9))


def network(norm: str, site: str = "home") -> Llama:
    made = build(parse_model({"size": SIZE, "norm": norm, "gate": {"site": site, "init": 0.2}}))
    with suppress(NotDetermined):  # then its gates stay in the graph, which has to compile as well
        GateGradients(made)
    return made


def rows(*lengths: int) -> Rows:
    targets = np.where(np.arange(9) < np.array(lengths)[:, None], TOKENS, IGNORED)
    return Rows.of(TOKENS, targets, FP32.device)


@pytest.mark.parametrize("norm", SCHEMES)
def test_no_scheme_and_no_site_breaks_the_graph(norm: str) -> None:
    for site in SITES:
        torch._dynamo.reset()
        counter = CompileCounter()
        try:
            made = network(norm, site)
        except InvalidExperiments:
            continue
        for layer in made.model.layers:
            layer.compile(backend=counter, fullgraph=True)
        summed_loss(made, rows(9, 9, 9, 9), FP32).backward()
        # Mix-LN has layers of two kinds.
        assert counter.frame_count == (2 if norm == "mix" else 1)


def test_batches_of_other_shapes_compile_once_more_at_most() -> None:
    torch._dynamo.reset()
    counter, made = CompileCounter(), network("pre")
    for layer in made.model.layers:
        layer.compile(backend=counter, fullgraph=True)
    for lengths in itertools.permutations((9, 5, 4, 2)):
        summed_loss(made, rows(*lengths), FP32).backward()
    for lengths in ((9, 3, 1, 1), (7, 7, 2, 1), (9, 9, 8, 9), (2, 2, 2, 2)):
        summed_loss(made, rows(*lengths), FP32).backward()
    assert counter.frame_count <= 2


def test_probes_see_into_compiled_layers() -> None:
    torch._dynamo.reset()
    made, compiled = network("lns"), network("lns")
    compile_layers(compiled)
    with activation_variance(made) as expected:
        summed_loss(made, rows(9, 5, 2, 1), FP32)
    with eager(True), activation_variance(compiled) as seen:
        summed_loss(compiled, rows(9, 5, 2, 1), FP32)
    assert [v.item() for v in seen] == [v.item() for v in expected]
