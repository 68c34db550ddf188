"""The status of one attempt, from the files in its directory; exit codes of jobs, and the last lines of their logs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, explain
from gpas_cli.events import Malformed, Outcome, Removal, Score, Started, Warned
from gpas_cli.files import read_regular
from gpas_cli.period import seconds_since
from gpas_cli.state import cancellation, locks, rerun
from gpas_cli.state.claims import SILENCE_SECONDS
from gpas_cli.state.locks import Lock
from gpas_cli.state.status import OUTCOMES, RESULTS, UNREADABLE, StageStatus, checkpoint_step
from gpas_cli.store.journal import Line, lines_in, raw_tail, tail
from gpas_cli.store.records import AttemptRecord, ExitRecord, ProcessRecord
from gpas_cli.store.rundir import AttemptDir, read_record

_OUTCOME_BYTES = 2048  # at the end of a journal, enough to contain an outcome
_PROGRESS_BYTES = 65536  # at the end of a journal, enough to compute the progress
_NEWEST = {"step": 32, "layers": 1, "scoring": 32}  # the number of events of each kind that `progress` needs
_END_BYTES = 4096


def conclude(attempt: AttemptDir) -> StageStatus:
    """Return the status of one attempt, `unknown` if its files cannot be read."""
    try:
        return _conclude(attempt)
    except UNREADABLE as error:
        evidence = f"unreadable: {explain(error)}"
        return StageStatus(state="unknown", evidence=evidence, attempt=attempt.number, directory=attempt.path)


def result_of(attempt: AttemptDir) -> StageStatus | None:
    """Return the status of an attempt that has a result, None for any other one."""
    try:
        last, raw = _ending(attempt)
    except UNREADABLE:
        return None
    return _from_outcome(last, attempt, raw) if isinstance(last, Outcome) and last.outcome in RESULTS else None


def _ending(attempt: AttemptDir) -> tuple[Outcome | Malformed | None, Sequence[bytes]]:
    """Return the outcome at the end of an attempt's journal, and the lines there. Raises OSError."""
    raw = raw_tail(attempt.journal_path, _OUTCOME_BYTES)
    last = outcome(raw)
    if last is None:
        raw = raw_tail(attempt.journal_path, _PROGRESS_BYTES, newest=_NEWEST)
        last = outcome(raw)
    return last, raw


def _conclude(attempt: AttemptDir) -> StageStatus:
    """Return the status of one attempt from its own files. Raises OSError or StoreError if they cannot be read."""
    last, raw = _ending(attempt)
    if last is not None:
        status = _from_outcome(last, attempt, raw)
        return status if status.state in RESULTS else _submitted(status, attempt.read_attempt())
    asked = attempt.read_attempt()
    status = _from_process(attempt, asked, raw)
    if status.state != "running":
        # The process may have written its outcome and exited between the reading of the journal and of the lock.
        last, raw = _ending(attempt)
        if last is not None:
            return _submitted(_from_outcome(last, attempt, raw), asked)
    age = _age(_newest_first(raw), status.age)
    return _submitted(replace(status, journal_end=raw, age=age, attempt=attempt.number, directory=attempt.path), asked)


def _submitted(status: StageStatus, asked: AttemptRecord) -> StageStatus:
    """Return the status with the submission, or the `gpas run`, that made the attempt, if there is no result."""
    made = asked.slurm.submission if asked.slurm else asked.submitter.id
    return status if status.state in RESULTS else replace(status, submission=made)


def outcome(raw: Sequence[bytes]) -> Outcome | Malformed | None:
    """Return the outcome at the end of a journal, None without one. Warnings after it are ignored; any other event
    revokes it."""
    events = (line.event for line in _newest_first(raw))
    last = next((event for event in events if not isinstance(event, Warned)), None)
    if isinstance(last, Malformed):
        return last if last.name == "outcome" else None
    return last if isinstance(last, Outcome) else None


