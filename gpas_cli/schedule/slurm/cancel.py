"""Cancellation of stages of SLURM jobs, also of jobs that run others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpas_cli.permissions import explain
from gpas_cli.schedule.slurm import client, submission
from gpas_cli.schedule.slurm.arrays import ranges
from gpas_cli.schedule.slurm.view import SlurmView
from gpas_cli.state.cancellation import request, requested
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import UNREADABLE
from gpas_cli.store.rundir import stage_dir

TOGETHER = 1000  # elements of one array in a call of scancel


def cancel(view: SlurmView, stages: Mapping[str, Claim]) -> dict[str, tuple[bool, str]]:
    """Write a request for each stage, and remove from the queue the jobs that have nothing else to run.

    Return by key whether the request was written, and what was done. The queue of `view` must have been queried just
    now. The requests are written first and are sufficient: if SLURM does not answer, a job starts, reads the request
    and exits.
    """
    done: dict[str, tuple[bool, str]] = {}
    for key in stages:
        try:
            request(stage_dir(view.runs, key))
        except UNREADABLE as error:
            done[key] = False, f"could not be cancelled: {explain(error)}"
    made = {name: submission.find(view.runs, name) for name in {claim.submission for claim in stages.values()}}
    idle: dict[str, dict[str, int]] = {}  # array -> key -> index of its job, which has nothing else to run
    for key, claim in stages.items():
        job, array = view.job_of(claim), made[claim.submission]
        if key in done:
            continue
        if job is None or job.ended or job.state == "RUNNING":
            alive = job and not job.ended
            done[key] = True, "its job will save and exit within seconds" if alive else "its job will skip this cell"
        elif all(
            key == other or requested(view.runs, other) for other in (array.keys_of(claim.index) if array else ())
        ):
            idle.setdefault(job.id.partition("_")[0], {})[key] = claim.index
        else:
            done[key] = True, f"SLURM {job.id} runs its other cells without it"
    for job_id, indices in idle.items():
        done |= {key: (True, what) for key, what in _removed(job_id, indices)}
    return done


def _removed(array: str, indices: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Remove elements of an array from the queue. Yield what was done for each key."""
    keys: Sequence[str] = sorted(indices, key=lambda key: indices[key])
    for some in (keys[i : i + TOGETHER] for i in range(0, len(keys), TOGETHER)):
        numbers = ranges(sorted({indices[key] for key in some}))
        failed = ""
        try:
            # The id that the queue has just given for the name, since ids are reused after a crash. Given a name
            # besides the id of one element, scancel (22.05) cancels the whole array.
            client.run("scancel", f"{array}_{numbers}" if numbers.isdigit() else f"{array}_[{numbers}]")
        except client.SlurmError as error:
            failed = f"its job will exit when it starts ({error})"
        for key in some:
            yield key, failed or f"removed from the queue (SLURM {array}_{indices[key]})"
