"""The program of an array element: `python -m gpas_cli.schedule.slurm.supervisor SUBMISSION_FOLDER`, once per task.

It is the supervisor of any batch system, for a start of the element as SLURM's environment variables describe it.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpas_cli.schedule.batch import supervisor
from gpas_cli.schedule.batch.element import ElementStart, number
from gpas_cli.schedule.batch.submission import avoided
from gpas_cli.schedule.slurm import client, squeue
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.job import plain
from gpas_cli.store.records import SlurmPlace
from gpas_cli.worker.ranks import outlive_log


class SlurmStart(ElementStart):
    """The start of an array element that this task belongs to. `environ` has the variables that SLURM sets."""

    def __init__(self, place: Path, environ: Mapping[str, str] = os.environ):
        super().__init__(place, environ)
        self.index = int(environ.get("SLURM_ARRAY_TASK_ID", 0))
        self.rank = int(environ.get("SLURM_PROCID", 0))
        self.node = environ.get("SLURMD_NODENAME", "")
        self.tasks = int(environ.get("SLURM_NTASKS", 1))
        self.memory = _limit(environ)
        # Not SLURM_JOB_ID: one element has the whole array's, and requeuing it would requeue all elements.
        self.job = f"{environ.get('SLURM_ARRAY_JOB_ID', '')}_{self.index}"
        restart = int(environ.get("SLURM_RESTART_COUNT", 0) or 0)
        # After a crash a controller may start a job again as if for the first time; srun's port distinguishes the two.
        self.name = f"{self.job}-{restart}-{environ.get('SLURM_STEP_LAUNCHER_PORT', '')}"
        nodes = environ.get("SLURM_JOB_NODELIST", "")
        self.place = SlurmPlace(self.submission.name, self.index, self.job, restart, nodes)

    def seconds_to_warning(self) -> int:
        return 0

    def cancelled(self) -> str:
        # A job that is preempted still counts as running.
        state = client.answer("STATE", "squeue", "-j", self.job, "-o", "%T")[-1]
        preempted = plain(state.strip()) in ("RUNNING", "SIGNALING", "PREEMPTED", "TIMEOUT")
        return "" if preempted else "cancelled in SLURM"

    def requeue(self, exclude: str = "") -> None:
        """Requeue this job, and exclude a node that cannot run it from this job and its array's pending jobs."""
        client.run("scontrol", "requeue", self.job)  # first: SLURM changes only pending jobs
        if not exclude:
            print(f"job {self.job} is requeued and will resume from its checkpoint")
            return
        nodes = ",".join(avoided(self.submission.folder, exclude, squeue.excluded(self.job)))
        print(f"job {self.job} is requeued, to run on another node than {nodes}")
        with suppress(SlurmError):  # the error names every job of the array that is already running
            client.run("scontrol", "update", f"JobId={self.job.partition('_')[0]}", f"ExcNodeList={nodes}")

    def remove_waiting(self) -> None:
        client.run("scancel", "--state=PENDING", f"--name={self.submission.name}", self.job.partition("_")[0])


def _limit(environ: Mapping[str, str]) -> int:
    """Return the memory limit that SLURM sets for the job on this node in bytes, 0 if there is none."""
    node = number(environ.get("SLURM_MEM_PER_NODE", ""))
    cpus = number(environ.get("SLURM_CPUS_ON_NODE", ""))
    return (node or number(environ.get("SLURM_MEM_PER_CPU", "")) * cpus) << 20


if __name__ == "__main__":
    outlive_log()
    sys.exit(supervisor.main(Path(sys.argv[1]).absolute(), SlurmStart))
