"""A metric over an axis of numbers, with the best of each method."""

import pytest
from report_cells import OPTIM, entry, result, valued

from gpas_cli.errors import GpasError
from gpas_cli.report.figures.envelope import envelope
from gpas_cli.report.recorded import Recorded

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


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("optim.rl", "perplexity", "no cell has an axis 'optim.rl'; did you mean 'optim.lr'"),
        ("gate", "perplexity", "need at least two values of it, all numbers"),
        ("size", "perplexity", "need at least two values of it, all numbers"),
    ],
)
def test_an_axis_that_is_none_of_numbers_is_refused(axis: str, value: str, message: str) -> None:
    with pytest.raises(GpasError, match=message):
        envelope(recorded(), axis, value, "seed", "")
