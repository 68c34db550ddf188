"""Evidence in the run directories -> the state of each stage and cell. Reads only; asks no database.

What counts, strongest first:

 1. an outcome in the journal
 2. exit.json: somebody saw the process end
 3. alive.lock: the job's process holds it for exactly as long as it lives
 4. a claim whose submitter lives, or whose SLURM job the scheduler has (`launch.slurm.judge`)
 5. where locks tell nothing (another host, unless it is a container of this one), the age of the last event

Absence of evidence never ends a stage: what cannot be told is `unknown`, with the reason.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.launch import cancellation, locks, rerun
from gpas_cli.launch.locks import Lock
from gpas_cli.launch.progress import Event, Progress, checkpoint_step, progress
from gpas_cli.launch.slurm.jobs import Job
from gpas_cli.launch.slurm.judge import judge
from gpas_cli.launch.slurm.queue import FRESH, FRESH_LINE
from gpas_cli.launch.submitters import CLAIM, SILENCE, Claim, Liveness, read_claim
from gpas_cli.permissions import explain
from gpas_cli.store.files import open_regular
from gpas_cli.store.journal import tail
from gpas_cli.store.rundir import AttemptDir, look_in, read_json

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

STATES = ("missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown")
RESULTS = ("done", "diverged")  # nothing is left to do
ALIVE = ("queued", "running")  # somebody is at it
GLANCE, LOOK = 2048, 65536  # bytes of journal: enough for an outcome; enough for progress
NEWEST = {"step": 32, "layers": 1}  # events of these kinds that progress is told from
_CANCELLABLE = ("missing", "queued", "interrupted")  # a request to cancel counts for a stage that is not under way
# What reading a file raises that somebody else wrote: one stage that cannot be told must not stop a command.
UNREADABLE = (OSError, GpasError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
EXIT_INTERRUPTED, EXIT_CANCELLED = 75, 130  # a job's exit codes beside 0 (done or diverged) and 1 (failed)
EXIT_NODE = 76  # interrupted, and to be run on another machine


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What is known of one stage, and from what.

    `age` is seconds since the newest evidence. `outcome` is what the journal says, "" when it says nothing, `cause` why
    a stage did not come to a result. `attempt` and `directory` are those of the attempt that decided. `source` is the
    kind of that evidence: outcome, exit, lock, ending (a lock after one of the first two) or silence. `submission` is
    the SLURM submission that made an attempt without a result, `job` what SLURM says of it. `blocker` is the key of the
    stage for whose failure it was not started. `signal` is the number of the signal that ended the process, if known.
    `stands` is how an earlier attempt ended whose result counts until the stage has been run again, as was asked for.
    """

    state: str
    evidence: str
    age: float | None = None
    outcome: str = ""
    cause: str = ""
    attempt: int | None = None
    directory: Path | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    claim: Claim | None = None
    source: str = ""
    submission: str = ""
    job: Job | None = None
    blocker: str = ""
    stands: str = ""
    signal: int | None = None

    @property
    def fraction(self) -> float | None:
        """The share of the stage's steps that is done, None when nothing tells."""
        seen = self.progress
        return seen.step / seen.steps if seen and seen.step is not None and seen.steps else None


@dataclass(frozen=True, kw_only=True)
class CellState(Sighting):
    """A cell is in the state of its first stage that lacks a result, or of its last stage."""

    entry: Entry
    stage: str
    key: str


def look(
    runs: Path, entries: Iterable[Entry], *, jobs: bool = False, seen: dict[str, Sighting] | None = None
) -> list[CellState]:
    """The state of each entry, in order. Every stage is read once, however many entries share it, and not at all where
    `seen` has it.

    With `jobs`, the SLURM job of each stage that is under way is told even where its state did not depend on it, and
    where jobs that wait stand in line.
    """
    seen = {} if seen is None else seen
    alive = Liveness(runs, FRESH_LINE if jobs else FRESH, line=jobs)
    states = [_cell_state(runs, entry, seen, alive) for entry in entries]
    return [_with_job(runs, state, alive) for state in states] if jobs else states


def _with_job(runs: Path, state: CellState, alive: Liveness) -> CellState:
    if state.job is not None or state.state not in ALIVE:
        return state
    claim = read_claim(runs, state.key)
    job = alive.queue.find(claim.submission, claim.index) if claim and claim.submission else None
    return replace(state, job=job)


def sightings(runs: Path, entries: Iterable[Entry]) -> dict[str, Sighting]:
    """Key -> what is known, for every stage of the entries."""
    alive = Liveness(runs)
    keys = dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages)
    return {key: observe(runs, key, alive) for key in keys}


def _cell_state(runs: Path, entry: Entry, seen: dict[str, Sighting], alive: Liveness) -> CellState:
    for stage in entry.cell.stages:
        if stage.key not in seen:
            seen[stage.key] = observe(runs, stage.key, alive)
        if seen[stage.key].state != "done":
            break
    return CellState(entry=entry, stage=stage.kind, key=stage.key, **vars(seen[stage.key]))


