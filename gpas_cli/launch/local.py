"""The scheduler of this machine: a queue of stages, the free slots, one process per attempt.

Stages that another live `gpas run` has are followed, and run here when their owner dies. One failed job fails alone.
When this process dies, its jobs go on, and the next `gpas run` follows them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.launch import slots, spawn
from gpas_cli.launch.cancellation import request, request_path, requested
from gpas_cli.launch.claims import CLAIMABLE, Claims
from gpas_cli.launch.libraries import require_libraries
from gpas_cli.launch.ranks import LOST_PEER
from gpas_cli.launch.slots import Machine, Slots
from gpas_cli.launch.slurm.failures import fruitless
from gpas_cli.launch.snapshot import snapshot
from gpas_cli.launch.spawn import Process, Spawner
from gpas_cli.launch.stages import RUNNABLE, StageJob, blocked, stage_jobs
from gpas_cli.launch.submitters import Liveness
from gpas_cli.launch.summary import Board, Item, Reporter, Silent, Summary
from gpas_cli.launch.text_check import require_texts
from gpas_cli.launch.watch import ALIVE, RESULTS, Sighting, conclude_or_unknown, lives, observe
from gpas_cli.project import Project
from gpas_cli.store.rundir import attempts, read_json

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

POLL = 0.1  # seconds between two looks at the own processes
TICK = 1.0  # seconds between two looks at what others do
DOUBT = 30.0  # seconds for which a followed stage may be in an unknown state: a file system may hiccup


@dataclass
class Task:
    """A stage as this run sees it. `phase` is waiting (claimed, to be run here), running, followed or ended."""

    job: StageJob
    phase: str
    sighting: Sighting
    process: Process | None = None
    attempts: int = 0  # made by this run
    told: bool = False  # its process has been asked to leave
    before: bool = False  # it had ended when this run began
    skipped: bool = False  # this run gave it up without trying
    doubted: float | None = None

    @property
    def settled(self) -> bool:
        return self.phase == "ended"


class LocalScheduler:
    """Runs the stages that `entries` lack on this machine; `submit` then `follow`, or `run` for both.

    `retry` names states to run again (failed, cancelled, unknown); `limit` bounds the jobs at once below the slots;
    `ingest` is called after a job has ended and returns what went wrong. Raises GpasError before anything starts when
    a job can never run here.
    """

    name = "local"

    def __init__(
        self,
        project: Project,
        entries: Iterable[Entry],
        *,
        retry: Collection[str] = (),
        limit: int | None = None,
        reporter: Reporter | None = None,
        ingest: Callable[[], str] | None = None,
        command: Sequence[str] = spawn.JOB,
        machine: Machine | None = None,
        kinds: frozenset[str] = RUNNABLE,
    ):
        self.project, self.entries, self.kinds = project, list(entries), kinds
        self.machine = machine or slots.machine()
        self.jobs = stage_jobs(self.entries, kinds)
        self._retry, self._limit, self._command = retry, limit, command
        self._reporter, self._ingest = reporter or Silent(), ingest
        self._tasks: dict[str, Task] = {}
        self._claims: Claims | None = None
        self._stops = self._obeyed = 0
        self._starved = False
        self._next_tick = 0.0

    @property
    def claims(self) -> Claims:
        assert self._claims is not None, "submit comes first"
        return self._claims

    def run(self) -> Summary:
        """Run what is lacking and wait for all of it."""
        self.submit()
        return self.follow()

    def stop(self) -> None:
        """First call: ask the own jobs to save and leave, start no more. Second call: kill them. Safe in a handler."""
        self._stops += 1

    def submit(self) -> Counter[str]:
        """Claim what nobody has. Returns how many stages are waiting (to be run here), followed and ended (settled)."""
        runs = self.project.runs
        runs.mkdir(parents=True, exist_ok=True)
        self._claims = Claims(runs, self._retry)
        try:
            for key, sighting in self._claims.take(self.jobs).items():
                phase = "waiting" if key in self._claims.held else "followed" if sighting.state in ALIVE else "ended"
                self._tasks[key] = Task(self.jobs[key], phase, sighting, before=phase == "ended")
            slots.require(self.machine, {t.job.id: t.job.resources for t in self._in("waiting")})
            require_libraries({t.job.id: t.job.watch for t in self._in("waiting")})
            require_texts(self.project, {t.job.id: t.job.cell for t in self._in("waiting")}, self.entries)
            self._slots = Slots(runs, self.machine)
            self._spawner = Spawner(self.project, snapshot(runs), self._claims.submitter, self._command)
        except BaseException:
            self._claims.close()
            raise
        return Counter(task.phase for task in self._tasks.values())

    def follow(self) -> Summary:
        """Run and wait until every stage has ended, or `stop` has been obeyed."""
        try:
            while self._step():
                time.sleep(POLL)
            self._report()
        finally:
            self.claims.close()
        self._refresh()
        return self._summary()

    def _step(self) -> bool:
        """Do what can be done now. Returns whether anything is left to wait for."""
        self.claims.submitter.beat()
        self._reap()
        self._obey()
        self._drop_orphans()
        if not self._stops:
            self._start_ready()
        if time.monotonic() >= self._next_tick:
            began = time.monotonic()
            self._hear_cancels()
            self._watch_others()
            self._report()
            # However many cells there are, looking at them takes at most a tenth of the time.
            self._next_tick = time.monotonic() + max(TICK, 9 * (time.monotonic() - began))
        return not all(task.settled for task in self._tasks.values())

    def _in(self, phase: str) -> Iterator[Task]:
        return (task for task in list(self._tasks.values()) if task.phase == phase)

    def _reap(self) -> None:
        ended = [task for task in self._in("running") if task.process and task.process.ended()]
        for task in ended:
            assert task.process is not None
            sighting = conclude_or_unknown(task.process.attempt)
            if _was_killed(sighting) and not (task.told or self._stops):
                self._start_again(task, sighting)
            else:
                self._end(task, sighting)
        if ended:
            self._refresh()

    def _start_again(self, task: Task, sighting: Sighting) -> None:
        """Queue a job that was killed again, unless its last `retries` attempts in this run came no further."""
        in_vain = min(task.attempts, fruitless(self.project.runs, task.job.key))
        if in_vain >= task.job.resources.retries:
            cause = f"{in_vain} attempts in a row came no further; {sighting.cause or sighting.evidence}"
            self._end(task, replace(sighting, cause=cause))
            return
        task.phase, task.sighting, task.process = "waiting", sighting, None
        how = f"signal {sighting.signal}" if sighting.signal else sighting.cause
        self._reporter.notice(f"{task.job.id}: attempt {sighting.attempt} was killed ({how}); it starts again")

    def _end(self, task: Task, sighting: Sighting, *, skipped: bool = False) -> None:
        task.phase, task.sighting, task.process, task.skipped = "ended", sighting, None, skipped
        self.claims.release(task.job.key)
        self._reporter.finished(task.job, sighting)

    def _obey(self) -> None:
        """Carry out `stop`, in the loop rather than in the signal handler that called it."""
        if self._stops == self._obeyed:
            return
        first, self._obeyed = self._obeyed == 0, self._stops
        if first:
            for task in self._in("waiting"):
                self._end(task, replace(task.sighting, cause="stopped before it started"), skipped=True)
            for task in self._in("followed"):
                cause = f"not waited for any longer: {task.sighting.evidence}"
                self._end(task, replace(task.sighting, cause=cause), skipped=True)
        for task in self._in("running"):
            assert task.process is not None
            if self._stops > 1:
                task.process.kill()
            elif not task.told:
                task.told = True
                task.process.terminate()

    def _drop_orphans(self) -> None:
        """A stage whose parent ended without the result it needs can never be run."""
        for task in self._in("waiting"):
            for parent in self._parents(task):
                if parent.settled and parent.sighting.state != "done":
                    cause = f"needs {parent.job.kind} of {parent.job.id}, which is {parent.sighting.state}"
                    self._end(task, replace(task.sighting, state="cancelled", cause=cause))
                    break

    def _parents(self, task: Task) -> list[Task]:
        return [self._tasks[key] for key in task.job.parents if key in self._tasks]

    def _start_ready(self) -> None:
        """Start what can be, first come, first served: a job that needs many slots is not overtaken for ever."""
        running, self._starved = sum(1 for _ in self._in("running")), False
        for task in self._in("waiting"):
            if self._limit is not None and running >= self._limit:
                return
            ready = all(parent.settled for parent in self._parents(task)) and not self._starved
            if ready:
                running += self._start(task)

    def _start(self, task: Task) -> bool:
        if any(map(lives, attempts(self.project.runs, task.job.key)[-1:])):
            return False  # the process of the attempt before is ending
        lease = self._slots.take(task.job.resources)
        if lease is None:
            self._starved = True
            return False
        try:
            with self.claims.confirmed(task.job.key) as mine:
                if not mine:  # it was cancelled: the next look at others settles it
                    task.phase = "followed"
                    return False
                task.process = self._spawner.start(task.job, lease)
        except OSError as error:
            self._end(task, Sighting(state="failed", evidence="this run", cause=f"could not be started: {error}"))
            return False
        finally:
            lease.close()
        task.phase = "running"
        task.attempts += 1
        self._reporter.started(task.job, task.process.attempt)
        return True

    def _hear_cancels(self) -> None:
        for task in self._in("waiting"):
            if requested(self.project.runs, task.job.key):
                self.claims.release(task.job.key)
                task.phase = "followed"  # `_watch_others` settles it
        for task in self._in("running"):
            assert task.process is not None
            directory = task.process.attempt.path
            if requested(self.project.runs, task.job.key) and not request_path(directory).exists():
                with suppress(OSError):  # a full disk: the request stays where it is, and the next tick reads it again
                    request(directory, signalled=False)
            if not task.told and _asked_to_signal(directory):
                task.told = True
                task.process.terminate()

    def _watch_others(self) -> None:
        followed, alive = list(self._in("followed")), Liveness(self.project.runs)
        for task in followed:
            task.sighting = observe(self.project.runs, task.job.key, alive)
        orphans = [task.job.key for task in followed if task.sighting.state in CLAIMABLE]
        for key, sighting in self.claims.take(orphans, CLAIMABLE).items() if orphans else ():
            self._tasks[key].sighting = sighting
        for task in followed:
            self._settle_followed(task)

    def _settle_followed(self, task: Task) -> None:
        state, key = task.sighting.state, task.job.key
        task.doubted = (task.doubted or time.monotonic()) if state == "unknown" else None
        if key in self.claims.held:
            task.phase = "waiting"
            if reason := self.machine.check(task.job.resources, task.job.id):
                self._end(task, replace(task.sighting, cause=reason), skipped=True)
        elif state in (*RESULTS, "failed", "cancelled") or (task.doubted and time.monotonic() - task.doubted > DOUBT):
            self._end(task, task.sighting)

    def _report(self) -> None:
        running = [(t.job, conclude_or_unknown(t.process.attempt)) for t in self._in("running") if t.process]
        board = Board(
            running=tuple(running),
            followed=tuple((task.job, task.sighting) for task in self._in("followed")),
            waiting=tuple(task.job for task in self._in("waiting")),
            ended=Counter(task.sighting.state for task in self._in("ended")),
            slots=self.machine.slots,
            starved=self._starved,
            stopping=self._stops > 0,
        )
        self._reporter.tick(board)

    def _refresh(self) -> None:
        problem = self._ingest() if self._ingest else ""
        if problem:
            self._reporter.notice(problem)

    def _summary(self) -> Summary:
        summary = Summary()
        for entry in self.entries:
            chain = [self._tasks[stage.key] for stage in entry.cell.stages if stage.key in self._tasks]
            task = next((task for task in chain if task.sighting.state != "done"), chain[-1])
            beyond = blocked(entry, self.kinds) if task.sighting.state == "done" else ()
            reason = f"this version does not run {', '.join(beyond)}" if beyond else _reason(task)
            summary.add(Item(entry, reason, task.sighting), skipped=bool(beyond) or task.skipped)
        return summary


def _reason(task: Task) -> str:
    seen = task.sighting
    why = seen.cause or ("" if seen.state in RESULTS else seen.evidence)
    if not task.before:
        return why
    number = f" in attempt {seen.attempt}" if seen.attempt else ""
    return f"already {seen.state}{number}{': ' if why else ''}{why}"


def _was_killed(sighting: Sighting) -> bool:
    """Whether a job ended by no decision of its own, so that it is worth starting again at once."""
    return sighting.state == "interrupted" and (sighting.signal is not None or sighting.cause == LOST_PEER)


def _asked_to_signal(directory: Path) -> bool:
    """Whether someone asked to cancel the attempt and left the signal to its scheduler."""
    try:
        return not read_json(request_path(directory)).get("signalled")
    except (OSError, GpasError):
        return False
