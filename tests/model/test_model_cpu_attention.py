"""Attention on a CPU: equal to PyTorch's, with first and second derivatives, however rows and queries are divided."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exporting import needs_transformers
from torch import Tensor, library

from gpas_cli.data.loader import IGNORED
from gpas_cli.model import cpu_attention as module
from gpas_cli.model.attention import Visible
from gpas_cli.model.bundle import Bundle
from gpas_cli.model.cpu_attention import cpu_attention, suits_cpu
from gpas_cli.model.llama import build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

CPU = torch.device("cpu")
ROWS, HEADS, TIME, WIDTH = 3, 4, 10, 6
BOUNDS = torch.tensor([0, 10, 11, 18, 18, 24], dtype=torch.int32)  # rows of 10, 1, 7, 0 and 6 tokens
PREFIX = torch.tensor([4, 10, 1])
Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(params=[(128, 2**18), (4, 2**18), (4, 20), (10, 1)], ids=["whole", "queries", "heads", "rows"])
def divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once; some queries at once; some queries and heads; a row and a head at once."""
    queries, scores = request.param
    monkeypatch.setattr(module, "QUERIES", queries)
    monkeypatch.setattr(module, "SCORES", scores)


def inputs(*shape: int, transposed: bool = False) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    shape = (shape[0], shape[2], shape[1], shape[3]) if transposed else shape
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    q, k, v = (x.transpose(1, 2) if transposed else x for x in made)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def by_torch(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None, causal: bool = True) -> Tensor:
    time = q.shape[2]
    allowed = torch.ones(time, time, dtype=torch.bool).tril() if causal else seen
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1) @ v


def derivatives(f: Callable[..., Tensor], x: Inputs) -> list[Tensor]:
    """Return the value, the gradients of the sum of its cubes, and the gradients of the sum of their squares."""
    y = f(*x)
    first = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), x)
    once = torch.autograd.grad(f(*x).pow(3).sum(), x)  # the backward pass of trainings
    return [y, *first, *once, *second]


def assert_equal(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], x: Inputs) -> None:
    for a, b in zip(derivatives(ours, x), derivatives(theirs, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * float(b.detach().abs().max()))


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("transposed", [False, True], ids=["by head", "by token"])
def test_causal_attention_is_that_of_the_formula(transposed: bool) -> None:
    assert_equal(cpu_attention, by_torch, inputs(ROWS, HEADS, TIME, WIDTH, transposed=transposed))


@pytest.mark.usefixtures("divided")
def test_rows_of_a_stream_do_not_see_each_other() -> None:
    def by_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(*(x.split(BOUNDS.diff().tolist(), 2) for x in (q, k, v)), strict=True)
        return torch.cat([by_torch(*row) for row in rows], 2)

    x = inputs(1, HEADS, int(BOUNDS[-1]), WIDTH, transposed=True)
    assert_equal(lambda *x: cpu_attention(*x, BOUNDS), by_rows, x)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("later", [False, True], ids=["keys", "queries and keys"])
def test_a_mask_hides_keys(later: bool) -> None:
    seen = Visible.of(PREFIX, TIME, later=later).mask
    x = inputs(ROWS, HEADS, TIME, WIDTH)
    assert_equal(lambda *x: cpu_attention(*x, None, seen, False), lambda *x: by_torch(*x, seen, False), x)


@pytest.mark.usefixtures("divided")
def test_without_a_mask_every_token_sees_every_token() -> None:
    x = inputs(ROWS, HEADS, TIME, WIDTH)
    assert_equal(lambda *x: cpu_attention(*x, causal=False), lambda *x: by_torch(*x, None, False), x)


def test_large_scores_neither_overflow_nor_vanish() -> None:
    q, k, v = (x.detach().float() for x in inputs(ROWS, HEADS, TIME, WIDTH))
    found = cpu_attention(500 * q, k, v)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(500 * q, k, v, is_causal=True), atol=1e-4, rtol=0)


def test_only_float32_and_float64_without_autocast_are_taken() -> None:
    single, half = torch.empty(1), torch.empty(1, dtype=torch.bfloat16)
    assert suits_cpu(single, single.double())
    assert not suits_cpu(single, half)
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits_cpu(single)


