"""Which cells without a number `gpas run grid` runs, and which `gpas retry`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpas_cli.report.tables.table_place import RETRIED, Hole, to_run


def hole(*states: str) -> Hole:
    runs: Any = tuple(SimpleNamespace(state=state, entry=SimpleNamespace(key=state)) for state in states)
    return Hole("Pre-LN", "toy", runs)


@pytest.mark.parametrize("state", ["failed", "cancelled", "unknown"])
def test_what_waits_for_a_retry_is_not_left_to_run(state: str) -> None:
    found = [hole(state, "missing", "interrupted", "not finite")]
    assert [entry.key for entry in to_run(found)] == ["missing", "interrupted"]
    assert [entry.key for entry in to_run(found, RETRIED)] == [state]
