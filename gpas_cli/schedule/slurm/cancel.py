"""Cancelling a stage that a SLURM job is to run, or runs: that one only, also where others share its job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.schedule.slurm import client, submission
from gpas_cli.schedule.slurm.queue import Queue
from gpas_cli.state.cancellation import request, requested
from gpas_cli.store.rundir import stage_dir

if TYPE_CHECKING:
    from gpas_cli.state.claims import Claim


def cancel(runs: Path, key: str, claim: Claim, queue: Queue) -> str:
    """Leave word for the job, and take it out of the queue where it has nothing else to run. Says what was done.

    `queue` is an answer given just now.

    The word comes first, and is what counts: SLURM not answering means only that the job starts, and leaves at once.
    """
    request(stage_dir(runs, key))
    job = queue.find(claim.submission, claim.index)
    if job is None or job.ended or job.state == "RUNNING":
        return "its job will save and leave within seconds" if job and not job.ended else "its job will not start it"
    made = submission.find(runs, claim.submission)
    others = made.keys[claim.index] if made else []
    if all(other == key or requested(runs, other) for other in others):
        try:
            # By the id that the queue has just told for the name: ids are handed out again after a crash. With a name
            # beside the id of one element, scancel (22.05) takes the whole array.
            client.run("scancel", job.id)
        except client.SlurmError as error:
            return f"its job will leave when it starts ({error})"
        return f"taken out of the queue (SLURM {job.id})"
    return f"SLURM {job.id} runs its other cells without it"
