"""The printed equations, and the published schedule of learning rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpas_cli.spec.cell import parse_model
from gpas_cli.spec.equation import equation, equations
from gpas_cli.spec.optim import Optim

SCHEDULES = json.loads((Path(__file__).parents[1] / "golden/lr_schedule.json").read_text())["sizes"]


@pytest.mark.parametrize(
    ("norm", "site", "expected"),
    [
        ("pre", "home", "G(x + f(N(x)))"),
        ("pre", "before-sublayer", "G(x) + f(N(G(x)))"),
        ("pre", "before-sublayer-shortcut", "G(x) + f(N(x))"),
        ("pre", "after-norm", "x + f(G(N(x)))"),
        ("pre", "after-module", "x + G(f(N(x)))"),
        ("post", "home", "N(G(x) + f(x))"),
        ("post", "after-norm", "G(N(x + f(x)))"),
        ("deepnorm", "home", "N(2.213 G(x) + f(x))"),
        ("sandwich", "home", "G(x + N(f(N(x))))"),
        ("sandwich", "after-module", "x + G(N(f(N(x))))"),
        ("lns", "home", "G(x + f(N(x)))"),
    ],
)
def test_equation_of_a_layer(norm: str, site: str, expected: str) -> None:
    assert equation(parse_model({"size": "quickstart", "norm": norm, "gate": {"site": site}}), 3) == expected


def test_mix_changes_its_equation_once() -> None:
    model = parse_model({"size": "quickstart", "norm": "mix", "gate": "gpas"})
    assert equations(model) == [(1, 3, "N(G(x) + f(x))"), (4, 12, "G(x + f(N(x)))")]


@pytest.mark.parametrize("size", SCHEDULES)
def test_learning_rates_are_the_references(size: str) -> None:
    golden = SCHEDULES[size]
    optim = Optim(lr=golden["base_lr"], warmup=golden["warmup"], steps=golden["steps"])
    for update, rate in golden["lr_of_update_u"].items():
        assert optim.learning_rate(int(update)) == pytest.approx(rate, rel=1e-9, abs=1e-15)
