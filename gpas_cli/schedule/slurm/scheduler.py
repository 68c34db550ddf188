"""The scheduler of a SLURM cluster: `gpas run` submits job arrays and exits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpas_cli.plan.machine import Cluster, Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.tokenisation import with_texts
from gpas_cli.project import Project
from gpas_cli.schedule.process_cancel import cancel_process
from gpas_cli.schedule.scheduler import Finding, ProfileUse, RunRequest, Scheduler
from gpas_cli.schedule.slurm import choice, submission
from gpas_cli.schedule.slurm.array_task import Job
from gpas_cli.schedule.slurm.cancel import cancel
from gpas_cli.schedule.slurm.findings import findings
from gpas_cli.schedule.slurm.run import SlurmRun
from gpas_cli.schedule.slurm.state import state_of
from gpas_cli.schedule.slurm.submit import ArraySubmitter
from gpas_cli.schedule.slurm.used import used_by_profile
from gpas_cli.schedule.slurm.view import SlurmView
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.structure import to_mapping
from gpas_cli.words import count, listed


class SlurmScheduler(Scheduler):
    """The scheduler of a SLURM cluster. A claim counts while SLURM has, or may yet have, the job array it names."""

    foreground = False

    def __init__(self, look: SchedulerView):
        self.look = look
        self._view = SlurmView(look)

    require = staticmethod(choice.require)
    automatic = staticmethod(choice.automatic)

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a stage from the queue. A claim without an array is that of a submitting process."""
        return state_of(self._view, key, last, claim) if claim.submission else self.look.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> Job | None:
        return self._view.job_of(claim)

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        made = submission.find(self.look.runs, claim.submission) if claim.submission else None
        jobs = made.element(claim.index) if made else []
        return next((to_mapping(job) for job in jobs if job.key == key), {})

    def log_of(self, claim: Claim) -> Path | None:
        made = submission.find(self.look.runs, claim.submission) if claim.submission else None
        return made.log(claim.index) if made else None

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        if not claim.submission:  # a `gpas run` has just claimed the stage to submit it
            return cancel_process(self.look, status, claim)
        return self.cancel_all({status.key: claim})[status.key]

    def cancel_all(self, stages: Mapping[str, Claim]) -> Mapping[str, tuple[bool, str]]:
        return cancel(self._view, stages)

    def machine(self) -> Machine:
        return Cluster()

    def prepare(self, project: Project, jobs: Iterable[StageJob]) -> Sequence[StageJob]:
        return with_texts(project, jobs)

    def submit(self, request: RunRequest) -> SlurmRun:
        submitter = ArraySubmitter(request)
        return SlurmRun(submitter, submitter.submit())

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterable[Finding]:
        return findings(project, resources, nodes=nodes)

    def used_by_profile(self, keys: Collection[str]) -> list[ProfileUse]:
        return used_by_profile(self.look.runs, keys)

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Yield the sbatch text of every array that would be submitted."""
        for array, text in ArraySubmitter(RunRequest(project=project, entries=())).preview(jobs):
            yield f"\n# {count(len(array.jobs), 'job')} in {count(len(array.indices), 'array element')}\n{text}"

    def ask_start(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Yield when and where SLURM would start each array. Raises SlurmError with its reason for a refusal."""
        for array, answer in ArraySubmitter(RunRequest(project=project, entries=())).ask_start(jobs):
            yield f"{listed([job.id for job in array.jobs], 1)}: {answer}"
