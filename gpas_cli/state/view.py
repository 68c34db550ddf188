"""What submitters and schedulers report about claims, asked once for each look."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gpas_cli.grid.trust import user_name
from gpas_cli.schedule.slurm import retry, submission
from gpas_cli.schedule.slurm.queue import FRESH, Queue, current
from gpas_cli.state import locks
from gpas_cli.state.claims import Claim
from gpas_cli.state.locks import Lock
from gpas_cli.state.submitters import SILENCE, _of_here, folder


@dataclass
class SchedulerView:
    """Answers whether a submitter lives, each asked about once: make a new one for each look around."""

    runs: Path
    max_age: float = FRESH  # seconds for which an answer of the scheduler serves
    line: bool = False  # whether the scheduler is asked where jobs stand in line
    verdicts: dict[str, str] = field(default_factory=dict)  # key -> why what waits for it cannot run, "" if it can
    _known: dict[str, bool] = field(default_factory=dict)
    _dead: dict[str, float] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)
    _recorded: dict[str, bool] = field(default_factory=dict)
    _others: dict[str, str] = field(default_factory=dict)

    @cached_property
    def queue(self) -> Queue:
        """What the scheduler says of all jobs, asked for when the first of them is looked at."""
        return current(self.runs, self.max_age, line=self.line)

    def renew(self, since: float) -> None:
        """Make sure that the scheduler's answer is none from before `since` (unix time), if it can be had."""
        if self.queue.time < since:
            self.__dict__["queue"] = current(self.runs, max_age=max(0.0, time.time() - since), line=self.line)

    def queue_after(self, claim: Claim) -> Queue | None:
        """An answer given after the submitter was seen to be dead: only such a one can miss a job for good.

        None while the submitter lives. Where the scheduler does not answer, an older one, with its error.
        """
        if claim.submitter not in self._dead:
            if self._ask(claim):
                return None
            self._dead[claim.submitter] = time.time()
        if not self.queue.own or self.queue.time <= self._dead[claim.submitter]:
            self.__dict__["queue"] = current(self.runs, max_age=0.0, line=self.line)
        return self.queue

    def breaker(self, name: str) -> str:
        """Why the rest of a submission is held back, "" when it is not."""
        if name not in self._held:
            self._held[name] = retry.breaker(submission.folder(self.runs) / name)
        return self._held[name]

    def recorded(self, name: str) -> bool:
        """Whether the submission of that name is on disk: one that the scheduler refused is not."""
        if name not in self._recorded:
            self._recorded[name] = submission.find(self.runs, name) is not None
        return self._recorded[name]

    def other_user(self, name: str) -> str:
        """Who made the submission of that name, "" where SLURM hides none of its jobs from the user of this process."""
        if name not in self._others:
            made = submission.find(self.runs, name)
            mine = made is None or os.getuid() in (0, made.owner)
            self._others[name] = "" if made is None or mine else user_name(made.owner)
        return self._others[name]

    def __call__(self, claim: Claim) -> bool:
        if claim.submitter not in self._known:
            self._known[claim.submitter] = self._ask(claim)
        return self._known[claim.submitter]

    def _ask(self, claim: Claim) -> bool:
        path = folder(self.runs) / f"{claim.submitter}.lock"
        found = locks.probe(path)
        if found in (Lock.HELD, Lock.ABSENT) or (found is Lock.FREE and _of_here(path, claim.host)):
            return found is Lock.HELD
        try:  # some network file systems keep locks to one host; the heartbeat crosses hosts
            return time.time() - path.stat().st_mtime < SILENCE
        except OSError:
            return False
