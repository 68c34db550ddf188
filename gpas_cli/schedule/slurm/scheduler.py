"""The scheduler of a SLURM cluster: `gpas run` submits job arrays and exits.

With --wait, it stays: it fills the queue as room permits and resubmits interrupted jobs until all have ended.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, explain
from gpas_cli.period import Period
from gpas_cli.plan.machine import Cluster, Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.texts import with_texts
from gpas_cli.project import Project
from gpas_cli.schedule.process import Cancelling
from gpas_cli.schedule.scheduler import (
    Ending,
    Finding,
    ProfileUse,
    RunRequest,
    RunSnapshot,
    RunSummary,
    Scheduler,
    Submitted,
    reason_of,
    summarise,
)
from gpas_cli.schedule.slurm import automatic, client
from gpas_cli.schedule.slurm.accounting import used_by_profile
from gpas_cli.schedule.slurm.findings import findings
from gpas_cli.schedule.slurm.job import Job
from gpas_cli.schedule.slurm.queue import SlurmView, state_of
from gpas_cli.schedule.slurm.submit import ArraySubmitter, held_jobs, ranges
from gpas_cli.spec.run import Resources
from gpas_cli.state.cancellation import request, requested
from gpas_cli.state.claim_set import CLAIMABLE
from gpas_cli.state.claims import Claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, UNREADABLE, CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import stage_dir
from gpas_cli.structure import to_mapping
from gpas_cli.words import count

_POLL_SECONDS = 5.0  # between two checks of the stages
_RESUBMIT_SECONDS = 30.0  # between two attempts to submit the jobs that did not fit into the queue


class _SlurmRun:
    """The jobs submitted by one `gpas run`. `stop` only stops the waiting: the jobs belong to SLURM."""

    def __init__(self, submitter: ArraySubmitter, submitted: Submitted):
        self.submitter = submitter
        self.submitted = submitted
        self._request = submitter.request
        self._reporter = submitter.request.reporter
        self._seen = dict(submitted.seen)
        self._held = set[str]()  # notices given about jobs that are held
        self._stopped = False
        self._resubmission = Period(_RESUBMIT_SECONDS, at_once=False)
        self._tries = Counter[tuple[str, int | None]]()  # submissions of a stage after its attempt of that number

    def stop(self) -> None:
        """Stop waiting. Safe in a signal handler."""
        self._stopped = True

    def follow(self) -> RunSummary:
        """Wait until every stage that can be run has ended. Return the summary."""
        while not self._stopped:
            self._observe()
            states = {key: self._seen[key].state for key in self.submitter.jobs}
            resubmittable = [key for key, state in states.items() if state in CLAIMABLE and not self._tried_enough(key)]
            if not any(seen.state in ALIVE for seen in self._seen.values()) and not (
                resubmittable and self._any_can_run(resubmittable)
            ):
                break
            if resubmittable and self._resubmission.is_over():
                self._submit()
            time.sleep(_POLL_SECONDS)
        self._observe()
        endings = {key: Ending(status, reason_of(status)) for key, status in self._seen.items()}
        return summarise(self._request.entries, endings)

    def _observe(self) -> None:
        alive = SchedulerView(self.submitter.project.runs)
        ended = False
        for key, job in self._jobs.items():
            before = self._seen.get(key)
            self._seen[key] = observe(alive.runs, key, alive)
            if before and before.state != self._seen[key].state and self._seen[key].state not in (*ALIVE, "missing"):
                self._reporter.finished(job, self._seen[key])
                ended = True
        if ended and (problem := self._request.ingest()):
            self._reporter.notice(problem)
        for line in held_jobs(self._jobs, self._seen):
            if line not in self._held:
                self._held.add(line)
                self._reporter.notice(line)
        self._reporter.tick(self._snapshot())

    @property
    def _jobs(self) -> dict[str, StageJob]:
        return {**self.submitter.texts, **self.submitter.jobs}

    def _tried_enough(self, key: str) -> bool:
        """Return whether the stage was resubmitted `retries` times without SLURM starting an attempt at it."""
        return self._tries[key, self._seen[key].attempt] >= self.submitter.jobs[key].resources.retries

    def _any_can_run(self, keys: list[str]) -> bool:
        """Return whether some of these stages can still run: their prerequisites have a result or may yet have one."""
        states = {key: seen.state for key, seen in self._seen.items()}
        parents = (self._jobs[key].after for key in keys)
        return any(all(states[p] in (*CLAIMABLE, *ALIVE, "done") for p in needed) for needed in parents)

    def _submit(self) -> None:
        try:
            done = self.submitter.submit(again=True)
        except (GpasError, OSError) as error:  # the next attempt may succeed
            self._reporter.notice(str(error))
            return
        keys = (key for batch in done.batches for element in batch.keys for key in element if key in self._seen)
        self._tries.update((key, self._seen[key].attempt) for key in keys)
        if done.jobs:
            self._reporter.notice(f"{count(done.jobs, 'more job')} submitted")

    def _snapshot(self) -> RunSnapshot:
        jobs = [(job, self._seen[key]) for key, job in self._jobs.items() if key in self._seen]
        return RunSnapshot(
            running=tuple((job, seen) for job, seen in jobs if seen.state == "running"),
            waiting=tuple(job for job, seen in jobs if seen.state == "queued"),
            ended=Counter(seen.state for seen in self._seen.values() if seen.state not in ALIVE),
        )


_TOGETHER = 1000  # elements of one array in a call of scancel


def _cancel(view: SlurmView, stages: Mapping[str, Claim]) -> dict[str, tuple[bool, str]]:
    """Write a request for each stage, and remove from the queue the jobs that have nothing else to run.

    Return by key whether the request was written, and what was done. The queue of `view` must have been queried just
    now. The requests are written first and are sufficient: if SLURM does not answer, a job starts, reads the request
    and exits.
    """
    done: dict[str, tuple[bool, str]] = {}
    for key in stages:
        try:
            request(stage_dir(view.runs, key))
        except UNREADABLE as error:
            done[key] = False, f"could not be cancelled: {explain(error)}"
    idle: dict[str, dict[str, int]] = {}  # array -> key -> index of its job, which has nothing else to run
    for key, claim in stages.items():
        job, array = view.job_of(claim), view.made(claim.submission)
        if key in done:
            continue
        if job is None or job.ended or job.state == "RUNNING":
            alive = job and not job.ended
            done[key] = True, "its job will save and exit within seconds" if alive else "its job will skip this cell"
        elif not array or all(key == other or requested(view.runs, other) for other in array.record.keys[claim.index]):
            idle.setdefault(job.id.partition("_")[0], {})[key] = claim.index
        else:
            done[key] = True, f"SLURM {job.id} runs its other cells without it"
    for job_id, indices in idle.items():
        done |= {key: (True, what) for key, what in _removed(job_id, indices)}
    return done


def _removed(array: str, indices: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Remove elements of an array from the queue. Yield what was done for each key."""
    keys: Sequence[str] = sorted(indices, key=lambda key: indices[key])
    for some in (keys[i : i + _TOGETHER] for i in range(0, len(keys), _TOGETHER)):
        numbers = ranges(sorted({indices[key] for key in some}))
        failed = ""
        try:
            # The id that the queue has just given for the name, since ids are reused after a crash. Given a name
            # besides the id of one element, scancel (22.05) cancels the whole array.
            client.run("scancel", f"{array}_{numbers}" if numbers.isdigit() else f"{array}_[{numbers}]")
        except client.SlurmError as error:
            failed = f"its job will exit when it starts ({error})"
        for key in some:
            yield key, failed or f"removed from the queue (SLURM {array}_{indices[key]})"


