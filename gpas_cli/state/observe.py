"""Run directories -> the status of each stage and cell. Read-only, and without the database.

Evidence, strongest first:

 1. an outcome in the journal
 2. exit.json: another process saw the job end
 3. alive.lock: the process of the job holds it exactly as long as it lives
 4. a claim, as reported by the scheduler that it names (`state.view`)
 5. the age of the last event, if locks are not visible (on another host, except in containers of this one)

Without evidence a stage does not count as ended: its state is `unknown`, with the reason.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpas_cli.errors import explain
from gpas_cli.files import overlapped
from gpas_cli.grid.declared import Entry
from gpas_cli.state import cancellation, rerun
from gpas_cli.state.attempt import conclude, lives, result_of
from gpas_cli.state.claims import CLAIM, read_claim
from gpas_cli.state.status import ALIVE, RESULTS, UNREADABLE, CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import FORGOTTEN, AttemptDir, Listing, all_keys, look_in, stage_dir

_CANCELLABLE = ("missing", "queued", "interrupted")  # the states in which a request to cancel takes effect


def cell_statuses(
    runs: Path, entries: Iterable[Entry], *, jobs: bool = False, seen: dict[str, StageStatus] | None = None
) -> list[CellStatus]:
    """Return the status of each entry, in order.

    Each stage is read once, even if entries share it; stages in `seen` are not read again. With `jobs`, the status of a
    queued or running cell includes the scheduler's job and its position in the queue, even if the state does not depend
    on them.
    """
    seen = {} if seen is None else seen
    alive = SchedulerView(runs, line=jobs)
    entries = list(entries)
    first = dict.fromkeys(entry.cell.stages[0].key for entry in entries)
    seen |= observe_each(runs, [key for key in first if key not in seen], alive)
    states = [_cell_state(runs, entry, seen, alive) for entry in entries]
    for place, state in enumerate(states if jobs else ()):
        if state.job is None and state.state in ALIVE:
            job = alive.job_of(read_claim(runs, state.key))
            evidence = f"{job}; {state.evidence}" if job and job.suspended else state.evidence
            states[place] = replace(state, job=job, evidence=evidence)
    return states


def observe_all(runs: Path, keys: Iterable[str]) -> dict[str, StageStatus]:
    """Return the status of each stage. Stages without a folder cost nothing: their folders are listed once."""
    alive = SchedulerView(runs)
    unreadable: list[str] = []
    there = set(all_keys(runs, unreadable))
    untried = StageStatus(state="missing", evidence=_none(()))
    keys = list(keys)
    found = observe_each(runs, [key for key in keys if key in there or unreadable], alive)
    return {key: found.get(key, untried) for key in keys}


def statuses(runs: Path, entries: Iterable[Entry]) -> dict[str, StageStatus]:
    """Return the status of every stage of the entries, by key."""
    return observe_all(runs, [stage.key for entry in entries for stage in entry.cell.stages])


def _cell_state(runs: Path, entry: Entry, seen: dict[str, StageStatus], alive: SchedulerView) -> CellStatus:
    for stage in entry.cell.stages:
        if stage.key not in seen:
            seen[stage.key] = observe(runs, stage.key, alive)
        if seen[stage.key].state != "done":
            break
    return CellStatus.of(entry, stage, seen[stage.key])


def observe(runs: Path, key: str, alive: SchedulerView | None = None) -> StageStatus:
    """Return the status of the stage `key`, `unknown` if its directory cannot be read."""
    return observe_each(runs, [key], alive)[key]


def observe_each(
    runs: Path, keys: Sequence[str], alive: SchedulerView | None = None, listed: Mapping[str, Listing] | None = None
) -> dict[str, StageStatus]:
    """Return the status of each stage. What attempts show is read of several at a time, the scheduler is asked once.

    listed: what `look_in` has just returned for some of the stages, which are not listed again.
    """
    states = {}
    asked = alive or SchedulerView(runs)
    for key, found in zip(keys, overlapped(partial(_read, runs, listed or {}), keys), strict=True):
        try:
            states[key] = _with_claim(runs, key, asked, *found)
        except UNREADABLE as error:
            states[key] = _unreadable(error)
    return states


def _read(runs: Path, listed: Mapping[str, Listing], key: str) -> tuple[StageStatus, frozenset[str]]:
    """Return the status that the attempts at a stage show, and the files beside them."""
    stage = stage_dir(runs, key)
    try:
        tries, files = listed.get(key) or look_in(stage)
        return _of_attempts(runs, stage, tries, files), files
    except UNREADABLE as error:
        return _unreadable(error), frozenset()


def _unreadable(error: Exception) -> StageStatus:
    return StageStatus(state="unknown", evidence=f"unreadable: {explain(error)}")


def _of_attempts(runs: Path, stage: Path, tries: list[str], files: frozenset[str]) -> StageStatus:
    """Return the status that the attempts `tries` at a stage show, without claims and requests to cancel."""
    result = None
    if rerun.FILE in files:
        after = rerun.superseded(runs, stage.name)
        result = _newest_result(stage, [name for name in tries if int(name) <= after])
        tries = [name for name in tries if int(name) > after]
    last = conclude(AttemptDir(stage / tries[-1])) if tries else StageStatus(state="missing", evidence=_none(files))
    if not tries and rerun.FILE in files:
        last = _asked_again(runs, stage.name, result)
    if last.state not in RESULTS:
        # An earlier result remains valid, whatever happened in later attempts.
        last = _newest_result(stage, tries[:-1]) or replace(last, stands=result.state if result else "")
    return last


def _with_claim(runs: Path, key: str, alive: SchedulerView, last: StageStatus, files: frozenset[str]) -> StageStatus:
    """Return the status that attempts, claims and requests to cancel show together."""
    if last.state in RESULTS:
        return last
    if last.source in ("outcome", "exit") and last.directory and lives(AttemptDir(last.directory)):
        evidence = f"{last.state}, but a process of attempt {last.attempt} still holds alive.lock"
        return replace(last, state="running", evidence=evidence, cause="", source="ending")
    if last.state in ALIVE and last.source != "silence":
        return last
    claim = read_claim(runs, key) if CLAIM in files else None
    if claim:
        last = alive.state_of(key, last, claim)
        if claim.grid and (last.state in ALIVE or not last.grid):
            last = replace(last, claimed_for=claim.grid)
    return _cancelled(last) if cancellation.FILE in files and last.state in _CANCELLABLE else last


def _none(files: Collection[str]) -> str:
    """Return why a stage has no attempt."""
    return "its result was forgotten" if any(name.startswith(FORGOTTEN) for name in files) else "no attempt"


def _newest_result(stage: Path, tries: Sequence[str]) -> StageStatus | None:
    return next(filter(None, (result_of(AttemptDir(stage / name)) for name in reversed(tries))), None)


def _asked_again(runs: Path, key: str, result: StageStatus | None) -> StageStatus:
    """Return the status of a stage whose new run has not started yet, with the metrics of its earlier result."""
    until = f"; the result of attempt {result.attempt} counts until then" if result else ""
    metrics = result.metrics if result else {}
    return StageStatus(state="missing", evidence=f"to be run again{until}", age=rerun.age(runs, key), metrics=metrics)


def _cancelled(last: StageStatus) -> StageStatus:
    before = f" again after attempt {last.attempt}" if last.attempt else ""
    return replace(last, state="cancelled", evidence=f"cancelled before it started{before}", cause="", outcome="")
