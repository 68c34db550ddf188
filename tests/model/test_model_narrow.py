"""The functions for narrow networks on a CPU: equal to the plain formulas, with first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.model import narrow
from gpas_cli.model.attention import Packing
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.narrow import NarrowAttention, NarrowRMSNorm, NarrowSwiGLU
from gpas_cli.model.rope import Rope
from gpas_cli.spec.parse_cell import parse_model

ROWS, TIME, HIDDEN, FFN, HEADS = 3, 5, 8, 12, 2
TABLES = Rope(HIDDEN // HEADS, 1e4)(TIME, torch.device("cpu"), torch.float64)
CASES: dict[str, tuple[Any, Sequence[tuple[int, ...]], tuple[Any, ...]]] = {
    "norm": (NarrowRMSNorm, [(HIDDEN,)], (1e-6,)),
    "swiglu": (NarrowSwiGLU, [(FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)], ()),
    "attention": (NarrowAttention, 3 * [(HIDDEN, HIDDEN)], (HEADS, TABLES)),
}


def _inputs(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(ROWS, TIME, HIDDEN), *shapes]]
    return [x.requires_grad_() for x in made]


def _derivatives(f: Callable[..., Tensor], inputs: list[Tensor], more: tuple[Any, ...]) -> list[Tensor]:
    """Return the value, the gradients of the sum of its cubes, and the gradients of the sum of their squares."""
    y = f(*inputs, *more)
    first = torch.autograd.grad(y.pow(3).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), inputs)
    once = torch.autograd.grad(f(*inputs, *more).pow(3).sum(), inputs)  # the backward pass of trainings
    return [y, *first, *once, *second]


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_the_plain_formula(name: str) -> None:
    function, shapes, more = CASES[name]
    inputs = _inputs(shapes)
    ours = _derivatives(function.apply, inputs, more)
    plain = _derivatives(function.plain, inputs, more)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * float(b.detach().abs().max()))


def _network(**more: Any) -> Llama:
    size = {"hidden": 32, "ffn": 88, "heads": 2, "layers": 3, "vocab": 64}
    return build(parse_model({"size": size, "gate": "gpas", **more}))


def _loss_and_gradients(network: Llama, packing: Packing | None = None) -> list[Tensor]:
    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(2))
    tokens = tokens if packing is None else tokens.reshape(1, -1)[:, packing.index]
    loss = F.cross_entropy(network(tokens, packing).flatten(0, 1), tokens.flatten())
    return [loss, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("norm", ["pre", "sandwich", "lns"])
def test_a_network_has_the_same_gradients_to_1e6(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = _network(norm=norm)
    ours = torch.cat([x.detach().flatten() for x in _loss_and_gradients(network)])
    monkeypatch.setattr(narrow, "WIDEST", 0)
    modules = torch.cat([x.detach().flatten() for x in _loss_and_gradients(network)])
    assert 0 < (ours - modules).norm() < 1e-6 * modules.norm()


def test_what_the_functions_do_not_compute_is_left_to_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str]()

    def recorded(function: Any) -> Callable[..., Tensor]:
        def apply(*inputs: Any) -> Tensor:
            used.append(function.__name__)
            return function.plain(*inputs)  # type: ignore[no-any-return]

        return apply

    for function in (NarrowAttention, NarrowSwiGLU, NarrowRMSNorm):
        monkeypatch.setattr(function, "apply", recorded(function))
    _loss_and_gradients(_network())
    assert used.count("NarrowAttention") == used.count("NarrowSwiGLU") == 3
    used.clear()
    everything = torch.arange(64)
    _loss_and_gradients(_network(), Packing(everything, everything, torch.ones(64, 1, dtype=torch.bool), 16))
    _loss_and_gradients(_network(family={"like": "llama", "qk_norm": "head"}))
    assert "NarrowAttention" not in used
    used.clear()
    with torch.autocast("cpu", torch.bfloat16):
        _network()(torch.zeros(1, 4, dtype=torch.int64))
    assert used == []
