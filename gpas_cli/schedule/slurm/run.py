"""`gpas run --wait`: fill the queue as room permits, and resubmit interrupted jobs, until all have ended."""

from __future__ import annotations

import time
from collections import Counter

from gpas_cli.errors import GpasError
from gpas_cli.period import Period
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.schedule.slurm.submit import ArraySubmitter, held_jobs
from gpas_cli.schedule.summary import Ending, RunSnapshot, RunSummary, Submitted, reason_of, summarise
from gpas_cli.state.claim_set import CLAIMABLE
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE
from gpas_cli.state.view import SchedulerView
from gpas_cli.words import count

POLL_SECONDS = 5.0  # between two checks of the stages
RESUBMIT_SECONDS = 30.0  # between two attempts to submit the jobs that did not fit into the queue


class SlurmRun:
    """The jobs submitted by one `gpas run`. `stop` only stops the waiting: the jobs belong to SLURM."""

    def __init__(self, submitter: ArraySubmitter, submitted: Submitted):
        self.submitter = submitter
        self.submitted = submitted
        self._request = submitter.request
        self._reporter = submitter.request.reporter
        self._seen = dict(submitted.seen)
        self._held = set[str]()  # notices given about jobs that are held
        self._stopped = False
        self._resubmission = Period(RESUBMIT_SECONDS, at_once=False)
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
            time.sleep(POLL_SECONDS)
        self._observe()
        return self._summary()

    def _observe(self) -> None:
        runs = self.submitter.project.runs
        alive = SchedulerView(runs)
        ended = False
        for key, job in self._jobs.items():
            before = self._seen.get(key)
            self._seen[key] = observe(runs, key, alive)
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
        jobs = self._jobs
        at = {
            state: [key for key, seen in self._seen.items() if seen.state == state] for state in ("running", "queued")
        }
        return RunSnapshot(
            running=tuple((jobs[key], self._seen[key]) for key in at["running"]),
            followed=(),
            waiting=tuple(jobs[key] for key in at["queued"]),
            ended=Counter(seen.state for seen in self._seen.values() if seen.state not in ALIVE),
            slots=0,
            starved=False,
            stopping=False,
        )

    def _summary(self) -> RunSummary:
        endings = {key: Ending(status, reason_of(status)) for key, status in self._seen.items()}
        return summarise(self._request.entries, endings)
