"""Submission of stages to SLURM: claim every unclaimed stage, record the submission, call sbatch.

This process may die at any instant. Its own claims lapse with it; the claims of a recorded submission are valid as long
as the queue has, or may yet have, the array of that name.

A job array has the stage jobs of one resource profile, as many as the scheduler allows. A job whose parent has yet to
run waits for it in SLURM. If every parent has one child of the kind, element i of the children's array waits for
element i of the parents' (aftercorr); otherwise the children of the same parents form an array that waits for all of
these (afterok).
"""

import json
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.texts import how_far, with_texts
from gpas_cli.plan.trunks import jobs_of
from gpas_cli.schedule.process import require_libraries
from gpas_cli.schedule.retry import End, Step, end_of, halved_micro_batch, next_step, reached_limit
from gpas_cli.schedule.scheduler import JobBatch, RunRequest, Submitted
from gpas_cli.schedule.slurm import client, queue, script, squeue, submission
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.submission import Submission, faulty_nodes
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.claim_set import CLAIMABLE, RETRIABLE, ClaimSet
from gpas_cli.state.claims import SLURM, claim_path, read_claim, write_claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, StageStatus
from gpas_cli.state.usage import end_of as end_of_attempt
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import SubmissionRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import Snapshot, snapshot
from gpas_cli.words import count, grouped, listed

_TIMEOUT = "timeout"  # SLURM's state TIMEOUT, as a cause
_HELD_NAMED = 5  # held jobs named in notices
_ASSUMED_ARRAY = 1001  # SLURM's default MaxArraySize
# Texts of a refusal because of too many jobs.
_QUEUE_FULL = ("submit limit", "submitjob", "maxjobcount", "job count limit")
# States that the node caused: the job is run again on another one.
_NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
_JOB_ID = re.compile(r"^[ \t]*(\d+)(?:;.*)?\s*$", re.MULTILINE)  # output of sbatch --parsable: 123 or 123;cluster
_LOOKUP_SECONDS = 12.0  # for which the queue is searched for an array after sbatch did not answer


_Element = tuple[StageJob, ...]


@dataclass(frozen=True)
class ArrayIndex:
    """The array element in which a stage will run. `job` is the job id of the array."""

    job: str
    index: int


@dataclass(frozen=True)
class Array:
    """A job array to submit. Index i runs `elements[i]`; empty elements are not submitted."""

    elements: tuple[_Element, ...]
    dependency: str = ""

    @property
    def first(self) -> StageJob:
        return next(job for element in self.elements for job in element)

    @property
    def jobs(self) -> list[StageJob]:
        return [job for element in self.elements for job in element]

    @property
    def indices(self) -> list[int]:
        return [i for i, element in enumerate(self.elements) if element]

    def halves(self) -> "list[Array]":
        """Return two arrays of half as many elements. Those that wait for another array's keep their indices."""
        middle = self.indices[len(self.indices) // 2]
        keep = middle if self.dependency.startswith("aftercorr") else 0
        first, second = self.elements[:middle], self.elements[middle:]
        return [Array(first, self.dependency), Array(((),) * keep + second, self.dependency)]

    def spec(self, at_once: int) -> str:
        """Return the indices in sbatch's form: 0-9%4, 1,3-5."""
        throttle = f"%{at_once}" if at_once and at_once < len(self.indices) else ""
        return ranges(self.indices) + throttle


def arrays(jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int) -> list[Array]:
    """Return the arrays for `jobs`, none of which is a parent of another. `waiting`: parents that have yet to run."""
    made: list[Array] = []
    for same in grouped((_profile(job), job) for job in jobs).values():
        made += _packed([job for job in same if not _parents(job, waiting)], largest)
        made += _dependent([job for job in same if _parents(job, waiting)], waiting, largest)
    return made


def _packed(jobs: Sequence[StageJob], largest: int, dependency: str = "") -> Iterator[Array]:
    """Yield arrays of jobs that may start together, `pack` jobs per element."""
    pack = jobs[0].resources.pack if jobs else 1
    elements = [tuple(jobs[i : i + pack]) for i in range(0, len(jobs), pack)]
    for i in range(0, len(elements), largest):
        yield Array(tuple(elements[i : i + largest]), dependency)


def levels(jobs: Sequence[StageJob]) -> Iterator[list[StageJob]]:
    """Yield the jobs in groups, each of which builds only on earlier ones."""
    left = {job.key: job for job in jobs}
    while left:
        ready = [job for job in left.values() if not any(key in left for key in job.after)]
        yield ready
        for job in ready:
            del left[job.key]


def _profile(job: StageJob) -> str:
    asked = {**script.parameters(job.resources), "pack": job.resources.pack, "kind": job.kind, "uses": job.uses}
    return json.dumps(asked, sort_keys=True)


def _parents(job: StageJob, waiting: Mapping[str, ArrayIndex]) -> tuple[ArrayIndex, ...]:
    return tuple(waiting[key] for key in job.after if key in waiting)


def _dependent(jobs: Sequence[StageJob], waiting: Mapping[str, ArrayIndex], largest: int) -> Iterator[Array]:
    by_job: dict[str, dict[int, StageJob]] = {}
    together = list[Array]()
    for places, same in grouped((_parents(job, waiting), job) for job in jobs).items():
        if len(places) == len(same) == 1:
            by_job.setdefault(places[0].job, {})[places[0].index] = same[0]
        else:
            names = ":".join(f"{place.job}_{place.index}" for place in places)
            together += _packed(same, largest, f"afterok:{names}")
    for parent, at in by_job.items():
        yield Array(tuple((at[i],) if i in at else () for i in range(max(at) + 1)), f"aftercorr:{parent}")
    yield from together


def ranges(indices: Sequence[int]) -> str:
    """Return ascending indices in SLURM's form: 0-9, 1,3-5."""
    runs = groupby(enumerate(indices), key=lambda placed: placed[1] - placed[0])
    ends = ([index for _, index in run] for _, run in runs)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)


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
        if seen.claim and (made := submission.find(runs, seen.claim.submission)):
            return next(each.resources for each in made.element(seen.claim.index) if each.key == key), 0.0, 0
    return None, 0.0, 0


