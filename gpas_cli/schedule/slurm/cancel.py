"""Cancel one stage of a SLURM job, also if the job runs others."""

from __future__ import annotations

from gpas_cli.schedule.slurm import client, submission
from gpas_cli.schedule.slurm.view import SlurmView
from gpas_cli.state.cancellation import request, requested
from gpas_cli.state.claims import Claim
from gpas_cli.store.rundir import stage_dir


def cancel(view: SlurmView, key: str, claim: Claim) -> str:
    """Write a request for the job, and remove the job from the queue if it has nothing else to run.

    Return what was done. The queue of `view` must be an answer given just now. The request is written first and is what
    counts: if SLURM does not answer, the job starts, reads the request and exits.
    """
    request(stage_dir(view.runs, key))
    job = view.job_of(claim)
    if job is None or job.ended or job.state == "RUNNING":
        return "its job will save and leave within seconds" if job and not job.ended else "its job will not start it"
    made = submission.find(view.runs, claim.submission)
    others = made.keys[claim.index] if made else []
    if all(other == key or requested(view.runs, other) for other in others):
        try:
            # By the id that the queue has just given for the name: ids are handed out again after a crash. With a name
            # beside the id of one element, scancel (22.05) takes the whole array.
            client.run("scancel", job.id)
        except client.SlurmError as error:
            return f"its job will leave when it starts ({error})"
        return f"taken out of the queue (SLURM {job.id})"
    return f"SLURM {job.id} runs its other cells without it"
