"""Curves of many stages, from an in-memory SQLite filled by hand."""

from __future__ import annotations

import pytest
from report_cells import entry
from report_database import add
from sqlalchemy import Engine, event

from gpas_cli.report.query import LAST, curves, layer_curves


@pytest.fixture
def keys(engine: Engine) -> list[str]:
    """Return the keys of a stage with two attempts, of one with one, and of one without."""
    cell, other, none = (entry(seed=seed).cell for seed in (1, 2, 3))
    key = add(engine, cell, 1, "interrupted", curves={10: 5.0, 20: 4.0, 30: 3.9}, layers={10: [0.1, 0.2], 20: [0.3]})
    add(engine, cell, 2, "done", 33.0, curves={20: 4.1, 30: 3.5, 40: 3.0}, layers={20: [0.4, 0.5]})
    return [key, add(engine, other, 1, "done", 33.0, curves={10: 77.0}), none.stages[0].key]


def test_attempts_are_joined_and_the_latest_counts(engine: Engine, keys: list[str]) -> None:
    assert curves(engine, keys, "loss") == {
        keys[0]: [(10, 5.0), (20, 4.1), (30, 3.5), (40, 3.0)],
        keys[1]: [(10, 77.0)],
    }
    assert layer_curves(engine, keys, "gate") == {keys[0]: [(10, {0: 0.1, 1: 0.2}), (20, {0: 0.4, 1: 0.5})]}
    assert curves(engine, keys, "lr") == {}


def test_one_attempt_alone(engine: Engine, keys: list[str]) -> None:
    assert curves(engine, keys[:1], "loss", number=1) == {keys[0]: [(10, 5.0), (20, 4.0), (30, 3.9)]}


@pytest.mark.parametrize(("until", "last"), [(LAST, (40, 3.0)), (39, (30, 3.5)), (10, (10, 5.0))])
def test_the_last_point_until_a_step(engine: Engine, keys: list[str], until: int, last: tuple[int, float]) -> None:
    assert curves(engine, keys, "loss", until=until) == {keys[0]: [last], keys[1]: [(10, 77.0)]}
    assert curves(engine, keys, "loss", until=9) == {}


def test_hundreds_of_stages_take_a_few_statements(engine: Engine, keys: list[str]) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *of: asked.append(of[2]))
    assert set(curves(engine, [*keys, *(f"{i:016x}" for i in range(900))], "loss")) == set(keys[:2])
    assert len(asked) == 2
