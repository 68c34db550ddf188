"""The panels of a grid's charts."""

from __future__ import annotations

import math

import pytest
from report_cells import entry, spec

from gpas_cli.page.charts import _panels, thinned
from gpas_cli.page.document import without_repetition
from gpas_cli.report.figures.series import CellCurve


def run(kind: str, size: str, **axes: str) -> CellCurve:
    cell = entry(objective={"kind": kind}, size=size, data="quickstart", axes={"size": size, **axes})
    return CellCurve(cell, "seed", ((1.0, 5.0),))


@pytest.mark.parametrize(
    ("columns", "apart", "panels"),
    [
        ("size", True, {"9m, causal": 1, "9m, span": 1, "20m, span": 1}),
        ("size", False, {"9m": 2, "20m": 1}),
        ("objective", True, {"causal": 1, "span": 2}),
    ],
)
def test_losses_of_different_objectives_have_panels_of_their_own(
    columns: str, apart: bool, panels: dict[str, int]
) -> None:
    cells = [("causal", "9m"), ("span", "9m"), ("span", "20m")]
    runs = [run(kind, size, **({"objective": kind} if columns == "objective" else {})) for kind, size in cells]
    found = dict(_panels(runs, spec(columns=columns), apart=apart))
    assert {title: len(own) for title, own in found.items()} == panels


def test_panels_of_one_objective_do_not_name_it() -> None:
    runs = [run("span", "9m"), run("span", "20m")]
    assert [title for title, _ in _panels(runs, spec(columns="size"), apart=True)] == ["9m", "20m"]


def details(seed: int, torch: str) -> dict[str, object]:
    return {"settings": {"lr": 0.1, "gate": None, "seed": seed}, "attempts": [{"environment": {"torch": torch}}]}


def test_settings_and_environments_are_there_once() -> None:
    found = without_repetition({"a": details(1, "2.8"), "b": details(2, "2.9"), "c": details(3, "2.8")})
    assert found["settings"] == {"lr": 0.1, "gate": None}
    assert found["environments"] == [{"torch": "2.8"}, {"torch": "2.9"}]
    assert found["cells"]["c"] == {"settings": {"seed": 3}, "attempts": [{"environment": 0}]}


def test_a_single_cell_keeps_its_settings() -> None:
    found = without_repetition({"a": details(1, "2.8")})
    assert found["cells"]["a"]["settings"] == {"lr": 0.1, "gate": None, "seed": 1}
    assert without_repetition({}) == {"settings": {}, "environments": [], "cells": {}}


def test_a_short_curve_is_kept_and_a_long_one_keeps_its_ends_and_peaks() -> None:
    curve = [(float(x), math.sin(x / 50)) for x in range(1000)]
    assert thinned(curve, 1000) == curve
    curve[333] = (333.0, 40.0)
    few = thinned(curve, 50)
    assert len(few) == 50
    assert (few[0], few[-1]) == (curve[0], curve[-1])
    assert curve[333] in few
    assert few == sorted(few)