def _newest_first(raw: Sequence[bytes]) -> Iterator[Line]:
    return (line for each in reversed(raw) for line in _decoded(each))


@lru_cache(maxsize=1)  # the last line of a journal has the outcome and the age
def _decoded(raw: bytes) -> list[Line]:
    return lines_in([raw])


def final_step(attempt: AttemptDir) -> int | None:
    """Return the number of updates, or other steps, of an attempt that is done; None for any other attempt."""
    last = outcome(raw_tail(attempt.journal_path, _PROGRESS_BYTES))
    return last.step if isinstance(last, Outcome) and last.outcome == "done" else None


def resumable(runs: Path, key: str) -> int | None:
    """Return the step of the newest checkpoint of the stage's attempts, None if there is none."""
    for attempt in reversed(rerun.deciding(runs, key)):
        step = checkpoint_step(tail(attempt.journal_path, 16 * _PROGRESS_BYTES))
        if step is not None and attempt.checkpoints.is_dir():
            return step
    return None


def _from_outcome(event: Outcome | Malformed, attempt: AttemptDir, raw: Sequence[bytes]) -> StageStatus:
    """Return the status that the last event of an attempt's journal gives; `raw` are the last lines."""
    age = _age(_newest_first(raw), None)
    where: dict[str, Any] = {"age": age, "attempt": attempt.number, "directory": attempt.path, "journal_end": raw}
    if isinstance(event, Malformed):
        evidence = f"the journal ends in a malformed outcome: {event.problem}"
        return StageStatus(state="unknown", evidence=evidence, **where)
    state = event.outcome
    if state not in OUTCOMES:
        evidence = f"the journal ends in an outcome this version does not know: {state!r}"
        return StageStatus(state="unknown", evidence=evidence, **where)
    return StageStatus(
        state=state, outcome=state, evidence="outcome in the journal", source="outcome", cause=event.cause,
        metrics=event.metrics, counted=event.warnings or 0, **where,
    )  # fmt: skip


def _from_process(attempt: AttemptDir, asked: AttemptRecord, raw: Sequence[bytes]) -> StageStatus:
    if attempt.exit_path.exists():
        return _from_exit(attempt, asked, attempt.read_exit())
    held = locks.probe(alive_path(attempt))
    if held is Lock.HELD:
        doing = "" if next(_newest_first(raw), None) else ", no event yet"
        evidence = f"its process holds alive.lock{doing}"
        return StageStatus(state="running", evidence=evidence, source="lock", age=seconds_since(asked.created))
    here = _host(asked, raw) == socket.gethostname() or locks.seen_from_here(alive_path(attempt), _boot(attempt))
    if here and held is not Lock.UNKNOWABLE:
        return _ended(attempt, asked, "the process ended without an outcome, and its exit was not recorded", "lock")
    return _from_silence(asked, raw)


def _from_exit(attempt: AttemptDir, asked: AttemptRecord, seen: ExitRecord) -> StageStatus:
    """Return the status after a process ended without an outcome: `failed` only if it exited with an error code."""
    code, signal = seen.code, seen.signal
    how = f"signal {signal}" if signal else f"exit code {code}"
    evidence = f"the process ended without an outcome ({how}, exit.json)"
    if code == JobExit.FAULTY_NODE:
        return replace(_ended(attempt, asked, evidence, "exit"), cause=_said(attempt, seen))
    if signal or code in (0, None, JobExit.INTERRUPTED):
        return replace(_ended(attempt, asked, evidence, "exit"), signal=signal, cause=seen.error if signal else "")
    if code == JobExit.CANCELLED:
        return StageStatus(state="cancelled", evidence=evidence, source="exit")
    return StageStatus(state="failed", evidence=evidence, cause=_said(attempt, seen), source="exit")


def _said(attempt: AttemptDir, seen: ExitRecord) -> str:
    """Return why a process ended: the error in exit.json, else the last line of its log."""
    return seen.error or last_line(attempt.log_path)


