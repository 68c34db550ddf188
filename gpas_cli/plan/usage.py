"""Resource usage: running and queued cells, their cost so far, and the estimated end."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpas_cli.plan.estimate import makespan
from gpas_cli.state.status import ALIVE, RESULTS, UNREADABLE, CellStatus, by_run
from gpas_cli.state.usage import NOTHING, Usage, end_of, exit_time, usage_of
from gpas_cli.store.rundir import AttemptDir, attempts, read_json
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped


class Running(Frozen):
    """A running cell."""

    state: CellStatus
    node: str
    devices: tuple[str, ...]  # of its attempt
    spent: Usage  # the usage over all attempts at its stages


class GridUsage(Frozen):
    """The usage of a grid: its cells by state, their usage so far, and, if all that is left of it is running or queued
    (or has failed or been cancelled), the estimate for that."""

    grid: str
    states: Counter[str]
    spent: Usage
    to_go: Usage | None
    ends: float | None  # in seconds from now

    @property
    def ends_at(self) -> float | None:
        """The unix time of the end."""
        return None if self.ends is None else time.time() + self.ends

    @property
    def left(self) -> int:
        """The number of cells without a result."""
        return sum(count for state, count in self.states.items() if state not in RESULTS)


class Activity(Frozen):
    """Running and queued cells, and the usage by grid. In `total`, a cell that several grids share counts once."""

    running: tuple[Running, ...]
    queued: tuple[CellStatus, ...]
    grids: tuple[GridUsage, ...]
    total: GridUsage


@dataclass
class UsageMeter:
    """Computes the usage of attempts. One whose exit.json has the time of its end is read only once."""

    runs: Path
    _ended: dict[Path, Usage] = field(default_factory=dict)

    def activity(self, states: Sequence[CellStatus]) -> Activity:
        """Return the running and queued cells and the usage by grid, for cells with these states."""
        living = {state.key: state.directory for state in states if state.state == "running"}
        keys = {stage.key for state in states for stage in state.entry.cell.stages}
        spent = {key: self._stage(key, living.get(key)) for key in sorted(keys)}
        once = list({state.entry.cell.key: state for state in states}.values())
        runs = by_run(states)
        running = [self._running(state, spent) for state in runs if state.state == "running"]
        queued = [state for state in runs if state.state == "queued"]
        by_grid = grouped((state.entry.grid, state) for state in states)
        grids = tuple(_use(name, own, spent) for name, own in by_grid.items())
        alone = len(grids) == 1 and len(once) == len(states)
        return Activity(
            running=tuple(sorted(running, key=lambda run: (run.node, run.state.entry.id))),
            queued=tuple(sorted(queued, key=lambda state: state.job.place or 10**9 if state.job else 10**9)),
            grids=grids,
            total=replace(grids[0], grid="") if alone else _use("", once, spent),
        )

    def spent(self, state: CellStatus) -> Usage:
        """Return the usage of the cell so far, over all stages and attempts."""
        living = state.directory if state.state == "running" else None
        return sum((self._stage(stage.key, living) for stage in state.entry.cell.stages), NOTHING)

    def _stage(self, key: str, living: Path | None) -> Usage:
        """Return the usage of the stage over all attempts; the one in the folder `living` is still running."""
        tries = attempts(self.runs, key)
        return sum((self._attempt(attempt, running=attempt.path == living) for attempt in tries), NOTHING)

    def _attempt(self, attempt: AttemptDir, *, running: bool) -> Usage:
        """Return the usage of an attempt; nothing for a damaged one, whose usage is unknown."""
        known = self._ended.get(attempt.path)
        if known is not None and not running:
            return known
        try:
            asked = read_json(attempt.attempt_path)  # the whole record would take ten times as long
            ended = None if running else exit_time(attempt)
            until = time.time() if running else ended or end_of(attempt)
            used = usage_of(max(0.0, until - asked["created"]), asked["devices"])
        except UNREADABLE:
            return NOTHING
        if ended is not None:
            self._ended[attempt.path] = used
        return used

    def _running(self, state: CellStatus, spent: Mapping[str, Usage]) -> Running:
        node, devices = state.job.nodes if state.job else "", tuple[str, ...]()
        if state.directory:
            with suppress(*UNREADABLE):
                asked = AttemptDir(state.directory).read_attempt()
                devices = asked.devices
                node = node or (asked.slurm.nodes if asked.slurm else "") or asked.submitter.host
        return Running(state, node, devices, _of(state, spent))


def _of(state: CellStatus, spent: Mapping[str, Usage]) -> Usage:
    """Return the usage of all stages of a cell."""
    return sum((spent[stage.key] for stage in state.entry.cell.stages), NOTHING)


def _use(grid: str, states: Sequence[CellStatus], spent: Mapping[str, Usage]) -> GridUsage:
    """Return the usage of a grid. Running cells are extrapolated; queued ones use the median of similar cells."""
    lively = [state for state in states if state.state in ALIVE]
    likes = _likes(states, spent) if lively else {}
    lasting = [_lasts(state, likes) for state in lively]
    known = [seconds for seconds in lasting if seconds is not None]
    running = [_of(state, spent) for state in states if state.state == "running"]
    whole = bool(running) and len(known) == len(lasting) and all(map(_is_coming, states))
    rates = [taken.times(1 / taken.seconds) for taken in running if taken.seconds]
    return GridUsage(
        grid=grid,
        states=Counter(state.state for state in states),
        spent=sum((spent[key] for key in {stage.key for s in states for stage in s.entry.cell.stages}), NOTHING),
        to_go=sum(rates, NOTHING).times(sum(known) / len(rates)) if whole and rates else None,
        ends=makespan([(seconds / 3600, 1) for seconds in known], len(running)) * 3600 if whole else None,
    )


def _is_coming(state: CellStatus) -> bool:
    """Return whether nothing more has to be started for a cell to end. A job for another grid runs only its stage."""
    if state.state in ALIVE:
        return state.grid in ("", state.entry.grid) or state.key == state.entry.key
    return state.state in (*RESULTS, "failed", "cancelled")


def _likes(states: Sequence[CellStatus], spent: Mapping[str, Usage]) -> dict[tuple[str, object], float]:
    """Return (grid, size) -> the median seconds of its cells that are done or report their remaining time."""
    import statistics  # here, because it takes longer than to count the cells of a grid that has ended

    known = ((state, _eta(state)) for state in states)
    found = grouped(
        (_like(state), _of(state, spent).seconds + (eta or 0.0))
        for state, eta in known
        if state.state == "done" or eta is not None
    )
    return {like: statistics.median(seconds) for like, seconds in found.items()}


def _lasts(state: CellStatus, likes: Mapping[tuple[str, object], float]) -> float | None:
    """Return the remaining seconds of a running or queued cell, None if unknown. An interrupted cell resumes."""
    eta = _eta(state)
    usual = likes.get(_like(state))
    return eta if eta is not None or usual is None else usual * (1 - (state.fraction or 0.0))


def _eta(state: CellStatus) -> float | None:
    return state.progress.eta if state.state == "running" and state.progress else None


def _like(state: CellStatus) -> tuple[str, object]:
    return state.entry.grid, state.entry.axes.get("size")
