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
from gpas_cli.train import strategy
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.loss import Rows, summed_loss
from gpas_cli.train.precision import Precision
from gpas_cli.train.strategy import Layout

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
        compile_layers(made, counter)
        summed_loss(made, rows(9, 9, 9, 9), FP32).backward()
        # Mix-LN has layers of two kinds.
        assert counter.frame_count == (2 if norm == "mix" else 1)


def test_batches_of_other_shapes_compile_once_more_at_most() -> None:
    torch._dynamo.reset()
    counter, made = CompileCounter(), network("pre")
    compile_layers(made, counter)
    for lengths in itertools.permutations((9, 5, 4, 2)):
        summed_loss(made, rows(*lengths), FP32).backward()
    for lengths in ((9, 3, 1, 1), (7, 7, 2, 1), (9, 9, 8, 9), (2, 2, 2, 2)):
        summed_loss(made, rows(*lengths), FP32).backward()
    assert counter.frame_count <= 2


@pytest.mark.parametrize("recompute", [False, True])
def test_probes_and_recomputation_work_around_compiled_layers(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    # The graph without the code generator, which needs a compiler and a minute.
    monkeypatch.setattr(strategy, "compile_layers", lambda made: compile_layers(made, "aot_eager"))
    model = parse_model({"size": SIZE, "norm": "lns", "gate": "gpas"})
    plain, compiled = (Layout(recompute=recompute, compiled=c).build(model, 42, FP32) for c in (False, True))
    found = []
    for made in (plain, compiled):
        with activation_variance(made) as seen:
            summed_loss(made, rows(9, 5, 2, 1), FP32).backward()
        found.append([v.item() for v in seen])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(compiled.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6)
