"""Cancellation of cells: the scheduler of each removes it from the queue, or asks its job to stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.permissions import explain
from gpas_cli.schedule.process_cancel import cancel_process
from gpas_cli.schedule.scheduler import CancelsTogether, scheduler_of
from gpas_cli.state.claims import Claim, read_claim
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
    states = list(states)
    look = SchedulerView(runs, max_age_seconds=0.0)
    done: dict[str, tuple[bool, str]] = {}
    together: dict[str, dict[str, Claim]] = {}
    for state in {state.key: state for state in states}.values():
        claim = read_claim(runs, state.key) if state.state in ALIVE else None
        try:
            if claim is None:  # a process may run although its `gpas run` died and another one removed the claim
                done[state.key] = cancel_process(look, state, None)
            elif claim.submission and isinstance(scheduler_of(look, claim), CancelsTogether):
                together.setdefault(claim.scheduler, {})[state.key] = claim
            else:
                done[state.key] = scheduler_of(look, claim).cancel(state, claim)
        except UNREADABLE as error:
            done[state.key] = False, f"could not be cancelled: {explain(error)}"
    for name, stages in together.items():
        scheduler = look.scheduler(name)
        assert isinstance(scheduler, CancelsTogether)
        done |= scheduler.cancel_all(stages)
    return [Cancelling(state, *done[state.key]) for state in states]