def _ended(attempt: AttemptDir, asked: AttemptRecord, evidence: str, source: str) -> StageStatus:
    if cancellation.request_path(attempt.path).exists():
        return StageStatus(state="cancelled", evidence=f"{evidence}, after a request to cancel", source=source)
    return StageStatus(state="interrupted", evidence=evidence, age=seconds_since(asked.created), source=source)


def _from_silence(asked: AttemptRecord, raw: Sequence[bytes]) -> StageStatus:
    age = _age(_newest_first(raw), seconds_since(asked.created)) or 0.0
    where = _host(asked, raw) or "a host that is not recorded"
    state = "running" if age < SILENCE_SECONDS else "unknown"
    evidence = f"events from {where}, whose locks cannot be seen from here"
    return StageStatus(state=state, evidence=evidence, age=age, source="silence")


def _host(asked: AttemptRecord, raw: Sequence[bytes]) -> str:
    """Return the host that the attempt's process runs on, "" if unknown."""
    events = (line.event for line in _newest_first(raw))
    return next((event.host for event in events if isinstance(event, Started) and event.host), asked.submitter.host)


def _boot(attempt: AttemptDir) -> str:
    """Return the boot id of the kernel that the attempt's process runs under, "" if it is not recorded."""
    with suppress(OSError, GpasError):
        return read_record(ProcessRecord, process_path(attempt)).token.rpartition("/")[0]
    return ""


def process_path(attempt: AttemptDir) -> Path:
    """Return the file with {host, pid, token} of the attempt's process; the token is BOOT/START if both are known."""
    return attempt.path / "process.json"


def alive_path(attempt: AttemptDir) -> Path:
    return attempt.path / "alive.lock"


def lives(attempt: AttemptDir) -> bool:
    """Return whether a process of the attempt holds its lock: the job, or a child that outlived it."""
    return locks.probe(alive_path(attempt)) is Lock.HELD


def _age(newest_first: Iterator[Line], otherwise: float | None) -> float | None:
    newest = next(newest_first, None)
    return seconds_since(newest.t) if newest else otherwise


def attempts_without_progress(runs: Path, key: str) -> int:
    """Return how many of the stage's newest attempts in a row made no progress beyond the earlier ones."""
    best, count = 0, 0
    for attempt in rerun.deciding(runs, key):
        lines = _last_lines(attempt)
        reached = checkpoint_step(lines) or 0
        # What an earlier attempt has measured is not measured again.
        measured = any(isinstance(line.event, Score | Removal) for line in lines)
        count = 0 if reached > best or measured else count + 1
        best = max(best, reached)
    return count


def _last_lines(attempt: AttemptDir) -> Sequence[Line]:
    with suppress(OSError):
        return tail(attempt.journal_path, _PROGRESS_BYTES)
    return ()


class JobExit(IntEnum):
    """Exit codes of the process of an attempt. Any other code means failure."""

    RESULT = 0  # done or diverged
    FAILED = 1
    INTERRUPTED = 75  # to be resumed from its checkpoint
    FAULTY_NODE = 76  # to be resumed on another node: this one does not have the GPUs that the job asked for
    CANCELLED = 130

    @classmethod
    def of(cls, outcome: str) -> JobExit:
        """Return the exit code for an outcome of the journal."""
        return cls.RESULT if outcome in ("done", "diverged") else cls[outcome.upper()]


def end_of(log: Path) -> str:
    """Return the last END_BYTES of a log, "" if it cannot be read."""
    with suppress(OSError):
        return read_regular(log, _END_BYTES)[0].decode(errors="replace")
    return ""


def last_line(log: Path, ignored: re.Pattern[str] | None = None) -> str:
    """Return the last line of a log that is neither blank nor matches `ignored`. In a traceback that is the error."""
    lines = (line.strip() for line in reversed(end_of(log).splitlines()))
    return next((line for line in lines if line and not (ignored and ignored.match(line))), "")
