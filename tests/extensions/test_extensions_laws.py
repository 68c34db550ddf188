"""Published losses and ours over size become laws; the best value of an axis is starred."""

import math
from dataclasses import replace

import pytest
from cases import cases
from named_papers import by_paper
from report_cells import OPTIM, entry, result, valued
from shipped import cells_of

from gpas_cli.errors import GpasError
from gpas_cli.extensions.laws.envelope import envelope
from gpas_cli.extensions.laws.scaling import Scaling, scaling
from gpas_cli.report.recorded import Recorded, Result
from gpas_cli.spec.cost import flops_per_token, parameters

TABLE2 = cells_of("table2")
SIZES = ("71m", "130m", "250m")


def exponents(made: Scaling, over: str) -> dict[tuple[str, str], float | None]:
    return {(law.source, law.method): law.law.exponent if law.law else None for law in made.laws if law.over == over}


def test_published_perplexities_of_table_2_are_fitted() -> None:
    made = scaling(TABLE2, Recorded(tuple(TABLE2)), by_paper({"gpas": "table2_perplexity"}))
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


def test_schemes_of_ones_own_have_colours_of_their_own() -> None:
    entries = [entry("pre"), replace(entry("lns"), axes={**entry("lns").axes, "norm": "mine"})]
    results = {key: made for one in entries for key, made in result(one, metrics={"loss": 3.0}).items()}
    made = scaling(entries, Recorded(tuple(entries), results=results), {})
    assert len({line.colour for line in made.panels[0].lines}) == 2


def test_two_sizes_have_no_law_and_say_so() -> None:
    made = ours(("71m", "130m"))
    assert exponents(made, "flops") == {("ours", "Pre-LN"): None}
    assert made.laws[0].words == "2 points; a power law needs 3"
    assert [(line.form, line.in_legend) for line in made.panels[0].lines] == [("points", True)]
    assert made.panels[0].note == "no law: fewer than 3 points"


def test_without_results_and_published_numbers_there_is_no_panel() -> None:
    entries = [entry()]
    made = scaling(entries, Recorded(tuple(entries)), {})
    assert (made.panels, made.laws, len(made.missing)) == ((), (), 1)


RATES = (1e-2, 1e-3, 3e-3)  # as declared


def recorded() -> Recorded:
    """Return two seeds of two methods at three rates: one run diverged, one is missing."""
    cells = [
        entry("pre", gate, seed, axes={"optim.lr": lr}, optim={**OPTIM, "lr": lr})
        for gate in ("none", "gpas")
        for lr in RATES
        for seed in (1, 2)
    ]
    results = valued(cells[:10], [50, 52, 40, 42, 30, 32, 45, 47, 38, 41])
    results |= result(cells[10], outcome="diverged")
    return Recorded(tuple(cells), results=results)


def test_lines_are_means_over_seeds_in_order_of_the_axis_with_the_best_starred() -> None:
    figure, missing = envelope(recorded(), "optim.lr", "perplexity", "seed", "Rates")
    base, gated = figure.series
    assert base.title == "Pre-LN: best 31.00 at optim.lr 0.003"
    assert [(x, at.mean, at.n) for x, at in base.mean()] == [(1e-3, 41, 2), (3e-3, 31, 2), (1e-2, 51, 2)]
    # A rate at which a run diverged or is missing has no mean.
    assert gated.title == "Pre-LN + GPAS: best 39.50 at optim.lr 0.001"
    assert [line.points for line in figure.lines] == [((3e-3, 31.0),), ((1e-3, 39.5),)]
    assert missing == ["demo/71m-pre-gpas-2-0.003"]
    assert (figure.log_x, figure.x, figure.y) == (True, "optim.lr", "validation perplexity")


@cases("extensions/cases.yaml")
def test_an_axis_that_is_none_of_numbers_is_refused(axis: str, value: str, message: str) -> None:
    with pytest.raises(GpasError, match=message):
        envelope(recorded(), axis, value, "seed", "")
