"""Where two curves differ."""

import math

from gpas_cli.origin.diff import Point, curve_difference


def test_curves_are_compared_at_the_updates_that_both_have() -> None:
    found = curve_difference("loss", {1: 5.0, 2: 4.0, 3: 3.0, 4: 2.0}, {2: 4.0, 3: 3.5, 4: 2.1, 5: 1.0})
    assert (found.common, found.points) == (3, (4, 4))
    assert (found.first, found.largest, found.last) == (Point(3, 3.0, 3.5), Point(3, 3.0, 3.5), Point(4, 2.0, 2.1))


def test_equal_curves_have_no_first_difference() -> None:
    found = curve_difference("loss", {1: 5.0, 2: math.nan}, {1: 5.0, 2: math.nan})
    assert (found.first, found.largest) == (None, None)
    assert found.common == 2


def test_nan_differs_most_from_a_number() -> None:
    found = curve_difference("loss", {1: 5.0, 2: math.nan, 3: 9.0}, {1: 5.1, 2: 4.0, 3: 1.0})
    assert found.first == Point(1, 5.0, 5.1)
    assert found.largest.step == 2


def test_curves_without_a_common_update_have_no_points() -> None:
    found = curve_difference("loss", {1: 5.0}, {2: 4.0})
    assert (found.common, found.first, found.last) == (0, None, None)
