"""When a checkpoint is due: after a number of updates, or after a period."""

from __future__ import annotations

from typing import Any

import pytest

from gpas_cli.errors import Problem
from gpas_cli.spec import parse
from gpas_cli.spec.run import Cadence, _period_seconds


def cadence(every: object) -> tuple[Cadence | None, list[str]]:
    problems: list[Problem] = []
    made = parse.build(Cadence, {"checkpoint_every": every}, (), problems)
    return made, [problem.message for problem in problems]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("10 min", 600)])
def test_a_period_is_read_in_seconds(text: str, seconds: float) -> None:
    assert _period_seconds(text) == seconds
    made, faults = cadence(text)
    assert made is not None
    assert not faults
    assert not made.checkpoint_due(500, seconds - 1)
    assert made.checkpoint_due(501, seconds)


def test_a_number_counts_updates() -> None:
    made, _ = cadence(500)
    assert made is not None
    assert made.checkpoint_due(1000, 0.0)
    assert not made.checkpoint_due(1001, 1e9)


@pytest.mark.parametrize("wrong", ["10", "10 m", "0s", "min", "-1h", "1e3s", ""])
def test_another_text_is_refused_with_examples(wrong: Any) -> None:
    assert cadence(wrong) == (
        None,
        [f"'{wrong}' is neither a number of updates nor a period; write 500, 90s, 10min or 1h"],
    )


def test_a_checkpoint_after_no_update_is_refused() -> None:
    assert cadence(0) == (None, ["0 is too small; at least 1"])
