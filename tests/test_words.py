"""The formatting of numbers, sizes, times and lists; periods; the name of the processor and its cores."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpas_cli import period, words
from gpas_cli.period import Period
from gpas_cli.processor import cpu_model, usable_cores

WRITTEN: dict[Callable[[Any], str], dict[float, str]] = {
    lambda n: words.count(n, "cell"): {0: "0 cells", 1: "1 cell", 2: "2 cells", 1200: "1,200 cells"},
    lambda n: words.count(n, "entry", "entries"): {1: "1 entry", 2: "2 entries"},
    lambda n: words.verb(n, "is", "are"): {0: "are", 1: "is", 2: "are"},
    words.ordinal: {
        1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 22: "22nd",
        111: "111th", 123: "123rd",
    },
    words.abbreviated: {7: "7", 999: "999", 307_200: "307k", 71e6: "71M", 1.34e9: "1.34B", 2e12: "2T"},
    words.byte_size: {
        0: "0 B", 999: "999 B", 1000: "1.0 kB", 12_340_000: "12.3 MB", 1.08e11: "108 GB", 5e15: "5,000 TB",
    },
    words.duration: {
        0: "0 s", 59.4: "59 s", 59.6: "1 min", 3569: "59 min", 3571: "1.0 h", 12_300: "3.4 h", 47 * 3600: "47.0 h",
        48 * 3600: "2.0 days", 200 * 86_400: "200 days",
    },
    words.stopwatch: {0: "0:00", 9.9: "0:09", 65: "1:05", 3723: "1:02:03"},
    lambda n: words.fixed(n, 0): {1e9: "1000000000", 123_456_789_012: "123456789012", 4.4e18: "4.40e18"},
}  # fmt: skip


NUMBERS = [(write, *one) for write, table in WRITTEN.items() for one in table.items()]


@pytest.mark.parametrize(("write", "number", "text"), NUMBERS, ids=[text for *_, text in NUMBERS])
def test_numbers_in_words(write: Callable[[Any], str], number: float, text: str) -> None:
    assert write(number) == text


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
