"""Values that grow over layers have the law that fits them better."""

import math

import pytest
from report_cells import entry

from gpas_cli.errors import GpasError
from gpas_cli.extensions.curves.series import CellCurve, make_series
from gpas_cli.extensions.figures.figure import Figure, with_growth


def figure(*values: list[float], layers: int = 6) -> Figure:
    """Return a figure with a series of two equal seeds for each list of values by layer."""
    schemes = ["pre", "lns", "post"]
    runs = [
        CellCurve(entry(scheme, seed=seed), "seed", tuple(enumerate(own, 1)))
        for scheme, own in zip(schemes, values, strict=False)
        for seed in (1, 2)
    ]
    return Figure("", "layer", "variance", make_series(runs), log=True, layers=layers)


def test_each_series_has_the_law_that_fits_it_better_in_its_colour() -> None:
    depth = range(1, 7)
    made = with_growth(figure([2 * math.exp(0.2 * n) for n in depth], [3 * n**1.5 for n in depth]))
    assert [line.title for line in made.lines] == [
        "Pre-LN: exponential, \N{MULTIPLICATION SIGN} 1.22 per layer, R² 1.00",
        "LNS: power law, exponent 1.5, R² 1.00",
    ]
    assert [line.colour for line in made.lines] == [series.colour for series in made.series]
    for line, series in zip(made.lines, made.series, strict=True):
        assert [y for _, y in line.points] == pytest.approx([y for _, y in series.runs[0].points])
    assert "lower AIC" in made.note


def test_values_without_a_law() -> None:
    made = with_growth(figure([1.0, 0.0, 1.0, 2.0, 3.0, 4.0]))
    assert made.lines == ()
    assert made.note.startswith("no law of growth")
    assert with_growth(figure([1.0, 2.0, 3.0])).lines == ()


def test_over_updates_there_is_no_depth() -> None:
    with pytest.raises(GpasError, match="--growth fits a law over layers"):
        with_growth(figure([1.0, 2.0, 3.0, 4.0], layers=0))
