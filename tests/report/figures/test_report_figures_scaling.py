"""The scaling figure: published losses and ours over size, with laws where there are enough sizes."""

from __future__ import annotations

import math
import random

import pytest
from report_cells import entry, result

from gpas_cli.errors import GpasError
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.project import packaged
from gpas_cli.report.figures.figure import Figure, with_growth
from gpas_cli.report.figures.scaling import Scaling, fit, scaling
from gpas_cli.report.figures.series import CellCurve, make_series
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.result import Result
from gpas_cli.spec.cost import flops_per_token, parameters

TABLE2 = expand(load(packaged("experiments.yaml")), ["table2"])
SIZES = ("71m", "130m", "250m")


def exponents(made: Scaling, over: str) -> dict[tuple[str, str], float | None]:
    return {(law.source, law.method): law.law.exponent if law.law else None for law in made.laws if law.over == over}


def test_published_perplexities_of_table_2_are_fitted() -> None:
    made = scaling(TABLE2, Recorded(tuple(TABLE2)), {"gpas": "table2_perplexity"})
    assert [panel.x for panel in made.panels] == ["parameters N", "training FLOPs C"]
    laws = {law.method: law for law in made.laws if law.over == "parameters"}
    assert len(laws) == 11
    # Post-LN diverged at 250M and 1B, DeepNorm at 1B.
    assert {name: law.sizes for name, law in laws.items() if law.sizes != 5} == {"Post-LN": 3, "DeepNorm": 4}
    pre = next(line for line in made.panels[0].lines if line.title == "Pre-LN")
    assert [round(math.exp(loss), 2) for _, loss in pre.points] == [34.23, 26.75, 21.77, 21.35, 16.92]
    x = [math.log(n) for n, _ in pre.points]
    y = [math.log(loss) for _, loss in pre.points]
    slope = sum((a - sum(x) / 5) * (b - sum(y) / 5) for a, b in zip(x, y, strict=True))
    slope /= sum((a - sum(x) / 5) ** 2 for a in x)
    assert laws["Pre-LN"].law is not None
    assert laws["Pre-LN"].law.exponent == pytest.approx(-slope)
    assert len(made.missing) == len(TABLE2)


def ours(sizes: tuple[str, ...] = SIZES) -> Scaling:
    """Two seeds of Pre-LN at each size: losses 100 N^-0.2, give or take one percent."""
    entries = [entry("pre", "none", seed, size) for size in sizes for seed in (1, 2)]
    results: dict[str, Result] = {}
    for one in entries:
        loss = 100 * parameters(one.cell) ** -0.2 * (1.01 if one.axes["seed"] == 1 else 0.99)
        (key, made), *_ = result(one).items()
        results[key] = Result(**{**vars(made), "metrics": {"loss": loss, "train_tokens": 1e9}})
    return scaling(entries, Recorded(tuple(entries), results=results), {})


def test_our_losses_are_means_over_seeds_at_the_recorded_tokens() -> None:
    made = ours()
    assert exponents(made, "parameters") == {("ours", "Pre-LN"): pytest.approx(0.2)}
    points, law = made.panels[1].lines
    assert (points.form, points.in_legend, law.title[:8]) == ("points", False, "Pre-LN: ")
    first = entry("pre", "none", 1, "71m").cell
    assert points.points[0][0] == pytest.approx(flops_per_token(first) * 1e9)
    assert len(law.band) > 10
    assert made.missing == ()


def test_two_sizes_have_no_law_and_say_so() -> None:
    made = ours(("71m", "130m"))
    assert exponents(made, "flops") == {("ours", "Pre-LN"): None}
    assert made.laws[0].words == "2 sizes; a power law needs 3"
    assert [(line.form, line.in_legend) for line in made.panels[0].lines] == [("points", True)]
    assert made.panels[0].note == "no law: fewer than 3 sizes"


def test_without_results_and_published_numbers_there_is_no_panel() -> None:
    entries = [entry()]
    made = scaling(entries, Recorded(tuple(entries)), {})
    assert (made.panels, made.laws, len(made.missing)) == ((), (), 1)


XS = (1e6, 1e7, 1e8, 1e9)


def test_an_exact_law_is_found_without_uncertainty() -> None:
    law = fit([(x, 20 * x**-0.1) for x in XS])
    assert (law.factor, law.exponent) == (pytest.approx(20), pytest.approx(0.1))
    assert law.interval == (pytest.approx(0.1), pytest.approx(0.1))
    assert law.band(1e10) == (pytest.approx(2), pytest.approx(2))


def test_the_interval_is_that_of_simple_regression() -> None:
    """Three points at log x = 0, 1, 2 with one off by 3 e: the residuals are -e/2, e, -e/2 times 1."""
    error = 0.01
    law = fit([(1.0, 1.0), (math.e, math.exp(1.5 * error)), (math.e**2, 1.0)])
    assert law.exponent == pytest.approx(0)
    assert law.scatter == pytest.approx(error * math.sqrt(1.5))
    # t with one degree of freedom: 12.706; sum of squares of log x: 2.
    assert law.interval[1] == pytest.approx(12.706 * error * math.sqrt(1.5 / 2), rel=1e-4)


def test_intervals_contain_the_true_exponent_in_95_of_100_cases() -> None:
    noise = random.Random(7)
    inside = 0
    for _ in range(1000):
        law = fit([(x, 5 * x**-0.07 * math.exp(noise.gauss(0, 0.02))) for x in XS])
        inside += law.interval[0] <= 0.07 <= law.interval[1]
    assert 930 <= inside <= 970


def test_the_band_is_narrowest_in_the_middle() -> None:
    law = fit([(1e6, 3.0), (1e7, 2.4), (1e8, 2.1), (1e9, 1.7)])
    widths = [law.band(x)[1] / law.band(x)[0] for x in (1e6, 10**7.5, 1e9)]
    assert widths[1] < widths[0] == pytest.approx(widths[2])


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (2.0, 1.0)], [(1.0, 2.0), (2.0, 1.0), (2.0, 1.1)]])
def test_too_few_sizes_have_no_law(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_numbers_that_have_no_logarithm_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit([(1.0, 2.0), (2.0, 0.0), (3.0, 1.0)])


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