class ArraySubmitter:
    """The submission of a request's stages. Raises GpasError before anything is submitted if a stage can never run."""

    def __init__(self, request: RunRequest):
        self.request = request
        self.project = request.project
        self.jobs = jobs_of(self.project.runs, request.entries)
        self._reduced = set[str]()  # jobs that get half the micro-batch of their last attempt
        self.texts: dict[str, StageJob] = {}  # the jobs that tokenise the text of `jobs`

    def submit(self, *, again: bool = False) -> Submitted:
        """Submit every unclaimed stage without a result, as far as the queue has room.

        With `again`, `request.retry` is ignored: stages in these states were already resubmitted once.
        """
        runs = self.project.runs
        done = Submitted()
        for job in self.jobs.values():
            script.parameters(job.resources)  # raises before anything is claimed
        if error := queue.current(runs, max_age=0.0).error:  # queried before taking the lock of the claims
            raise GpasError(f"SLURM is not available: {error}; nothing was submitted")
        runs.mkdir(parents=True, exist_ok=True)
        with ClaimSet(runs, () if again else self.request.retry, SLURM) as claims:
            done.seen = claims.take(self.jobs)
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
            submission.close_finished(runs)
        return done

    def _with_texts(self, mine: Sequence[StageJob], claims: ClaimSet, done: Submitted, again: bool) -> list[StageJob]:
        """Return `mine`, preceded by the unclaimed jobs that tokenise their text.

        Every command runs a failed one again, but a command that waits does so only once.
        """
        whole = with_texts(self.project, mine)
        texts = {job.key: job for job in whole if job.kind == TOKENISE}
        self.texts |= texts
        self.jobs |= {job.key: job for job in whole if job.kind != TOKENISE}
        if texts:
            done.seen |= claims.take(texts, CLAIMABLE if again else CLAIMABLE | RETRIABLE)
        for key, text in texts.items():
            state = "" if key in claims.held else f": {how_far(done.seen[key])}"
            done.notes.append(f"tokenising {text.name} comes first{state}")
        return [job for job in whole if job.key in claims.held]

    def preview(self, jobs: Sequence[StageJob]) -> Iterator[tuple[Array, str]]:
        """Yield the arrays that would be submitted for `jobs`, and their sbatch text. Changes nothing."""
        code = Snapshot("not-yet-copied", self.project.runs / ".code" / "not-yet-copied", {})
        waiting: dict[str, ArrayIndex] = {}
        for level in levels(jobs):
            for array in arrays(level, waiting, _max_array_size()):
                name = submission.new_name(array.first.grid)
                waiting |= {
                    job.key: ArrayIndex(f"<job id of {name}>", i) for i, e in enumerate(array.elements) for job in e
                }
                yield array, self._script(array, submission.folder(self.project.runs) / name, code)

    def _submit_all(self, mine: Sequence[StageJob], claims: ClaimSet, done: Submitted) -> None:
        copy = cache(partial(snapshot, self.project.runs, project=self.project.config.parent))
        largest = _max_array_size()
        sized = [_adjusted(self.project.runs, job, done.seen[job.key]) for job in mine]
        self._reduced = {job.key for job, reduced in sized if reduced}
        mine = [job for job, _ in sized]
        placed = self._already_placed({key for job in mine for key in job.after} - claims.held, done)
        for level in levels(mine):
            ready = [job for job in level if self._prerequisites_met(job, placed, done)]
            pending = arrays(ready, placed, largest)
            while pending:
                array = pending.pop(0)
                try:
                    made, job = self._submit(array, copy(uses=array.first.uses), claims, done.seen)
                except SlurmError as error:
                    if not (error.answered and any(words in str(error).lower() for words in _QUEUE_FULL)):
                        raise _refused(error, array, done) from error
                    pending = self._after_full_queue(array, pending, error, done)
                    continue
                size = count(sum(map(bool, made.record.keys)), "element")
                text = f"{made.name} as SLURM job {job or '(unknown)'}: {size}"
                done.batches.append(JobBatch(made.name, job, made.record.keys, text))
                done.jobs += len(array.jobs)
                if job:
                    placed |= {stage.key: ArrayIndex(job, i) for i, e in enumerate(array.elements) for stage in e}
                else:
                    done.notes.append(
                        f"{made.name}: the scheduler did not answer; `gpas status` shows whether it has the array"
                    )

    def _already_placed(self, keys: Collection[str], done: Submitted) -> dict[str, ArrayIndex]:
        """Return where the queued and running stages among `keys` run, according to the queue.

        Waits for stages that another command is submitting at this moment.
        """
        deadline = time.monotonic() + _LOOKUP_SECONDS
        under_way = {key for key in keys if done.seen[key].state in ALIVE}
        placed = self._queued_at(under_way, queue.FRESH_SECONDS) if under_way else {}
        while under_way - placed.keys() and time.monotonic() < deadline:
            time.sleep(0.5)
            alive = SchedulerView(self.project.runs, max_age_seconds=0.0)
            done.seen |= {key: observe(self.project.runs, key, alive) for key in under_way - placed.keys()}
            under_way = {key for key in under_way if done.seen[key].state in ALIVE}
            placed |= self._queued_at(under_way - placed.keys(), 0.0)
        return placed

    def _queued_at(self, keys: Collection[str], max_age: float) -> dict[str, ArrayIndex]:
        known = queue.current(self.project.runs, max_age)
        found = {}
        for key in keys:
            claim = read_claim(self.project.runs, key)
            job = known.find(claim.submission, claim.index) if claim and claim.submission else None
            if job and not job.ended and "_" in job.id:
                array, _, index = job.id.partition("_")
                found[key] = ArrayIndex(array, int(index))
        return found

    def _prerequisites_met(self, job: StageJob, placed: dict[str, ArrayIndex], done: Submitted) -> bool:
        """Return whether every prerequisite of `job` has its result or is in the queue."""
        unfinished = [done.seen[key] for key in job.after if key not in placed and done.seen[key].state != "done"]
        if any(seen.state in (*RETRIABLE, "diverged") or seen.blocker for seen in unfinished):
            done.blocked.append(job)
        elif unfinished:
            done.left.append(job)
        return not unfinished

    def _after_full_queue(self, array: Array, pending: list[Array], error: SlurmError, done: Submitted) -> list[Array]:
        """Return the arrays to submit after SLURM refused one as too many jobs: its halves, or none for now."""
        if len(array.indices) > 1:
            return [*array.halves(), *pending]
        if not done.batches and not done.followed and "maxsubmit" not in str(error).lower():
            raise error  # a single job is refused for its size, with the same message
        done.left += [job for rest in (array, *pending) for job in rest.jobs]
        done.notes.append(str(error))
        return []

    def _submit(
        self, array: Array, code: Snapshot, claims: ClaimSet, seen: Mapping[str, StageStatus]
    ) -> tuple[Submission, str]:
        """Record the submission, claim its stages and call sbatch. Return the job id, "" if sbatch did not answer."""
        runs = self.project.runs
        name = submission.new_name(array.first.grid)
        made = submission.record(
            self.project, name, array.elements, code, claims.submitter, self._reduced,
            failures=1 if self.request.stop_at_failure else SubmissionRecord.failures,
        )  # fmt: skip
        try:
            path = made.folder / "submission.sh"
            replace_file(path, self._script(array, made.folder, code, seen), mode=0o600)
            for index, element in enumerate(array.elements):
                for job in element:
                    write_claim(
                        runs, job.key, claims.submitter, SLURM, submission=name, index=index, after=job.after,
                        grid=job.grid,
                    )  # fmt: skip
            job_id = self._sbatch(made, path, array.spec(self.request.at_once or array.first.resources.at_once))
        except BaseException as error:
            if not isinstance(error, SlurmError) or error.answered:
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

    def _script(self, array: Array, place: Path, code: Snapshot, seen: Mapping[str, StageStatus] | None = None) -> str:
        resources = array.first.resources
        spec = array.spec(self.request.at_once or resources.at_once)
        jobs = (seen[job.key].job for job in array.jobs) if seen else ()
        bad = {job.nodes for job in jobs if job and job.state in _NODE_FAULTS and job.nodes}
        bad |= {node for job in array.jobs for node in faulty_nodes(self.project.runs, job.key)}
        profile = script.parameters(resources)
        return script.text(self.project, place, code, profile, spec, array.dependency, ",".join(sorted(bad)))

    def _sbatch(self, made: Submission, path: Path, indices: str) -> str:
        """Return the job id, "" if it is unknown. Raises SlurmError for a refusal.

        Name and indices are on the command line, where no environment variable can override them.
        """
        words = ("sbatch", "--parsable", f"--job-name={made.name}", f"--array={indices}", str(path))
        try:
            output = client.run(*words, patience=90.0, drop=script.overriding(path.read_text()))
        except SlurmError as error:
            # Also after a refusal, but without waiting: a site's plugin may fail when SLURM has the array.
            job = _look_for(made.name, 0.0 if error.answered else _LOOKUP_SECONDS)
            if error.answered and not job:
                raise
            self.request.reporter.notice(f"{error}; {'found' if job else 'did not find'} the array in the queue")
            return job
        # A site's wrapper around sbatch may print further lines before and after the job id.
        found = _JOB_ID.findall(output)
        return found[0] if len(found) == 1 else _look_for(made.name)


