"""Holm's adjusted p values against a published example, and the error rate that they promise."""

from __future__ import annotations

import random

import pytest

from gpas_cli.statistics.stats import holm


def test_a_published_example() -> None:
    # From the documentation of pingouin.holm.
    found = holm([0.50, 0.003, 0.32, 0.054, 0.0003])
    assert found == pytest.approx([0.64, 0.012, 0.64, 0.162, 0.0015])


def test_equal_and_missing_p_values() -> None:
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([0.4, 0.9]) == [0.8, 0.9]
    assert holm([None, None]) == [None, None]


def test_a_missing_result_counts_as_a_test() -> None:
    adjusted = holm([0.01, None, 0.02])
    assert adjusted == [0.03, None, 0.04]
    for late in (0.001, 0.5, 1.0):
        complete = holm([0.01, late, 0.02])
        assert all(now is None or then <= now for now, then in zip(adjusted, complete, strict=True) if then is not None)


def test_the_probability_of_any_false_statement() -> None:
    """Among five true null hypotheses, one or more is rejected at 0.05 in about 1 - 0.99^5 = 4.9 % of families."""
    draw = random.Random(14)
    families = 4000
    false = sum(
        min(p for p in holm([draw.random() for _ in range(5)]) if p is not None) <= 0.05 for _ in range(families)
    )
    assert 0.039 < false / families < 0.059
