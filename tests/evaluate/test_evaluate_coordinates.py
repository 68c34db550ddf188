"""The coordinate check: activations change alike over width in muP, over depth in CompleteP, and more and more else."""

from pathlib import Path

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.evaluate.coordinates import coordinates
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from


def cell(**values: object) -> Cell:
    recipe = {"lr": 2e-3, "warmup": 1, "steps": 9, **values.pop("optim", {})}  # type: ignore[dict-item]
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": recipe, **values})


IDENTITY = ("rezero", "skipinit")  # whose branches are 0 at first
NORMED = ("sandwich", "peri")  # whose branches end with a norm
QUICK = {("pre", "none"), ("post", "gpas"), ("sandwich", "gpas")}
CASES = [
    pytest.param(scheme, gate, marks=() if (scheme, gate) in QUICK else pytest.mark.long)
    for scheme, gate in [("pre", "none"), *((scheme, "gpas") for scheme in SCHEMES)]
]


def test_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.evaluate.coordinates._changes", lambda cell, *_: [cell.model.size.hidden] * 4)
    found = coordinates(cell(), tmp_path, tmp_path)
    assert {one.at for one in found} == {(32, 64, 128, 256), (4, 8, 16)}


@pytest.mark.parametrize(("scheme", "gate"), CASES)
def test_activations_change_alike_at_every_width_and_depth(
    scheme: str, gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the narrowest and the widest: those between cost time and add little."""
    monkeypatch.setattr("gpas_cli.evaluate.coordinates._FACTORS", {"width": (1, 8), "depth": (1, 2, 4)})
    found = coordinates(cell(norm=scheme, gate=gate), tmp_path, tmp_path)
    exponents = {(one.over, one.parametrisation, one.place): one.exponent for one in found}
    assert abs(exponents["width", "mup", "4"]) < 0.15
    assert exponents["width", "standard", "4"] > 0.5 or scheme in (*IDENTITY, *NORMED)
    assert abs(exponents["depth", "completep", "4"]) < (0.25 if scheme == "hyper-connections" else 0.2)
    grown = exponents["depth", "standard", "4"]
    assert grown == exponents["depth", "mup", "4"]
    assert grown > 0.35 or scheme in IDENTITY
    # The logits' initial values shrink as 1/sqrt(width), and with them a part of their change.
    assert exponents["width", "standard", "logits"] > 0.7 > 0.1 > exponents["width", "mup", "logits"] > -0.3
    assert abs(exponents["depth", "completep", "logits"]) < 0.1


def test_a_recipe_without_the_rules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperiments, match="no rule for adafactor"):
        coordinates(cell(optim={"optimizer": "adafactor"}), tmp_path, tmp_path)
