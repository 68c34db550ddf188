"""SLURM's report during one look at the run directories: queried once, and again only if it is too old for a claim."""

from __future__ import annotations

import os
import time

from gpas_cli.permissions import user_name
from gpas_cli.schedule.slurm import retry, submission
from gpas_cli.schedule.slurm.array_task import Job
from gpas_cli.schedule.slurm.queue import FRESH_LINE_SECONDS, FRESH_SECONDS, Queue, current
from gpas_cli.state.claims import Claim
from gpas_cli.state.view import SchedulerView


class SlurmView:
    """The queue and the submissions as they are seen during one look."""

    def __init__(self, look: SchedulerView, queue: Queue | None = None):
        self.look = look
        self.runs = look.runs
        self.obstacles: dict[str, str] = {}  # key -> why a stage that builds on it cannot run, "" if it can
        self._queue = queue
        self._dead: dict[str, float] = {}  # submitter -> when it was first seen to be dead
        self._held: dict[str, str] = {}
        self._recorded: dict[str, bool] = {}
        self._others: dict[str, str] = {}

    @property
    def queue(self) -> Queue:
        """SLURM's report on all jobs, queried on first use."""
        if self._queue is None:
            usual = FRESH_LINE_SECONDS if self.look.line else FRESH_SECONDS
            wanted = self.look.max_age_seconds
            self._ask(usual if wanted is None else wanted)
        assert self._queue is not None
        return self._queue

    def job_of(self, claim: Claim) -> Job | None:
        """Return the claim's element of its job array, None if the queue does not have it."""
        return self.queue.find(claim.submission, claim.index) if claim.submission else None

    def renew(self, since: float) -> None:
        """Query SLURM again if the answer is from before `since` (unix time)."""
        if self.queue.time < since:
            self._ask(max(0.0, time.time() - since))

    def queue_after(self, claim: Claim) -> Queue | None:
        """Return an answer given after the submitter was seen to be dead: only that proves that a job is missing.

        Return None while the submitter lives. If SLURM does not answer, the queue is an older one, with its error.
        """
        if claim.submitter not in self._dead:
            if self.look.lives_now(claim):
                return None
            self._dead[claim.submitter] = time.time()
        if not self.queue.own or self.queue.time <= self._dead[claim.submitter]:
            self._ask(0.0)
        return self.queue

    def breaker(self, name: str) -> str:
        """Return why the rest of a submission is held back, "" if it is not."""
        if name not in self._held:
            self._held[name] = retry.breaker(submission.folder(self.runs) / name)
        return self._held[name]

    def recorded(self, name: str) -> bool:
        """Return whether the submission is on disk. One that SLURM refused is not."""
        if name not in self._recorded:
            self._recorded[name] = submission.find(self.runs, name) is not None
        return self._recorded[name]

    def other_user(self, name: str) -> str:
        """Return who made a submission whose jobs SLURM may hide from this user, "" if it hides none."""
        if name not in self._others:
            made = submission.find(self.runs, name)
            mine = made is None or os.getuid() in (0, made.owner)
            self._others[name] = "" if made is None or mine else user_name(made.owner)
        return self._others[name]

    def _ask(self, max_age_seconds: float) -> None:
        self._queue = current(self.runs, max_age_seconds, line=self.look.line)
