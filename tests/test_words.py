"""The formatting of numbers, sizes, times and lists; periods; the name of the processor and its cores."""

import math
import os
import time
from pathlib import Path

import pytest

from gpas_cli import period, words
from gpas_cli.period import Period
from gpas_cli.processor import cpu_model, usable_cores


def test_a_noun_and_a_verb_agree_with_their_number() -> None:
    assert [words.count(n, "cell") for n in (0, 1, 2, 1200)] == ["0 cells", "1 cell", "2 cells", "1,200 cells"]
    assert [words.count(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [words.verb(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 111, 123)
    expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 111th 123rd".split()
    assert [words.ordinal(number) for number in numbers] == expected


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (999, "999"), (307_200, "307k"), (71e6, "71M"), (1.34e9, "1.34B"), (2e12, "2T")]
)
def test_large_numbers_are_abbreviated(number: float, text: str) -> None:
    assert words.abbreviated(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_340_000, "12.3 MB"), (1.08e11, "108 GB"), (5e15, "5,000 TB")],
)
def test_bytes_are_in_decimal_units(number: float, text: str) -> None:
    assert words.byte_size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3569, "59 min"), (3571, "1.0 h"), (12_300, "3.4 h"),
     (47 * 3600, "47.0 h"), (48 * 3600, "2.0 days"), (200 * 86_400, "200 days")],
)  # fmt: skip
def test_durations_are_in_their_largest_unit(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text", "signed", "short"),
    [
        (33.486, "33.49", "+33.49", "33.5"),
        (-1390.2, "-1390.20", "-1390.20", "-1,390"),
        (999_999.99, "999999.99", "+999999.99", "1,000,000"),
        (999_999.999, "1.00e6", "+1.00e6", "1,000,000"),
        (1.6151e242, "1.62e242", "+1.62e242", "1.62e242"),
        (-2.5e21, "-2.50e21", "-2.50e21", "-2.50e21"),
        (1.234e-7, "0.00", "+0.00", "1.23e-07"),
        (math.inf, "inf", "+inf", "inf"),
        (-math.inf, "-inf", "-inf", "-inf"),
        (math.nan, "nan", "+nan", "nan"),
    ],
)
def test_an_exploding_number_has_an_exponent(number: float, text: str, signed: str, short: str) -> None:
    assert (words.fixed(number, 2), words.fixed(number, 2, "+"), words.significant(number, 3)) == (text, signed, short)


def test_a_count_is_whole() -> None:
    assert [words.fixed(number, 0) for number in (1e9, 123_456_789_012, 4.4e18)] == [
        "1000000000",
        "123456789012",
        "4.40e18",
    ]


def test_a_stopwatch_has_hours_once_there_are_any() -> None:
    assert [words.stopwatch(seconds) for seconds in (0, 9.9, 65, 3723)] == ["0:00", "0:09", "1:05", "1:02:03"]


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
