"""Cancelling: a queued stage is taken from its scheduler's queue, a running one is asked to stop where it is."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.permissions import explain, user
from gpas_cli.schedule.process import token
from gpas_cli.schedule.slurm import cancel as slurm
from gpas_cli.state.attempt import host, lives, process_path
from gpas_cli.state.cancellation import request
from gpas_cli.state.claims import read_claim
from gpas_cli.state.status import ALIVE, UNREADABLE, CellStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import AttemptDir, read_json, stage_dir


@dataclass(frozen=True)
class Cancelling:
    """What was done for one cell. `asked` is False where there was nothing to cancel or nobody to ask."""

    state: CellStatus
    asked: bool
    what: str


def cancel(runs: Path, states: Iterable[CellStatus]) -> list[Cancelling]:
    """Ask that each cell's current stage be cancelled; a stage that several cells share is asked once."""
    done: dict[str, Cancelling] = {}
    result, alive = [], SchedulerView(runs, max_age=0.0)
    for state in states:
        if state.key not in done:
            done[state.key] = _cancel(runs, state, alive)
        first = done[state.key]
        result.append(Cancelling(state, first.asked, first.what))
    return result


def _cancel(runs: Path, state: CellStatus, alive: SchedulerView) -> Cancelling:
    try:
        claim = read_claim(runs, state.key) if state.state in ALIVE else None
        if claim is not None and claim.submission:
            return Cancelling(state, True, slurm.cancel(runs, state.key, claim, alive.queue))
        if state.state == "queued" or state.source == "ending":
            return _cancel_queued(runs, state)
        if state.state == "running" and state.directory is not None:
            return _cancel_running(runs, state, AttemptDir(state.directory))
    except UNREADABLE as error:
        return Cancelling(state, False, f"could not be asked: {explain(error)}")
    return Cancelling(state, False, f"is {state.state}: there is nothing to cancel")


def _cancel_queued(runs: Path, state: CellStatus) -> Cancelling:
    request(stage_dir(runs, state.key))
    return Cancelling(state, True, f"{state.claim or 'its scheduler'} will not start it; `gpas retry` runs it")


def _cancel_running(runs: Path, state: CellStatus, attempt: AttemptDir) -> Cancelling:
    """Signal the process if it is certainly that of the attempt; else leave word for the scheduler that owns it."""
    pid = _verified(attempt)
    # Written first: the job looks for it when the signal comes, to tell a cancellation from a preemption.
    request(attempt.path, signalled=pid is not None)
    if pid is not None:
        try:
            return Cancelling(state, True, _terminate(pid, attempt))
        except PermissionError:  # it is another user's: the run that started it can signal it
            request(attempt.path, signalled=False)
    claim = read_claim(runs, state.key)
    if claim is not None and SchedulerView(runs)(claim):
        return Cancelling(state, True, f"{claim} will stop it")
    where = f"as {user(attempt.path.stat().st_uid)}" if pid is not None else f"on {host(attempt, ()) or 'its host'}"
    return Cancelling(state, False, f"its process cannot be reached from here; cancel it {where}")


def _verified(attempt: AttemptDir) -> int | None:
    """The id of the attempt's process, if it runs here, holds alive.lock, and is the one that was started."""
    try:
        process = read_json(process_path(attempt))
    except (OSError, GpasError):
        return None
    pid = process.get("pid")
    here = process.get("host") == socket.gethostname() and lives(attempt)
    if not here or not isinstance(pid, int) or pid <= 0 or not process.get("token"):
        return None
    return pid if process["token"] == token(pid) else None


def _terminate(pid: int, attempt: AttemptDir) -> str:
    try:
        if hasattr(os, "pidfd_open"):  # a handle on this process: an id may be given to another one meanwhile
            handle = os.pidfd_open(pid)
            try:
                if _verified(attempt) == pid:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)
        else:
            os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return "its process had just ended"
    return f"process {pid} was asked to stop"
