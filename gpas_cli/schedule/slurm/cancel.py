"""Cancellation of one stage of a SLURM job, also if the job runs others."""

from __future__ import annotations

from gpas_cli.schedule.slurm import client, submission
from gpas_cli.schedule.slurm.view import SlurmView
from gpas_cli.state.cancellation import request, requested
from gpas_cli.state.claims import Claim
from gpas_cli.store.rundir import stage_dir


def cancel(view: SlurmView, key: str, claim: Claim) -> str:
    """Write a request for the job, and remove the job from the queue if it has nothing else to run.

    Return what was done. The queue of `view` must have been queried just now. The request is written first and is
    sufficient: if SLURM does not answer, the job starts, reads the request and exits.
    """
    request(stage_dir(view.runs, key))
    job = view.job_of(claim)
    if job is None or job.ended or job.state == "RUNNING":
        return "its job will save and exit within seconds" if job and not job.ended else "its job will skip this cell"
    made = submission.find(view.runs, claim.submission)
    others = made.keys[claim.index] if made else []
    if all(other == key or requested(view.runs, other) for other in others):
        try:
            # The id that the queue has just given for the name, since ids are reused after a crash. Given a name
            # besides the id of one element, scancel (22.05) cancels the whole array.
            client.run("scancel", job.id)
        except client.SlurmError as error:
            return f"its job will exit when it starts ({error})"
        return f"removed from the queue (SLURM {job.id})"
    return f"SLURM {job.id} runs its other cells without it"
