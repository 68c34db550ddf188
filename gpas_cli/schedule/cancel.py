"""Cancellation of cells: the scheduler of each removes it from the queue, or asks its job to stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.permissions import explain
from gpas_cli.schedule.process_cancel import cancel_process
from gpas_cli.schedule.scheduler import scheduler_of
from gpas_cli.state.claims import read_claim
from gpas_cli.state.status import ALIVE, UNREADABLE, CellStatus
from gpas_cli.state.view import SchedulerView


@dataclass(frozen=True)
class Cancelling:
    """The outcome of cancelling one cell. `asked` is False if there was nothing to cancel, or the request failed."""

    state: CellStatus
    asked: bool
    what: str


def cancel(runs: Path, states: Iterable[CellStatus]) -> list[Cancelling]:
    """Cancel the current stage of each cell; a stage that several cells share is cancelled once."""
    done: dict[str, tuple[bool, str]] = {}
    look = SchedulerView(runs, max_age_seconds=0.0)
    result = []
    for state in states:
        if state.key not in done:
            done[state.key] = _cancel(look, state)
        result.append(Cancelling(state, *done[state.key]))
    return result


def _cancel(look: SchedulerView, state: CellStatus) -> tuple[bool, str]:
    try:
        claim = read_claim(look.runs, state.key) if state.state in ALIVE else None
        if claim is None:  # a process may run although its `gpas run` died and another one removed the claim
            return cancel_process(look, state, None)
        return scheduler_of(look, claim).cancel(state, claim)
    except UNREADABLE as error:
        return False, f"could not be cancelled: {explain(error)}"
