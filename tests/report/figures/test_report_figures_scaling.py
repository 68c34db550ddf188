"""The scaling figure: published losses and ours over size, with laws where there are enough sizes."""

from __future__ import annotations

import math

import pytest
from report_cells import entry, result

from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.project import packaged
from gpas_cli.report.figures.scaling import Scaling, scaling
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
