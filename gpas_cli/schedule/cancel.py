"""Cancellation of cells: their scheduler removes them from its queue, or asks their processes to stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.permissions import explain, user_name
from gpas_cli.schedule.process import token
from gpas_cli.schedule.scheduler import CancelsTogether, scheduler_of
from gpas_cli.state.attempt import lives, process_path
from gpas_cli.state.cancellation import request
from gpas_cli.state.claims import Claim, read_claim
from gpas_cli.state.status import ALIVE, UNREADABLE, CellStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import ProcessRecord
from gpas_cli.store.rundir import AttemptDir, read_record, stage_dir


def cancel_process(view: SchedulerView, status: CellStatus, claim: Claim | None) -> tuple[bool, str]:
    """Cancel a queued or running stage, claimed or not. Return whether it was asked to stop, and what was done."""
    if status.state == "queued" or status.source == "ending":
        return _cancel_queued(view.runs, status)
    if status.state == "running" and status.directory is not None:
        return _cancel_running(view, AttemptDir(status.directory), claim)
    return False, f"is {status.state}: there is nothing to cancel"


def _cancel_queued(runs: Path, status: CellStatus) -> tuple[bool, str]:
    request(stage_dir(runs, status.key))
    return True, f"{status.claim or 'its scheduler'} will not start it; `gpas retry` runs it"


def _cancel_running(view: SchedulerView, attempt: AttemptDir, claim: Claim | None) -> tuple[bool, str]:
    """Signal the attempt's process if it can be verified; otherwise write a request for the run that owns it."""
    pid = _verified(attempt)
    # Written before the signal: the job reads it to distinguish a cancellation from a preemption.
    request(attempt.path, signalled=pid is not None)
    if pid is not None:
        try:
            return True, _terminate(pid, attempt)
        except PermissionError:  # another user's process: the run that started it can signal it
            request(attempt.path, signalled=False)
    if claim is not None and view.lives_now(claim):
        return True, f"{claim} will stop it"
    host = attempt.read_attempt().submitter.host or "its host"
    where = f"as {user_name(attempt.path.stat().st_uid)}" if pid is not None else f"on {host}"
    return False, f"its process cannot be reached from here; cancel it {where}"


def _verified(attempt: AttemptDir) -> int | None:
    """Return the id of the attempt's process if it runs here, holds alive.lock and is the one started; else None."""
    try:
        process = read_record(ProcessRecord, process_path(attempt))
    except (OSError, GpasError):
        return None
    here = process.host == socket.gethostname() and lives(attempt)
    if not here or process.pid <= 0 or not process.token:
        return None
    return process.pid if process.token == token(process.pid) else None


def _terminate(pid: int, attempt: AttemptDir) -> str:
    try:
        if hasattr(os, "pidfd_open"):  # a handle on this process: its id may be reused meanwhile
            handle = os.pidfd_open(pid)
            try:
                if _verified(attempt) == pid:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)
        else:
            os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return "its process has just ended"
    return f"process {pid} was asked to stop"


@dataclass(frozen=True)
class Cancelling:
    """The outcome of cancelling one cell. `asked` is False if there was nothing to cancel, or the request failed."""

    state: CellStatus
    asked: bool
    what: str


def cancel(runs: Path, states: Iterable[CellStatus]) -> list[Cancelling]:
    """Cancel the current stage of each cell; a stage that several cells share is cancelled once."""
    states = list(states)
    view = SchedulerView(runs, max_age_seconds=0.0)
    done: dict[str, tuple[bool, str]] = {}
    together: dict[str, dict[str, Claim]] = {}
    for state in {state.key: state for state in states}.values():
        claim = read_claim(runs, state.key) if state.state in ALIVE else None
        try:
            if claim is None:  # a process may run although its `gpas run` died and another one removed the claim
                done[state.key] = cancel_process(view, state, None)
            elif claim.submission and isinstance(scheduler_of(view, claim), CancelsTogether):
                together.setdefault(claim.scheduler, {})[state.key] = claim
            else:
                done[state.key] = scheduler_of(view, claim).cancel(state, claim)
        except UNREADABLE as error:
            done[state.key] = False, f"could not be cancelled: {explain(error)}"
    for name, stages in together.items():
        scheduler = view.scheduler(name)
        assert isinstance(scheduler, CancelsTogether)
        done |= scheduler.cancel_all(stages)
    return [Cancelling(state, *done[state.key]) for state in states]
