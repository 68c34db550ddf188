"""The scheduler of a SLURM cluster, on what `batch/` has for any batch system. A submission is one job array.

client       run sbatch, squeue, sacct, scontrol, scancel with a time limit; whether they are there
job          one array element as SLURM reports it; what SLURM's job states mean
squeue       what squeue, or scontrol, reports about jobs
accounting   what sacct reports about jobs that have ended
queue        one cached query for the jobs of all submissions; the state of a stage whose job has ended
script       resources -> sbatch text, by submitit
scheduler    SlurmScheduler: what `batch/` asks of a batch system; sbatch, scancel
supervisor   the program of an array element: a start as SLURM describes it, requeuing
findings     findings of `gpas doctor` about the cluster's configuration and its nodes
probe        the script that runs on a node for it; needs only Python
"""

import os
import shutil
from contextlib import suppress

from gpas_cli.schedule.scheduler import Choice
from gpas_cli.state.claims import LOCAL, SLURM


def automatic() -> Choice | None:
    """Return SLURM if its controller answers, this machine in a job of it, None if it is not installed."""
    if shutil.which("sbatch") is None:
        return None
    from gpas_cli.schedule.slurm.client import SlurmError, run

    if "SLURM_JOB_ID" in os.environ:
        return Choice(LOCAL)
    with suppress(SlurmError):
        if "is UP" in run("scontrol", "ping", patience=20.0):
            return Choice(SLURM)
    return Choice(LOCAL, "sbatch is here, but no SLURM controller answers: jobs run on this machine")
