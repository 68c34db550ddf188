"""The scheduler of a batch system: `gpas run` submits jobs and exits.

With --wait, it stays: it fills the queue as room permits and resubmits interrupted jobs until all have ended.

A submission claims every unclaimed stage, records what it submits, and hands it to the batch system.

This process may die at any instant. Its own claims lapse with it; the claims of a recorded submission are valid as long
as the queue has, or may yet have, the array of that name.

A job array has the stage jobs of one resource profile, as many as the scheduler allows. A job whose parent has yet to
run waits for it in the queue. If every parent has one child of the kind, element i of the children's array waits for
element i of the parents'; otherwise the children of the same parents form an array that waits for all of these.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file
from gpas_cli.period import Period
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.texts import how_far
from gpas_cli.plan.trunks import jobs_of
from gpas_cli.schedule import scheduler as base
from gpas_cli.schedule.batch import submission
from gpas_cli.schedule.batch.submission import Array, ArrayIndex, BatchError, Submission
from gpas_cli.schedule.batch.view import BatchView
from gpas_cli.schedule.process import require_libraries
from gpas_cli.schedule.retry import End, Step, end_of, halved_micro_batch, next_step, reached_limit
from gpas_cli.schedule.scheduler import RunRequest, Submitted
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.claim_set import CLAIMABLE, RETRIABLE, ClaimSet
from gpas_cli.state.claims import claim_path, read_claim, write_claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, StageStatus
from gpas_cli.state.usage import end_of as end_of_attempt
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import SubmissionRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import Snapshot, snapshot
from gpas_cli.words import count, grouped, listed

_TIMEOUT = "timeout"  # how the cause of a job begins that reached its time limit
_POLL_SECONDS = 5.0  # between two checks of the stages
_RESUBMIT_SECONDS = 30.0  # between two attempts to submit the jobs that did not fit into the queue
_HELD_NAMED = 5  # held jobs named in notices
LOOKUP_SECONDS = 12.0  # for which the queue is searched for an array that may be there


def arrays(
    jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int, options: Callable[[Resources], Any]
) -> list[Array]:
    """Return the arrays for `jobs`, none of which is a parent of another. `waiting`: parents that have yet to run.
    `options`: what a job asks the system for, which is the same for all jobs of an array."""
    made: list[Array] = []
    asked = ((job, job.resources) for job in jobs)
    profiles = ([options(r), r.setup, r.environment, r.python, r.pack, job.kind, job.uses] for job, r in asked)
    for same in grouped(zip((json.dumps(one, sort_keys=True) for one in profiles), jobs, strict=True)).values():
        made += _packed([job for job in same if not _parents(job, waiting)], largest)
        made += _dependent([job for job in same if _parents(job, waiting)], waiting, largest)
    return made


def _packed(jobs: Sequence[StageJob], largest: int, after: tuple[ArrayIndex, ...] = ()) -> Iterator[Array]:
    """Yield arrays of jobs that may start together, `pack` jobs per element."""
    pack = jobs[0].resources.pack if jobs else 1
    elements = [tuple(jobs[i : i + pack]) for i in range(0, len(jobs), pack)]
    for i in range(0, len(elements), largest):
        yield Array(tuple(elements[i : i + largest]), after)


def levels(jobs: Sequence[StageJob]) -> Iterator[list[StageJob]]:
    """Yield the jobs in groups, each of which builds only on earlier ones."""
    left = {job.key: job for job in jobs}
    while left:
        ready = [job for job in left.values() if not any(key in left for key in job.after)]
        yield ready
        for job in ready:
            del left[job.key]


def _parents(job: StageJob, waiting: Mapping[str, ArrayIndex]) -> tuple[ArrayIndex, ...]:
    return tuple(waiting[key] for key in job.after if key in waiting)


def _dependent(jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int) -> Iterator[Array]:
    by_job: dict[str, dict[int, StageJob]] = {}
    together = list[Array]()
    for places, same in grouped((_parents(job, waiting), job) for job in jobs).items():
        if len(places) == len(same) == 1:
            by_job.setdefault(places[0].job, {})[places[0].index] = same[0]
        else:
            together += _packed(same, largest, places)
    for parent, at in by_job.items():
        yield Array(tuple((at[i],) if i in at else () for i in range(max(at) + 1)), beside=parent)
    yield from together


def _adjusted(runs: Path, job: StageJob, seen: StageStatus) -> tuple[StageJob, bool]:
    """Return a job with the resources of its next attempt, and whether that gets half the micro-batch.

    `seen` is its status before. Memory and time such as `mem: [32G, 64G]` have an entry for each attempt that follows
    one which ran out of it. A cell that ran out of memory in a job with others stays alone.
    """
    asked, end = job.resources, end_of(seen)
    if not asked.growing and asked.pack == 1 and end is not End.MEMORY:
        return job, False
    before, seconds, rows = _before(runs, job.key, seen)
    if end is not End.MEMORY and (seen.cause.startswith(_TIMEOUT) or (before and reached_limit(before, seconds))):
        end = End.TIME_LIMIT
    used = {name: _entry(getattr(asked, name), before, name) for name in asked.growing}
    larger = [name for name, place in used.items() if place is not None and place + 1 < len(getattr(asked, name))]
    alone = before is not None and before.pack == 1
    packed = asked.pack > 1 and not alone
    step = next_step(end, 0, 1, rows=0 if packed else rows, larger=larger, packed=packed)
    grows = "mem" if end is End.MEMORY else "time"
    chosen: dict[str, Any] = {}
    left = list[str]()
    for name, place in used.items():
        entries = getattr(asked, name)
        now = (place or 0) + (step is Step.GROW and name == grows)
        chosen[name] = entries[now]
        left += [name] if now + 1 < len(entries) else []
    if step is Step.ALONE or alone:
        chosen["pack"] = 1
    again = "out of memory; now alone in its job" if step is Step.ALONE else ""
    if step is Step.GROW:
        ran_out = "out of memory at" if grows == "mem" else "it reached the time limit of"
        again = f"{ran_out} {getattr(before, grows)}, now {chosen[grows]}"
    return replace(job, resources=replace(asked, **chosen), larger=tuple(left), again=again), step is Step.REDUCE


def _entry(entries: Sequence[str], before: Resources | None, name: str) -> int | None:
    """Return the index of what the last job asked for, None if it is unknown or no longer listed."""
    used = getattr(before, name, None)
    return entries.index(used) if used in entries else None


def _before(runs: Path, key: str, seen: StageStatus) -> tuple[Resources | None, float, int]:
    """Return what the last job of a stage asked for, the seconds of its last attempt, and half its micro-batch."""
    with suppress(OSError, GpasError):
        if seen.directory:
            attempt = AttemptDir(seen.directory)
            record = attempt.read_attempt()
            return record.resources, end_of_attempt(attempt) - record.created, halved_micro_batch(attempt)
        if seen.claim and (made := submission.find(runs / f".{seen.claim.scheduler}" / seen.claim.submission)):
            return next(each.resources for each in made.element(seen.claim.index) if each.key == key), 0.0, 0
    return None, 0.0, 0


class BatchRun:
    """The jobs submitted by one `gpas run`. `stop` only stops the waiting: the jobs belong to the batch system.

    Raises GpasError before anything is submitted if a stage can never run.
    """

    def __init__(self, scheduler: BatchView, request: RunRequest):
        self.scheduler = scheduler
        self.request = request
        self.project = request.project
        self.submitted = Submitted()
        self.jobs = jobs_of(self.project.runs, request.entries)
        self.texts: dict[str, StageJob] = {}  # the jobs that tokenise the text of `jobs`
        self._reduced = set[str]()  # jobs that get half the micro-batch of their last attempt
        self.observed: dict[str, StageStatus] = {}
        self._held = set[str]()  # notices given about jobs that are held
        self._options = partial(scheduler.options, self.project)
        self._stopped = False
        self._resubmission = Period(_RESUBMIT_SECONDS, at_once=False)
        self._tries = Counter[tuple[str, int | None]]()  # submissions of a stage after its attempt of that number

    def submit(self, *, again: bool = False) -> Submitted:
        """Submit every unclaimed stage without a result, as far as the queue has room.

        With `again`, `request.retry` is ignored: stages in these states were already resubmitted once.
        """
        runs = self.project.runs
        done = Submitted()
        for job in self.jobs.values():
            self._options(job.resources)  # raises before anything is claimed
        if error := self.scheduler.current(0.0).error:  # queried before taking the lock of the claims
            raise GpasError(f"{self.scheduler.title} is not available: {error}; nothing was submitted")
        runs.mkdir(parents=True, exist_ok=True)
        with ClaimSet(runs, () if again else self.request.retry, self.scheduler.name) as claims:
            self.scheduler.seen = done.seen = claims.take(self.jobs)
            mine = [job for key, job in self.jobs.items() if key in claims.held]
            others = [seen.state for key, seen in done.seen.items() if key not in claims.held]
            done.followed = sum(state in ALIVE for state in others)
            done.over = sum(state in RETRIABLE for state in others)
            done.unknown = others.count("unknown")
            if mine:
                require_libraries(job for job in mine if not job.resources.python)
                self._submit_all(self._with_texts(mine, claims, done, again), claims, done)
        done.notes += held_jobs(self.jobs, done.seen)
        with suppress(OSError):
            submission.close_finished(self.scheduler.place)
        if not again:
            self.submitted, self.observed = done, dict(done.seen)
        return done

    def _with_texts(self, mine: Sequence[StageJob], claims: ClaimSet, done: Submitted, again: bool) -> list[StageJob]:
        """Return `mine`, preceded by the unclaimed jobs that tokenise their text.

        Every command runs a failed one again, but a command that waits does so only once.
        """
        whole = self.scheduler.prepare(self.project, mine)
        texts = {job.key: job for job in whole if job.kind == TOKENISE}
        self.texts |= texts
        self.jobs |= {job.key: job for job in whole if job.kind != TOKENISE}
        if texts:
            done.seen |= claims.take(texts, CLAIMABLE if again else CLAIMABLE | RETRIABLE)
        for key, text in texts.items():
            state = "" if key in claims.held else f": {how_far(done.seen[key])}"
            done.notes.append(f"tokenising {text.name} comes first{state}")
        return [job for job in whole if job.key in claims.held]

    def stop(self) -> None:
        """Stop waiting. Safe in a signal handler."""
        self._stopped = True

    def follow(self) -> base.RunSummary:
        """Wait until every stage that can be run has ended. Return the summary."""
        while not self._stopped:
            self._observe()
            claimable = [key for key in self.jobs if self.observed[key].state in CLAIMABLE]
            # Each was resubmitted fewer than `retries` times without the start of an attempt at it.
            tries = {key: self._tries[key, self.observed[key].attempt] for key in claimable}
            resubmittable = [key for key in claimable if tries[key] < self.jobs[key].resources.retries]
            alive = any(seen.state in ALIVE for seen in self.observed.values())
            if not alive and not self._any_can_run(resubmittable):
                break
            if resubmittable and self._resubmission.is_over():
                self._submit_again()
            time.sleep(_POLL_SECONDS)
        self._observe()
        endings = {key: base.Ending(status, base.reason_of(status)) for key, status in self.observed.items()}
        return base.summarise(self.request.entries, endings)

    def _observe(self) -> None:
        alive = SchedulerView(self.project.runs)
        ended = False
        for key, job in self._jobs.items():
            before, now = self.observed.get(key), observe(alive.runs, key, alive)
            self.observed[key] = now
            if before and before.state != now.state and now.state not in (*ALIVE, "missing"):
                self.request.reporter.finished(job, now)
                ended = True
        if ended and (problem := self.request.ingest()):
            self.request.reporter.notice(problem)
        for line in held_jobs(self._jobs, self.observed):
            if line not in self._held:
                self._held.add(line)
                self.request.reporter.notice(line)
        self.request.reporter.tick(self._snapshot())

    @property
    def _jobs(self) -> dict[str, StageJob]:
        return {**self.texts, **self.jobs}

    def _any_can_run(self, keys: list[str]) -> bool:
        """Return whether some of these stages can still run: their prerequisites have a result or may yet have one."""
        states = {key: seen.state for key, seen in self.observed.items()}
        jobs = self._jobs
        return any(all(states[parent] in (*CLAIMABLE, *ALIVE, "done") for parent in jobs[key].after) for key in keys)

    def _submit_again(self) -> None:
        try:
            done = self.submit(again=True)
        except (GpasError, OSError) as error:  # the next attempt may succeed
            self.request.reporter.notice(str(error))
            return
        keys = (key for batch in done.batches for element in batch.keys for key in element if key in self.observed)
        self._tries.update((key, self.observed[key].attempt) for key in keys)
        if done.jobs:
            self.request.reporter.notice(f"{count(done.jobs, 'more job')} submitted")

    def _snapshot(self) -> base.RunSnapshot:
        jobs = [(job, self.observed[key]) for key, job in self._jobs.items() if key in self.observed]
        return base.RunSnapshot(
            running=tuple((job, seen) for job, seen in jobs if seen.state == "running"),
            waiting=tuple(job for job, seen in jobs if seen.state == "queued"),
            ended=Counter(seen.state for seen in self.observed.values() if seen.state not in ALIVE),
        )

    def preview(self, jobs: Sequence[StageJob]) -> Iterator[str]:
        """Yield the scripts of the arrays that would be submitted for `jobs`. Changes nothing."""
        code = Snapshot("not-yet-copied", self.project.runs / ".code" / "not-yet-copied", {})
        waiting: dict[str, ArrayIndex] = {}
        for level in levels(jobs):
            for array in arrays(level, waiting, self.scheduler.largest(), self._options):
                name = submission.new_name(array.first.grid)
                waiting |= array.places(f"<job id of {name}>")
                text = self.scheduler.script(self.request, array, self.scheduler.place / name, code)
                yield f"\n# {count(len(array.jobs), 'job')} in {count(len(array.indices), 'array element')}\n{text}"

    def _submit_all(self, mine: Sequence[StageJob], claims: ClaimSet, done: Submitted) -> None:
        copy = cache(partial(snapshot, self.project.runs, project=self.project.config.parent))
        largest = self.scheduler.largest()
        sized = [_adjusted(self.project.runs, job, done.seen[job.key]) for job in mine]
        self._reduced = {job.key for job, reduced in sized if reduced}
        mine = [job for job, _ in sized]
        placed = self._already_placed({key for job in mine for key in job.after} - claims.held, done)
        for level in levels(mine):
            ready = [job for job in level if self._prerequisites_met(job, placed, done)]
            pending = arrays(ready, placed, largest, self._options)
            while pending:
                array = pending.pop(0)
                try:
                    made, job = self._submit(array, copy(uses=array.first.uses), claims)
                except BatchError as error:
                    if not (error.answered and error.says(self.scheduler.full)):
                        raise self._refused(error, array, done) from error
                    pending = self._after_full_queue(array, pending, error, done)
                    continue
                size = count(sum(map(bool, made.record.keys)), "element")
                text = f"{made.name} as {self.scheduler.title} job {job or '(unknown)'}: {size}"
                done.batches.append(base.JobBatch(made.name, job, made.record.keys, text))
                done.jobs += len(array.jobs)
                if job:
                    placed |= array.places(job)
                else:
                    why = "the scheduler did not answer; `gpas status` shows whether it has the array"
                    done.notes.append(f"{made.name}: {why}")

    def _already_placed(self, keys: Collection[str], done: Submitted) -> dict[str, ArrayIndex]:
        """Return where the queued and running stages among `keys` run, according to the queue.

        Waits for stages that another command is submitting at this moment.
        """
        deadline = time.monotonic() + LOOKUP_SECONDS
        under_way = {key for key in keys if done.seen[key].state in ALIVE}
        placed = self._queued_at(under_way) if under_way else {}
        while under_way - placed.keys() and time.monotonic() < deadline:
            time.sleep(0.5)
            alive = SchedulerView(self.project.runs, max_age_seconds=0.0)
            done.seen |= {key: observe(self.project.runs, key, alive) for key in under_way - placed.keys()}
            under_way = {key for key in under_way if done.seen[key].state in ALIVE}
            placed |= self._queued_at(under_way - placed.keys(), 0.0)
        return placed

    def _queued_at(self, keys: Collection[str], max_age: float | None = None) -> dict[str, ArrayIndex]:
        known = self.scheduler.current(max_age)
        found = {}
        for key in keys:
            claim = read_claim(self.project.runs, key)
            job = known.find(claim.submission, claim.index) if claim and claim.submission else None
            if claim and job and not job.ended:
                found[key] = ArrayIndex(job.array, claim.index)
        return found

    def _prerequisites_met(self, job: StageJob, placed: dict[str, ArrayIndex], done: Submitted) -> bool:
        """Return whether every prerequisite of `job` has its result or is in the queue."""
        unfinished = [done.seen[key] for key in job.after if key not in placed and done.seen[key].state != "done"]
        if any(seen.state in (*RETRIABLE, "diverged") or seen.blocker for seen in unfinished):
            done.blocked.append(job)
        elif unfinished:
            done.left.append(job)
        return not unfinished

    def _after_full_queue(self, array: Array, pending: list[Array], error: BatchError, done: Submitted) -> list[Array]:
        """Return the arrays to submit after one was refused as too many jobs: its halves, or none for now."""
        if len(array.indices) > 1:
            return [*array.halves(), *pending]
        if not done.batches and not done.followed and not error.says(self.scheduler.own_limit):
            raise error  # a single job is refused for its size, with the same message
        done.left += [job for rest in (array, *pending) for job in rest.jobs]
        done.notes.append(str(error))
        return []

    def _submit(self, array: Array, code: Snapshot, claims: ClaimSet) -> tuple[Submission, str]:
        """Record the submission, claim its stages and submit it. Return the job id, "" if the system did not answer."""
        runs = self.project.runs
        place = self.scheduler.place / submission.new_name(array.first.grid)
        failures = 1 if self.request.stop_at_failure else SubmissionRecord.failures
        made = submission.record(place, self.project, array.elements, code, claims.submitter, self._reduced, failures)
        try:
            script = self.scheduler.script(self.request, array, place, code)
            replace_file(place / "submission.sh", script, mode=0o600)  # it may have secrets
            write = partial(write_claim, runs, submitter=claims.submitter, scheduler=self.scheduler.name)
            for index, element in enumerate(array.elements):
                for job in element:
                    write(job.key, submission=place.name, index=index, after=job.after, grid=job.grid)
            job_id = self.scheduler.start(self.request, array, made)
        except BaseException as error:
            if not isinstance(error, BatchError) or error.answered:
                # The claims, then the submission: if the array exists after all, it finds nothing to do.
                for job in array.jobs:
                    claim_path(runs, job.key).unlink(missing_ok=True)
                shutil.rmtree(made.folder, ignore_errors=True)
            raise
        claims.held -= {job.key for job in array.jobs}
        if job_id:
            with suppress(OSError):  # only displayed; the queue is searched by name
                made.submitted(job_id)
        return made, job_id

    def _refused(self, error: BatchError, array: Array, done: Submitted) -> GpasError:
        """Return the error for an array that was refused, or may have been.

        It has the complete reason, the array's cells, the resources they ask for, and the arrays already submitted.
        """
        usual = plain(Resources())
        ours = ("environment", "setup", "python")  # not the system's, and they may contain secrets
        asked = {n: v for n, v in plain(array.first.resources).items() if v != usual[n] and n not in ours}
        words = ", ".join(f"{name}: {value}" for name, value in asked.items()) or "no resources"
        how, end = ("refused", "none of it was submitted") if error.answered else ("unanswered", "see `gpas status`")
        lines = [str(error), f"{how}: {listed([job.id for job in array.jobs], 1)}, which asks for {{{words}}}; {end}"]
        for batch in done.batches:
            where = f"{batch.name}, {self.scheduler.title} job {batch.job or '(unknown)'}, {batch.elements} elements"
            lines.append(f"submitted before it, and still queued: {where}")
        return GpasError("\n".join(lines))


def held_jobs(jobs: Mapping[str, StageJob], seen: Mapping[str, StageStatus]) -> list[str]:
    """Return a line for each held job, with the command that releases it; of many, only the first few."""
    held = [f"{jobs[key].id}: {now.job}" for key, now in seen.items() if key in jobs and now.job and now.job.held]
    more = [f"and {len(held) - _HELD_NAMED} more jobs are held; see `gpas status`"] if len(held) > _HELD_NAMED else []
    return [*held[:_HELD_NAMED], *more]


class BatchScheduler(BatchView):
    """The scheduler of a batch system, given what the methods of `BatchView` say about that."""

    def submit(self, request: RunRequest) -> BatchRun:
        run = BatchRun(self, request)
        run.submit()
        return run
