"""The scheduler of a SLURM cluster: `gpas run` submits job arrays and exits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpas_cli.schedule.local.cancel import cancel as cancel_process
from gpas_cli.schedule.slurm import submission
from gpas_cli.schedule.slurm.array_task import Job
from gpas_cli.schedule.slurm.cancel import cancel
from gpas_cli.schedule.slurm.state import state_of
from gpas_cli.schedule.slurm.view import SlurmView
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView


class SlurmScheduler:
    """A claim counts while SLURM has, or may yet have, the job array that it names."""

    def __init__(self, look: SchedulerView):
        self.look = look
        self._view = SlurmView(look)

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a stage from the queue. A claim that names no array is that of a process submitting."""
        return state_of(self._view, key, last, claim) if claim.submission else self.look.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> Job | None:
        return self._view.job_of(claim)

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        made = submission.find(self.look.runs, claim.submission) if claim.submission else None
        facts = made.element(claim.index) if made else []
        return next((job for job in facts if job["key"] == key), {})

    def log_of(self, claim: Claim) -> Path | None:
        made = submission.find(self.look.runs, claim.submission) if claim.submission else None
        return made.log(claim.index) if made else None

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        if not claim.submission:  # a `gpas run` has just claimed the stage to submit it
            return cancel_process(self.look, status, claim)
        return True, cancel(self._view, status.key, claim)