def loss_and_gradients(length: int, precision: str = "fp32", **more: object) -> Callable[[], list[Tensor]]:
    """Return what computes the loss and the gradients of a network on rows of 160, `length` and 130 tokens."""
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
    network = build(
        parse_model({"size": size, "gate": "gpas", **more}),
        dtype=torch.float64 if precision == "fp32" else torch.float32,
    )
    tokens = np.random.default_rng(0).integers(0, 50, (3, 160))
    targets = np.where(np.arange(160) < np.array([[160], [length], [130]]), tokens, IGNORED)
    parameters = list(network.parameters())

    def compute() -> list[Tensor]:
        loss = summed_loss(network, DeviceRows.of(tokens, targets, CPU), Precision(precision, CPU))
        return [loss, *torch.autograd.grad(loss, parameters)]

    return compute


@pytest.mark.parametrize("family", [{}, {"qk_norm": "head"}, {"positions": "learned", "context": 160}], ids=str)
@pytest.mark.parametrize("length", [160, 129, 0])
def test_a_network_computes_the_same_from_a_stream_and_from_rows(
    length: int, family: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = loss_and_gradients(length, family=family)
    ours = compute()
    monkeypatch.setattr("gpas_cli.train.loss.takes_stream", lambda device, time: False)
    rows = compute()
    monkeypatch.setattr("gpas_cli.model.attention.suits_cpu", lambda *x: False)
    torchs = compute()
    for a, b, c in zip(ours, rows, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-11)


def test_autocast_leaves_rows_to_torch() -> None:
    ours, exact = (torch.cat([x.flatten().float() for x in loss_and_gradients(129, p)()]) for p in ("bf16", "fp32"))
    assert 0 < (ours - exact).norm() < 0.02 * exact.norm()


def test_short_rows_are_taken_all_at_once() -> None:
    tokens = np.zeros((2, module.QUERIES), np.int64)
    targets = np.where(np.arange(module.QUERIES) < np.array([[5], [9]]), tokens, IGNORED)
    for time in (module.QUERIES, 3 * module.QUERIES):
        wide = np.pad(targets, ((0, 0), (0, time - module.QUERIES)), constant_values=IGNORED)
        packing = DeviceRows.of(np.zeros((2, time), np.int64), wide, CPU).packing
        assert packing is not None
        assert (packing.bounds is None) == (time == module.QUERIES)


def test_operations_of_a_graph_say_what_they_return() -> None:
    q, k, v = inputs(1, HEADS, int(BOUNDS[-1]), WIDTH)
    y, sums = module._attend_in_graph(q, k, v, BOUNDS, None, True)
    library.opcheck(module._attend_in_graph, (q.detach(), k.detach(), v.detach(), BOUNDS, None, True))
    x = tuple(x.detach() for x in (q, k, v))
    d_y = torch.ones(1, int(BOUNDS[-1]), HEADS, WIDTH, dtype=torch.float64).transpose(1, 2)
    library.opcheck(module._differentiate_in_graph, (*x, BOUNDS, None, True, y.detach(), sums.detach(), d_y))


def value_and_gradients(attention: Callable[..., Tensor]) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in inputs(ROWS, HEADS, TIME, WIDTH))
    y = attention(q, k, v)
    return [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]


def assert_graph_computes_the_same_bits(attention: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    graph = torch.compile(attention, backend="aot_eager", fullgraph=True)
    for a, b in zip(value_and_gradients(cpu_attention), value_and_gradients(graph), strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_a_graph_computes_the_same_bits() -> None:
    assert_graph_computes_the_same_bits(cpu_attention)


@needs_transformers
@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_an_exported_network_has_operations_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = ModuleType("modeling_of_an_export")
    monkeypatch.setitem(sys.modules, copy.__name__, copy)
    exec(Bundle("gpas_cli.model.remote").text(), copy.__dict__)
    assert copy.cpu_attention is not cpu_attention
    assert_graph_computes_the_same_bits(copy.cpu_attention)
    assert_graph_computes_the_same_bits(cpu_attention)
