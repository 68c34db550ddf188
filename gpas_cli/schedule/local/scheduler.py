"""The scheduler of this machine: `gpas run` starts the jobs as processes and waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.plan.machine import Machine, machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import RunRequest, Scheduler
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView

if TYPE_CHECKING:
    from gpas_cli.schedule.local.run import LocalRun


class LocalScheduler(Scheduler):
    """The scheduler of this machine. A claim counts while the `gpas run` that made it lives."""

    foreground = True

    def __init__(self, look: SchedulerView):
        self.look = look

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        return self.look.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> None:
        return None

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        return {}

    def log_of(self, claim: Claim) -> Path | None:
        return None

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        from gpas_cli.schedule.cancel import cancel_process  # here, as below: reading states needs neither

        return cancel_process(self.look, status, claim)

    def machine(self) -> Machine:
        return machine()

    def prepare(self, project: Project, jobs: Iterable[StageJob]) -> Sequence[StageJob]:
        return tuple(jobs)

    def submit(self, request: RunRequest) -> LocalRun:
        from gpas_cli.schedule.local.run import LocalRun

        run = LocalRun(request)
        run.submit()
        return run

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        return ()

    def ask_start(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        raise GpasError("--test-only needs SLURM; add --executor slurm")