def observe(runs: Path, key: str, alive: Liveness | None = None) -> Sighting:
    """The state of the stage `key`. Never raises for what it finds: an unreadable directory is `unknown`."""
    try:
        return _observe(runs, key, alive or Liveness(runs))
    except UNREADABLE as error:
        return Sighting(state="unknown", evidence=f"unreadable: {explain(error)}")


def _observe(runs: Path, key: str, alive: Liveness) -> Sighting:
    tries, files = look_in(runs, key)
    result = None
    if rerun.FILE in files:
        after = rerun.superseded(runs, key)
        result = _newest_result([t for t in tries if t.number <= after])
        tries = [t for t in tries if t.number > after]
    last = conclude_or_unknown(tries[-1]) if tries else Sighting(state="missing", evidence="no attempt")
    if not tries and rerun.FILE in files:
        last = _asked_again(runs, key, result)
    if last.state not in RESULTS:
        # A result once obtained stands, whatever was tried after it.
        last = _newest_result(tries[:-1]) or replace(last, stands=result.state if result else "")
    if last.source in ("outcome", "exit") and last.state not in RESULTS and lives(tries[-1]):
        evidence = f"{last.state}, but a process of attempt {last.attempt} still holds alive.lock"
        last = replace(last, state="running", evidence=evidence, cause="", source="ending")
    if last.state in RESULTS or (last.state in ALIVE and last.source != "silence"):
        return last
    claim = read_claim(runs, key) if CLAIM in files else None
    if claim and claim.submission:
        last = judge(runs, key, last, claim, alive)
    elif last.state not in ALIVE and claim and alive(claim):
        last = _claimed(last, claim)
    return _cancelled(last) if cancellation.FILE in files and last.state in _CANCELLABLE else last


def _newest_result(tries: Sequence[AttemptDir]) -> Sighting | None:
    return next((found for found in map(conclude_or_unknown, reversed(tries)) if found.state in RESULTS), None)


def _asked_again(runs: Path, key: str, result: Sighting | None) -> Sighting:
    """A stage that is to be run again and has not been started yet. The metrics are those that tables show."""
    until = f"; the result of attempt {result.attempt} counts until then" if result else ""
    metrics = result.metrics if result else {}
    return Sighting(state="missing", evidence=f"to be run again{until}", age=rerun.age(runs, key), metrics=metrics)


def _cancelled(last: Sighting) -> Sighting:
    before = f" again after attempt {last.attempt}" if last.attempt else ""
    return replace(last, state="cancelled", evidence=f"cancelled before it started{before}", cause="", outcome="")


def _claimed(last: Sighting, claim: Claim) -> Sighting:
    if last.state == "unknown":  # a claim is given back when its job has ended
        return replace(last, state="running", evidence=f"claimed by {claim}, which lives; {last.evidence}", claim=claim)
    before = f" after attempt {last.attempt} ({last.state})" if last.attempt else ""
    age = max(0.0, time.time() - claim.since)
    return replace(last, state="queued", evidence=f"claimed by {claim}{before}", age=age, cause="", claim=claim)


def conclude(attempt: AttemptDir) -> Sighting:
    """The state of one attempt by itself. Raises OSError or StoreError when its files cannot be read."""
    events = tail(attempt.journal_path, GLANCE)
    told = outcome(events)
    if told is None:
        events = tail(attempt.journal_path, LOOK, newest=NEWEST)
        told = outcome(events)
    found = _from_outcome(told) if told else _from_process(attempt, events)
    if told is None and found.state != "running":
        # The process may have told its outcome and ended after the journal was read and before the lock was.
        events = tail(attempt.journal_path, LOOK, newest=NEWEST)
        told = outcome(events)
        found = _from_outcome(told) if told else found
    made = None if found.state in RESULTS else attempt.read_attempt().get("slurm")
    return replace(
        found, progress=progress(events), age=_age(events, found.age), attempt=attempt.number, directory=attempt.path,
        submission=str(made.get("submission", "")) if isinstance(made, Mapping) else "",
    )  # fmt: skip


def outcome(events: Sequence[Event]) -> Event | None:
    """The outcome event that ends a journal. A warning may follow it; a new start takes it back."""
    last = next((event for event in reversed(events) if event.get("kind") != "warning"), None)
    return last if last is not None and last.get("kind") == "outcome" else None


def resumable(runs: Path, key: str) -> int | None:
    """The step of the newest checkpoint of the stage's attempts, None when there is none."""
    for attempt in reversed(rerun.deciding(runs, key)):
        step = checkpoint_step(tail(attempt.journal_path, 16 * LOOK))
        if step is not None and attempt.checkpoints.is_dir():
            return step
    return None


def conclude_or_unknown(attempt: AttemptDir) -> Sighting:
    """`conclude`, with what cannot be read as an unknown state."""
    try:
        return conclude(attempt)
    except UNREADABLE as error:
        evidence = f"unreadable: {explain(error)}"
        return Sighting(state="unknown", evidence=evidence, attempt=attempt.number, directory=attempt.path)


