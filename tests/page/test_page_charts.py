"""The panels of a grid's charts."""

from __future__ import annotations

import pytest
from report_cells import entry, spec

from gpas_cli.page.charts import _panels
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
