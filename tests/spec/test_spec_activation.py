"""Formulas of the gate's activation: what they may have, their spelling and key, and their start."""

from __future__ import annotations

import math

import pytest
from gate_activations import ALL_ACTIVATIONS, FORMULAS, SOFTSIGN

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.equation import description
from gpas_cli.spec.gate import _SAMPLES, ACTIVATIONS, _activation_fault, activation, canonical
from gpas_cli.spec.parse_cell import cell_from

RECIPE = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9}}


def gated(act: str, **gate: object) -> Cell:
    return cell_from({**RECIPE, "gate": {"activation": act, **gate}})


@pytest.mark.parametrize("act", ALL_ACTIVATIONS)
def test_the_slope_is_the_limit_of_differences(act: str) -> None:
    made, h = activation(act), 1e-6
    for alpha in (0.37 * step + 0.01 for step in range(-9, 10)):
        assert made.slope(alpha) == pytest.approx((made.value(alpha + h) - made.value(alpha - h)) / (2 * h), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gelu", "unknown value 'gelu'; did you mean 'relu'?"),
        ("mish", "silu, silu-beta-8, a formula of alpha"),
        ("alpha", "the formula 'alpha' is identity; write activation: identity"),
        ("alpha * sigmoid(alpha)", "write activation: silu"),
        ("alpha - alpha / (1 + exp(alpha))", "write activation: silu"),
        ("alpha +", "'alpha +' is not a formula: invalid syntax"),
        ("tanh(0.5)", "does not contain alpha"),
        ("tahn(alpha)", "unknown function 'tahn' in a formula; did you mean 'tanh'?"),
        ("2 * x", "unknown name 'x' in a formula"),
        ("alpha * tanh", "unknown name 'tanh' in a formula"),
        ("tanh(alpha, 2)", "tanh takes one argument, not 2"),
        ("max(alpha)", "max takes two arguments, not 1"),
        ("2 ** alpha", "the exponent alpha is not a number; write exp(...)"),
        ("alpha if alpha > 0 else 0", "a formula cannot have 'alpha if alpha > 0 else 0'"),
        ("alpha.real", "a formula cannot have 'alpha.real'"),
        ("().__class__", "a formula cannot have"),
        ("tanh(a=alpha)", "a formula cannot have 'tanh(a=alpha)'"),
        ("alpha + True", "a formula cannot have 'True'"),
        ("alpha * 1e999", "a formula cannot have '1e309'"),
        ("alpha // 2", "a formula cannot have 'alpha // 2'"),
        ("+".join(["alpha"] * 60), "a formula has at most 200 characters, this one 359"),
        ("(" * 97 + "alpha", "is not a formula: "),
    ],
)
def test_a_formula_that_is_none_is_refused_with_the_reason(text: str, message: str) -> None:
    assert message in _activation_fault(text)
    with pytest.raises(InvalidExperiments, match=r"gate\.activation: "):
        gated(text)


@pytest.mark.parametrize("text", FORMULAS)
def test_spaces_and_parentheses_change_no_key_and_numbers_do(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
    spread = gated(f"  ({text.replace('(', '( ').replace('+', '  +  ')})", init=0.1)
    assert spread == gated(text, init=0.1)
    assert spread.model.gate.activation == canonical(text)
    assert cell_from(spread.to_mapping()).key == spread.key
    keys = {gated(one, init=0.1).key for one in (text, f"0.5 * ({text})", *ACTIVATIONS)}
    assert len(keys) == 2 + len(ACTIVATIONS)
    values = [activation(canonical(text)).value(a) for a in _SAMPLES]
    assert values == [activation(text).value(a) for a in _SAMPLES]


def test_the_equation_has_the_formula() -> None:
    (line,) = (line for line in description(gated(SOFTSIGN).model) if line.startswith("G(x)"))
    assert line == "G(x) = x - (alpha / (1 + abs(alpha))) sg(x); alpha learnable, one per layer, starts at 0"


@pytest.mark.parametrize(
    ("text", "gate", "message"),
    [
        ("alpha ** 2", {}, "alpha ** 2 has gradient 0 at 0, so a gate that starts there never changes"),
        ("min(alpha, 0.5)", {"init": 0.7}, "has gradient 0 at 0.7, so a gate that starts there never changes"),
        ("log(alpha)", {}, "log(alpha) has no finite value and slope at 0"),
        ("sqrt(alpha)", {}, "sqrt(alpha) has no finite value and slope at 0"),
        ("sigmoid(alpha) + 0.5", {}, "turns the residual stream off"),
        ("tanh(alpha) / 2", {"learnable": False}, "a fixed gate at 0 has no effect"),
    ],
)
def test_a_start_without_effect_is_refused(text: str, gate: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        gated(text, **gate)
    assert message in str(caught.value)


def test_a_formula_that_is_not_defined_has_no_number() -> None:
    for text, alpha in (("1 / alpha", 0.0), ("sqrt(alpha)", -1.0), ("exp(alpha)", 1e4), ("alpha ** 0.5", -1.0)):
        assert math.isnan(activation(text).value(alpha))
