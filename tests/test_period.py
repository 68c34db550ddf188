"""Periods that limit how often something is done."""

import pytest

from gpas_cli import period
from gpas_cli.period import Period


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(period, "time", made)
    return made


@pytest.mark.parametrize(("at_once", "first"), [(True, [0, 10, 20]), (False, [10, 20])])
def test_a_period_is_over_once_in_its_length(clock: Clock, at_once: bool, first: list[int]) -> None:
    made = Period(10, at_once=at_once)
    seen = []
    for second in range(25):
        clock.now = 100.0 + second
        if made.is_over():
            seen.append(second)
    assert seen == first


def test_a_restarted_period_has_its_whole_length(clock: Clock) -> None:
    made = Period(10, at_once=True)
    clock.now += 5
    made.restart()
    clock.now += 9
    assert not made.is_over()
    clock.now += 1
    assert made.is_over()