def _from_outcome(event: Event) -> Sighting:
    state = str(event.get("outcome"))
    if state not in ("done", "diverged", "failed", "cancelled", "interrupted"):
        return Sighting(
            state="unknown", evidence=f"the journal ends in an outcome this version does not know: {state!r}"
        )
    metrics = event.get("metrics")
    return Sighting(
        state=state,
        outcome=state,
        evidence="outcome in the journal",
        source="outcome",
        cause=str(event.get("cause") or ""),
        metrics=metrics if isinstance(metrics, Mapping) else {},
    )


def _from_process(attempt: AttemptDir, events: Sequence[Event]) -> Sighting:
    if attempt.exit_path.exists():
        return _from_exit(attempt, read_json(attempt.exit_path))
    held = locks.probe(alive_path(attempt))
    if held is Lock.HELD:
        doing = "" if events else ", no event yet"
        evidence = f"its process holds alive.lock{doing}"
        return Sighting(state="running", evidence=evidence, source="lock", age=_since_created(attempt))
    here = host(attempt, events) == socket.gethostname() or locks.seen_from_here(alive_path(attempt), _boot(attempt))
    if here and held is not Lock.UNKNOWABLE:
        return _ended(attempt, "the process ended without an outcome; nobody saw how", "lock")
    return _from_silence(attempt, events)


def _from_exit(attempt: AttemptDir, seen: Mapping[str, Any]) -> Sighting:
    """The process ended without telling an outcome: only an exit code of its own choice can say that it failed."""
    code = seen.get("code")
    signal = number if isinstance(number := seen.get("signal"), int) else None
    how = f"signal {signal}" if signal else f"exit code {code}"
    evidence = f"the process ended without an outcome ({how}, exit.json)"
    if code == EXIT_NODE:
        return replace(_ended(attempt, evidence, "exit"), cause=_said(attempt, seen))
    if signal or code in (0, None, EXIT_INTERRUPTED):
        return replace(_ended(attempt, evidence, "exit"), signal=signal)
    if code == EXIT_CANCELLED:
        return Sighting(state="cancelled", evidence=evidence, source="exit")
    return Sighting(state="failed", evidence=evidence, cause=_said(attempt, seen), source="exit")


def _said(attempt: AttemptDir, seen: Mapping[str, Any]) -> str:
    """What exit.json, or else the log, says of why a process ended."""
    return str(seen.get("error") or "") or last_line(attempt.log_path)


def _ended(attempt: AttemptDir, evidence: str, source: str) -> Sighting:
    if cancellation.request_path(attempt.path).exists():
        return Sighting(state="cancelled", evidence=f"{evidence}, after a request to cancel", source=source)
    return Sighting(state="interrupted", evidence=evidence, age=_since_created(attempt), source=source)


def _from_silence(attempt: AttemptDir, events: Sequence[Event]) -> Sighting:
    age = _age(events, _since_created(attempt)) or 0.0
    where = host(attempt, events) or "a host that is not recorded"
    state = "running" if age < SILENCE else "unknown"
    evidence = f"events from {where}, whose locks are not seen here"
    return Sighting(state=state, evidence=evidence, age=age, source="silence")


def host(attempt: AttemptDir, events: Sequence[Event]) -> str:
    """The host the attempt's process runs on, "" when nothing tells."""
    started = [str(event["host"]) for event in events if event.get("kind") == "start" and event.get("host")]
    submitter = attempt.read_attempt().get("submitter")
    return started[-1] if started else str(submitter.get("host", "")) if isinstance(submitter, Mapping) else ""


def _boot(attempt: AttemptDir) -> str:
    """The boot of the kernel that the attempt's process runs under, "" where that is not recorded."""
    try:
        return str(read_json(process_path(attempt)).get("token", "")).rpartition("/")[0]
    except (OSError, GpasError):
        return ""


def process_path(attempt: AttemptDir) -> Path:
    """{host, pid, token} of the attempt's process; the token is BOOT/START where the kernel tells both."""
    return attempt.path / "process.json"


def alive_path(attempt: AttemptDir) -> Path:
    return attempt.path / "alive.lock"


def lives(attempt: AttemptDir) -> bool:
    """Whether a process of the attempt holds its lock: the job, while it ends as well, or a child that outlived it."""
    return locks.probe(alive_path(attempt)) is Lock.HELD


def last_line(log: Path) -> str:
    """The last line a job printed that is not blank: of a traceback, the error."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _age(events: Sequence[Event], otherwise: float | None) -> float | None:
    times = [float(event["t"]) for event in events[-1:] if isinstance(event.get("t"), int | float)]
    return max(0.0, time.time() - times[0]) if times else otherwise


def _since_created(attempt: AttemptDir) -> float | None:
    created = attempt.read_attempt().get("created")
    return max(0.0, time.time() - created) if isinstance(created, int | float) else None