def held_jobs(jobs: Mapping[str, StageJob], seen: Mapping[str, StageStatus]) -> list[str]:
    """Return a line for each held job, with the command that releases it; of many, only the first few."""
    held = [f"{jobs[key].id}: {now.job}" for key, now in seen.items() if key in jobs and now.job and now.job.held]
    more = [f"and {len(held) - _HELD_NAMED} more jobs are held; see `gpas status`"] if len(held) > _HELD_NAMED else []
    return [*held[:_HELD_NAMED], *more]


def _max_array_size() -> int:
    """Return the maximum number of elements of an array, SLURM's default if it does not answer."""
    try:
        size = client.configuration().get("MaxArraySize", "")
    except SlurmError:
        return _ASSUMED_ARRAY
    return max(1, int(size)) if size.isdigit() else _ASSUMED_ARRAY


def _look_for(name: str, seconds: float = _LOOKUP_SECONDS) -> str:
    """Return the job id of an array after sbatch did not name it, "" if the queue does not have it in this time."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(SlurmError):
            for job in squeue.squeue({name}).get(name, {}).values():
                return job.id.partition("_")[0]
        if time.monotonic() >= deadline:
            return ""
        time.sleep(1.0)


def _refused(error: SlurmError, array: Array, done: Submitted) -> GpasError:
    """Return the error for an array that SLURM refused.

    It has SLURM's complete reason, the array's cells, the resources they ask for, and the arrays already submitted.
    """
    usual = plain(Resources())
    ours = ("environment", "setup", "python")  # not options of sbatch, and they may contain secrets
    resources = plain(array.first.resources).items()
    asked = {name: value for name, value in resources if value != usual[name] and name not in ours}
    words = ", ".join(f"{name}: {value}" for name, value in asked.items()) or "no resources"
    refused = listed([job.id for job in array.jobs], 1)
    lines = [str(error), f"refused: {refused}, which asks for {{{words}}}; none of it was submitted"]
    for batch in done.batches:
        where = f"{batch.name}, SLURM job {batch.job or '(unknown)'}, {batch.elements} elements"
        lines.append(f"submitted before it, and still queued: {where}")
    return GpasError("\n".join(lines))
