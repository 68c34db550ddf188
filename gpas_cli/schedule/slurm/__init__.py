"""The scheduler of a SLURM cluster. A submission is one job array; its folder lists what each element runs.

client       run sbatch, squeue, sacct, scontrol, scancel with a time limit; whether they are there
job          one array element as SLURM reports it; what SLURM's job states mean
squeue       what squeue, or scontrol, reports about jobs
accounting   what sacct reports about jobs that have ended
queue        one cached query for the jobs of all submissions; run directory + claim + queue -> the state of a stage
submission   runs/.slurm/<name>/, recorded before sbatch is called; the name is the array's job name
script       resources -> sbatch text, by submitit
submit       claims -> job arrays -> submissions -> sbatch
scheduler    SlurmScheduler: the protocol; cancellation; `gpas run --wait`
supervisor   the program of an array element, which supervises its attempts and their jobs
allocation   one start of an array element: its attempts, the files that its tasks exchange, its memory
findings     findings of `gpas doctor` about the cluster's configuration and its nodes
probe        the script that runs on a node for it; needs only Python

No job is lost and none runs twice, whichever process dies: the claim of a stage names the submission that may run it,
and an element whose cells another submission has claimed exits without touching them. A command that finds no trace of
a submission in the queue can therefore claim its cells again, even if the old call of sbatch may still take effect.
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
