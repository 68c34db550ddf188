"""Medians of times that some runs never reach, against the product-limit estimate by hand."""

import math
import random
import statistics

from cases import cases

from gpas_cli.statistics.arrivals import Arrival, median, median_interval
from gpas_cli.statistics.stats import aggregate, paired


def times(text: str) -> list[Arrival]:
    """Return the times in a text; one that ends with + is that of a run which ended before it arrived."""
    return [Arrival(float(word.rstrip("+")), arrived=not word.endswith("+")) for word in text.split()]


@cases("statistics/cases.yaml")
def test_a_run_that_ends_before_it_arrives_is_at_risk_until_then(text: str, expected: float) -> None:
    assert median(times(text)) == expected


def test_a_speed_is_the_inverse_of_a_time_and_0_if_it_is_never_reached() -> None:
    speeds = [Arrival(time, arrived=time < 2, speed=True) for time in (0.5, 0.8, 2.0)]
    assert speeds == [2.0, 1.25, 0.0]
    assert median(speeds) == 1.25
    assert aggregate(speeds).mean == 1.25
    found = paired(dict(enumerate(speeds)), dict.fromkeys(range(3), Arrival(1.0, arrived=True, speed=True)))
    assert found is not None
    assert (found.mean, found.n, found.lower, found.higher, found.p) == (0.25, 3, 1, 2, None)
    assert found.interval == (-1.0, 1.0)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """Of 20 exponential times the median is ln 2; those above 1.5, a fifth, never arrive."""
    draw = random.Random(1)
    inside = 0
    for _ in range(200):
        values = [Arrival(min(t, 1.5), arrived=t < 1.5) for t in (draw.expovariate(1.0) for _ in range(20))]
        low, high = median_interval(values) or (0.0, 0.0)
        inside += low <= math.log(2) <= high
    assert 180 <= inside <= 199
    assert median_interval(times("1")) is None
    assert median(times("5 7 6")) == statistics.median([5, 7, 6])
