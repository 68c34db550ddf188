"""The scheduler of a SLURM cluster."""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.plan.texts import with_texts
from gpas_cli.project import Project
from gpas_cli.schedule.batch.scheduler import LOOKUP_SECONDS, BatchRun, BatchScheduler
from gpas_cli.schedule.batch.submission import Array, Submission, faulty_nodes
from gpas_cli.schedule.scheduler import ProfileUse, RunRequest
from gpas_cli.schedule.slurm import automatic, client, queue, script, squeue
from gpas_cli.schedule.slurm.accounting import used_by_profile
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.findings import findings
from gpas_cli.schedule.slurm.job import Job
from gpas_cli.schedule.slurm.queue import ended
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import SLURM, Claim
from gpas_cli.state.status import StageStatus
from gpas_cli.store.snapshot import Snapshot

_ASSUMED_ARRAY = 1001  # SLURM's default MaxArraySize
# States that the node caused: the job is run again on another one.
_NODE_FAULTS = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
_JOB_ID = re.compile(r"^[ \t]*(\d+)(?:;.*)?\s*$", re.MULTILINE)  # output of sbatch --parsable: 123 or 123;cluster


class SlurmScheduler(BatchScheduler):
    """The scheduler of a SLURM cluster."""

    name, title = SLURM, "SLURM"
    full = ("submit limit", "submitjob", "maxjobcount", "job count limit")
    own_limit = ("maxsubmit",)
    require = staticmethod(client.require)
    automatic = staticmethod(automatic)
    prepare = staticmethod(with_texts)
    findings = staticmethod(findings)

    def options(self, project: Project, asked: Resources, after: Sequence[str] = ()) -> Mapping[str, Any]:
        return script.parameters(asked)

    def script(self, request: RunRequest, array: Array, place: Path, code: Snapshot) -> str:
        jobs = (self.seen[job.key].job for job in array.jobs if self.seen)
        bad = {job.nodes for job in jobs if job and job.state in _NODE_FAULTS and job.nodes}
        bad |= {node for job in array.jobs for node in faulty_nodes(self.runs, job.key)}
        asked, indices = array.first.resources, script.spec(array, request.at_once)
        after, exclude = script.dependency(array), ",".join(sorted(bad))
        return script.text(request.project, asked, place, code, indices, after, exclude)

    def start(self, request: RunRequest, array: Array, made: Submission) -> str:
        # Name and indices are on the command line, where no environment variable can override them.
        path, indices = made.folder / "submission.sh", script.spec(array, request.at_once)
        words = ("sbatch", "--parsable", f"--job-name={made.name}", f"--array={indices}", str(path))
        try:
            output = client.run(*words, patience=90.0, drop=script.overriding(path.read_text()))
        except SlurmError as error:
            # Also after a refusal, but without waiting: a site's plugin may fail when SLURM has the array.
            job = _look_for(made.name, 0.0 if error.answered else LOOKUP_SECONDS)
            if error.answered and not job:
                raise
            request.reporter.notice(f"{error}; {'found' if job else 'did not find'} the array in the queue")
            return job
        # A site's wrapper around sbatch may print further lines before and after the job id.
        found = _JOB_ID.findall(output)
        return found[0] if len(found) == 1 else _look_for(made.name)

    def remove(self, array: str, indices: Sequence[int]) -> None:
        # The id that the queue has just given for the name, since ids are reused after a crash. Given a name
        # besides the id of one element, scancel (22.05) cancels the whole array.
        numbers = script.ranges(indices)
        client.run("scancel", f"{array}_{numbers}" if numbers.isdigit() else f"{array}_[{numbers}]")

    def largest(self) -> int:
        """Return the maximum number of elements of an array, SLURM's default if it does not answer."""
        size = ""
        with suppress(SlurmError):
            size = client.configuration().get("MaxArraySize", "")
        return max(1, int(size)) if size.isdigit() else _ASSUMED_ARRAY

    def current(self, max_age_seconds: float | None = None) -> queue.Queue:
        return queue.current(self.runs, max_age_seconds, line=self.scan.line)

    def ended(self, last: StageStatus, claim: Claim, job: Job, time: float) -> StageStatus:
        return ended(self.place, last, claim, job, time)

    def used_by_profile(self, keys: Collection[str]) -> list[ProfileUse]:
        return used_by_profile(self.place, keys)

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Return the sbatch text of every array that would be submitted."""
        return BatchRun(self, RunRequest(project=project, entries=())).preview(jobs)


def _look_for(name: str, seconds: float = LOOKUP_SECONDS) -> str:
    """Return the job id of an array after sbatch did not name it, "" if the queue does not have it in this time."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(SlurmError):
            for job in squeue.squeue({name}).get(name, {}).values():
                return job.array
        if time.monotonic() >= deadline:
            return ""
        time.sleep(1.0)