class SlurmScheduler(Scheduler):
    """The scheduler of a SLURM cluster. A claim counts while SLURM has, or may yet have, the job array it names."""

    foreground = False

    def __init__(self, scan: SchedulerView):
        super().__init__(scan)
        self._view = SlurmView(scan)

    require = staticmethod(client.require)
    automatic = staticmethod(automatic)

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a stage from the queue. A claim without an array belongs to a submitting process."""
        return state_of(self._view, key, last, claim) if claim.submission else self.scan.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> Job | None:
        return self._view.job_of(claim)

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        made = self._view.made(claim.submission)
        jobs = made.element(claim.index) if made else []
        return next((to_mapping(job) for job in jobs if job.key == key), {})

    def log_of(self, claim: Claim) -> Path | None:
        made = self._view.made(claim.submission)
        return made.log(claim.index) if made else None

    def cancel(self, stages: Sequence[tuple[CellStatus, Claim]]) -> Iterable[Cancelling]:
        submitted = [(status, claim) for status, claim in stages if claim.submission]
        done = _cancel(self._view, {status.key: claim for status, claim in submitted})
        # A `gpas run` has just claimed the other stages to submit them.
        others = super().cancel([(status, claim) for status, claim in stages if not claim.submission])
        return [*others, *(Cancelling(status, *done[status.key]) for status, _ in submitted)]

    def machine(self) -> Machine:
        return Cluster()

    def prepare(self, project: Project, jobs: Iterable[StageJob]) -> Sequence[StageJob]:
        return with_texts(project, jobs)

    def submit(self, request: RunRequest) -> _SlurmRun:
        submitter = ArraySubmitter(request)
        return _SlurmRun(submitter, submitter.submit())

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterable[Finding]:
        return findings(project, resources, nodes=nodes)

    def used_by_profile(self, keys: Collection[str]) -> list[ProfileUse]:
        return used_by_profile(self.scan.runs, keys)

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Yield the sbatch text of every array that would be submitted."""
        for array, text in ArraySubmitter(RunRequest(project=project, entries=())).preview(jobs):
            yield f"\n# {count(len(array.jobs), 'job')} in {count(len(array.indices), 'array element')}\n{text}"
