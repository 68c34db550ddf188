"""One `gpas run` on this machine: a queue of stages, the free slots, one process per attempt.

Stages that another living `gpas run` has claimed are followed, and run here if it dies. A failed job does not affect
others. If this process dies, its jobs continue, and the next `gpas run` follows them.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from gpas_cli.errors import GpasError, advise, no_disk
from gpas_cli.plan import machine as machines
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.texts import require_texts
from gpas_cli.plan.trunks import jobs_of
from gpas_cli.schedule import process
from gpas_cli.schedule.local.process import Process, Slots, Spawner
from gpas_cli.schedule.process import require_libraries
from gpas_cli.schedule.retry import End, Step, end_of, given_up, halved_micro_batch, next_step, ran_out_of_memory
from gpas_cli.schedule.scheduler import Ending, RunRequest, RunSnapshot, RunSummary, Submitted, reason_of, summarise
from gpas_cli.state.attempt import attempts_without_progress, conclude, lives
from gpas_cli.state.cancellation import read_request, request, request_path, requested
from gpas_cli.state.claim_set import CLAIMABLE, ClaimSet
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, RESULTS, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import AttemptDir, attempts
from gpas_cli.store.snapshot import snapshot

_POLL_SECONDS = 0.1  # between two checks of this run's processes
_TICK_SECONDS = 1.0  # between two checks of other runs and of requests
_UNKNOWN_SECONDS = 30.0  # for which a followed stage may be in an unknown state, because file systems can fail briefly


@dataclass
class _StageRun:
    """One stage in this run. `phase` is waiting (claimed, to be run here), running, followed or ended."""

    job: StageJob
    phase: str
    status: StageStatus
    process: Process | None = None
    attempts: int = 0  # made by this run
    exit_requested: bool = False  # its process has been asked to exit
    before: bool = False  # it had ended before this run began
    skipped: bool = False  # this run ended it without starting it
    unknown_since: float | None = None


class LocalRun:
    """One run of a request's stages on this machine: `submit`, then `follow`.

    Raises GpasError before anything starts if a job can never run here.
    """

    def __init__(
        self, request: RunRequest, *, command: Sequence[str] = process.JOB, machine: ThisMachine | None = None
    ):
        self.request = request
        self.project = request.project
        self.machine = machine or machines.machine()
        self.jobs = jobs_of(self.project.runs, request.entries)
        self._command = command
        self._reporter = request.reporter
        self._tasks: dict[str, _StageRun] = {}
        self.claims: ClaimSet  # from `submit` on
        self._stops = 0  # calls of `stop`
        self._stopped_by = "the command was stopped"
        self._stops_carried_out = 0
        self._starved = False
        self._next_tick = 0.0

    def stop(self) -> None:
        """Ask this run's jobs to save and exit, and start no more; the second call kills them. Safe in a handler."""
        self._stops += 1

    def submit(self) -> Counter[str]:
        """Claim every unclaimed stage. Return how many are waiting (to be run here), followed and ended."""
        runs = self.project.runs
        runs.mkdir(parents=True, exist_ok=True)
        self.claims = ClaimSet(runs, self.request.retry, grids={key: job.grid for key, job in self.jobs.items()})
        try:
            for key, status in self.claims.take(self.jobs).items():
                phase = "waiting" if key in self.claims.held else "followed" if status.state in ALIVE else "ended"
                self._tasks[key] = _StageRun(self.jobs[key], phase, status, before=phase == "ended")
            machines.require(self.machine, {t.job.id: t.job.resources for t in self._in("waiting")})
            require_libraries(t.job for t in self._in("waiting"))
            require_texts(self.project, {t.job.id: t.job.cell for t in self._in("waiting")}, self.request.entries)
            self._slots = Slots(runs, self.machine)
            self._code = cache(partial(snapshot, runs, project=self.project.config.parent))
            for task in self._in("waiting"):
                self._code(uses=task.job.uses)
            self._spawner = Spawner(self.project, self.claims.submitter.author, self._command)
        except BaseException:
            self.claims.close()
            raise
        return Counter(task.phase for task in self._tasks.values())

    @property
    def submitted(self) -> Submitted:
        """The numbers of stages submitted, followed and ended, as `submit` found them."""
        phases = Counter(task.phase for task in self._tasks.values())
        return Submitted(jobs=phases["waiting"], followed=phases["followed"], over=phases["ended"])

    def follow(self) -> RunSummary:
        """Run jobs until every stage has ended or `stop` has been carried out. Return the summary."""
        try:
            while self._step():
                time.sleep(_POLL_SECONDS)
            self._report()
        finally:
            self.claims.close()
        self._refresh()
        endings = {key: Ending(task.status, _reason(task), task.skipped) for key, task in self._tasks.items()}
        return summarise(self.request.entries, endings)

    def _step(self) -> bool:
        """Do one round of the loop. Return whether some stages have yet to end."""
        self.claims.submitter.beat()
        self._reap()
        self._carry_out_stop()
        self._drop_orphans()
        if not self._stops:
            self._start_ready()
        if time.monotonic() >= self._next_tick:
            began = time.monotonic()
            self._pass_on_cancellations()
            self._watch_others()
            self._report()
            # Observing the cells takes at most a tenth of the time, however many there are.
            self._next_tick = time.monotonic() + max(_TICK_SECONDS, 9 * (time.monotonic() - began))
        return not all(task.phase == "ended" for task in self._tasks.values())

    def _in(self, phase: str) -> Iterator[_StageRun]:
        return (task for task in list(self._tasks.values()) if task.phase == phase)

    def _reap(self) -> None:
        ended = [task for task in self._in("running") if task.process and task.process.ended()]
        for task in ended:
            assert task.process is not None
            status = conclude(task.process.attempt)
            if task.exit_requested or self._stops or not self._start_again(task, task.process.attempt, status):
                self._end(task, status)
            if self.request.stop_at_failure and task.phase == "ended" and status.state == "failed" and not self._stops:
                self._stopped_by = f"{task.job.id} failed"
                self._reporter.notice(f"{self._stopped_by}: nothing else starts, and what runs saves and exits")
                self.stop()
        if ended:
            self._refresh()

    def _start_again(self, task: _StageRun, attempt: AttemptDir, status: StageStatus) -> bool:
        """Queue a job again that was killed, or that ran out of memory with more than one row at once. Return whether
        it ended so."""
        end = end_of(status)
        rows = halved_micro_batch(attempt) if end is End.MEMORY else 0
        in_vain = 0
        if end is End.KILLED:
            in_vain = min(task.attempts, attempts_without_progress(self.project.runs, task.job.key))
        step = next_step(end, in_vain, task.job.resources.retries, rows=rows)
        if step is Step.GIVE_UP:
            self._end(task, given_up(status, in_vain))
            return True
        if step not in (Step.AGAIN, Step.REDUCE):
            return False
        why = f"ran out of memory; it starts again with {rows} rows at a time"
        if not rows:
            how = f"signal {status.signal}" if status.signal else status.cause or "its exit was not recorded"
            why = f"{'was killed' if status.signal else 'ended'} ({how}); it starts again"
        task.phase = "waiting"
        task.status = status
        task.process = None
        self._reporter.notice(f"{task.job.id}: attempt {status.attempt} {why}")
        return True

    def _end(self, task: _StageRun, status: StageStatus, *, skipped: bool = False) -> None:
        task.phase = "ended"
        task.status = status
        task.process = None
        task.skipped = skipped
        self.claims.release(task.job.key)
        self._reporter.finished(task.job, status)

    def _carry_out_stop(self) -> None:
        """Carry out `stop`, in the loop rather than in the signal handler that called it."""
        if self._stops == self._stops_carried_out:
            return
        first = self._stops_carried_out == 0
        self._stops_carried_out = self._stops
        if first:
            for task in self._in("waiting"):
                cause = f"not started, because {self._stopped_by}"
                self._end(task, replace(task.status, cause=cause), skipped=True)
            for task in self._in("followed"):
                cause = f"still {task.status.state} under another command; no longer waited for"
                self._end(task, replace(task.status, cause=cause), skipped=True)
        for task in self._in("running"):
            assert task.process is not None
            if self._stops > 1:
                task.process.kill()
            elif not task.exit_requested:
                task.exit_requested = True
                task.process.terminate()

    def _drop_orphans(self) -> None:
        """Cancel the waiting stages that have a parent without a result."""
        for task in self._in("waiting"):
            for parent in self._parents(task):
                if parent.phase == "ended" and parent.status.state != "done":
                    cause = f"needs {parent.job.kind} of {parent.job.id}, which is {parent.status.state}"
                    self._end(task, replace(task.status, state="cancelled", cause=cause))
                    break

    def _parents(self, task: _StageRun) -> list[_StageRun]:
        return [self._tasks[key] for key in task.job.before if key in self._tasks]

    def _start_ready(self) -> None:
        """Start ready jobs in order: smaller jobs do not overtake one that waits for many slots."""
        running = sum(1 for _ in self._in("running"))
        self._starved = False
        for task in self._in("waiting"):
            if self.request.at_once is not None and running >= self.request.at_once:
                return
            if all(parent.phase == "ended" for parent in self._parents(task)) and not self._starved:
                running += self._start(task)

    def _start(self, task: _StageRun) -> bool:
        if any(map(lives, attempts(self.project.runs, task.job.key)[-1:])):
            return False  # the process of the previous attempt is still exiting
        # A job that has ended counts until its end is known: it may be a failure, after which nothing starts.
        held = sum(self.machine.needs(other.job.resources) for other in self._in("running"))
        free = held + self.machine.needs(task.job.resources) <= self.machine.slots
        lease = self._slots.take(task.job.resources) if free else None
        if lease is None:
            self._starved = True
            return False
        try:
            with self.claims.confirmed(task.job.key) as mine:
                if not mine:  # it was cancelled: `_watch_others` will see its new state
                    task.phase = "followed"
                    return False
                code, reduce = self._code(uses=task.job.uses), ran_out_of_memory(task.status)
                task.process = self._spawner.start(task.job.record(), code, lease, reduce=reduce)
        except OSError as error:
            cause = f"could not be started: {advise(error)}"
            state = "interrupted" if no_disk(error) else "failed"
            self._end(task, StageStatus(state=state, evidence="this run", cause=cause))
            return False
        finally:
            lease.close()
        task.phase = "running"
        task.attempts += 1
        self._reporter.started(task.job, task.process.attempt)
        return True

    def _pass_on_cancellations(self) -> None:
        for task in self._in("waiting"):
            if requested(self.project.runs, task.job.key):
                self.claims.release(task.job.key)
                task.phase = "followed"  # `_watch_others` will see its new state
        for task in self._in("running"):
            assert task.process is not None
            directory = task.process.attempt.path
            if requested(self.project.runs, task.job.key) and not request_path(directory).exists():
                with suppress(OSError):  # a full disk: the request stays where it is, and the next tick reads it again
                    request(directory, signalled=False)
            if not task.exit_requested and _asked_to_signal(directory):
                task.exit_requested = True
                task.process.terminate()

    def _watch_others(self) -> None:
        followed = list(self._in("followed"))
        alive = SchedulerView(self.project.runs)
        for task in followed:
            task.status = observe(self.project.runs, task.job.key, alive)
        orphans = [task.job.key for task in followed if task.status.state in CLAIMABLE]
        for key, status in self.claims.take(orphans, CLAIMABLE).items() if orphans else ():
            self._tasks[key].status = status
        for task in followed:
            self._settle_followed(task)

    def _settle_followed(self, task: _StageRun) -> None:
        state = task.status.state
        key = task.job.key
        now = time.monotonic()
        task.unknown_since = (task.unknown_since or now) if state == "unknown" else None
        if key in self.claims.held:
            task.phase = "waiting"
            if reason := self.machine.check(task.job.resources, task.job.id):
                self._end(task, replace(task.status, cause=reason), skipped=True)
        elif state in (*RESULTS, "failed", "cancelled") or now - (task.unknown_since or now) > _UNKNOWN_SECONDS:
            self._end(task, task.status)

    def _report(self) -> None:
        running = [(t.job, conclude(t.process.attempt)) for t in self._in("running") if t.process]
        snapshot = RunSnapshot(
            running=tuple(running),
            followed=tuple((task.job, task.status) for task in self._in("followed")),
            waiting=tuple(task.job for task in self._in("waiting")),
            ended=Counter(task.status.state for task in self._in("ended")),
            slots=self.machine.slots,
            starved=self._starved,
            stopping=self._stops > 0,
        )
        self._reporter.tick(snapshot)

    def _refresh(self) -> None:
        if problem := self.request.ingest():
            self._reporter.notice(problem)


def _reason(task: _StageRun) -> str:
    status = task.status
    why = reason_of(status)
    if not task.before:
        return why
    number = f" in attempt {status.attempt}" if status.attempt else ""
    return f"already {status.state}{number}{': ' if why else ''}{why}"


def _asked_to_signal(directory: Path) -> bool:
    """Return whether the attempt is to be cancelled and its scheduler has to send the signal."""
    with suppress(OSError, GpasError):
        return not read_request(directory).signalled
    return False
