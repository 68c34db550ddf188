"""The formatting of numbers, sizes, times and lists; periods; the name of the processor and its cores."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from gpas_cli import period, words
from gpas_cli.period import Period
from gpas_cli.processor import cpu_model, usable_cores


@cases("cases.yaml")
def test_numbers_in_words(write: str, more: list[Any], number: float, text: str) -> None:
    assert getattr(words, write)(number, *more) == text


@cases("cases.yaml")
def test_an_exploding_number_has_an_exponent(number: float, text: str, signed: str, short: str) -> None:
    assert (words.fixed(number, 2), words.fixed(number, 2, "+"), words.significant(number, 3)) == (text, signed, short)


def test_a_time_has_its_day_unless_it_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.mktime((2025, 11, 22, 14, 5, 9, 0, 0, -1))
    monkeypatch.setattr(time, "time", lambda: now)
    assert words.clock_time(now) == "14:05"
    assert words.clock_time(now + 86_400) == "Sun 23 Nov 14:05"
    assert words.date_and_time(now) == "2025-11-22 14:05:09"


def test_a_long_list_is_cut_and_counted() -> None:
    assert words.listed(["a"], 3) == "a"
    assert words.listed(["a", "b", "c"], 3) == "a, b, c"
    assert words.listed(["a", "b", "c", "d"], 3) == "a, b, c and 1 more"
    assert words.listed(list("abcd"), 1) == "a and 3 more"
    assert words.listed(["a went", "b broke", "c"], 2, "; ") == "a went; b broke; and 1 more"


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


def test_the_processor_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_only_cores_of_the_affinity_mask_are_usable() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        assert tuple(usable_cores()) == (max(before),)
    finally:
        os.sched_setaffinity(0, before)
