"""What was submitted to a scheduler that runs jobs without this process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpas_cli.cli.console import console
from gpas_cli.words import count

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.plan.stage_jobs import StageJob
    from gpas_cli.schedule.summary import RunSnapshot, Submitted
    from gpas_cli.state.status import StageStatus
    from gpas_cli.store.rundir import AttemptDir


class SubmittedArrayJson(TypedDict):
    """One SLURM job array."""

    name: str
    job: Annotated[str, "SLURM's id, empty when it is not known"]
    elements: int


class SubmittedJson(TypedDict):
    """What was submitted to SLURM."""

    arrays: list[SubmittedArrayJson]
    jobs: int
    followed: Annotated[int, "stages that were already queued or running"]
    left: Annotated[int, "stages that SLURM has no room for yet"]
    failed_before: Annotated[int, "stages that wait for `gpas retry`"]
    blocked: Annotated[int, "stages whose parent failed"]


class SubmissionReporter:
    """A reporter for a command that submits jobs and exits: it prints only notices."""

    def started(self, job: StageJob, attempt: AttemptDir) -> None: ...

    def finished(self, job: StageJob, status: StageStatus) -> None: ...

    def tick(self, board: RunSnapshot) -> None: ...

    def notice(self, message: str) -> None:
        console().print(message, markup=False)


def print_submitted(done: Submitted, chosen: Sequence[Entry]) -> None:
    """Print what was submitted and why the rest was not."""
    from rich.text import Text

    for line in (*(f"submitted {batch.text}" for batch in done.batches), *done.notes):
        console().print(line, markup=False)
    parts = [f"{count(done.jobs, 'job')} submitted"]
    parts += [f"{done.followed} already queued or running"] if done.followed else []
    parts += [f"{len(done.left)} not yet submitted: the queue is full"] if done.left else []
    ended = done.over - done.unknown
    parts += [f"{ended} failed or cancelled earlier (gpas retry)"] if ended else []
    parts += [f"{done.unknown} in an unknown state (gpas status shows why)"] if done.unknown else []
    parts += [f"{len(done.blocked)} blocked by failed prerequisites (gpas retry)"] if done.blocked else []
    grids = shlex.join(dict.fromkeys(entry.grid for entry in chosen))
    console().print(Text.assemble((", ".join(parts), "bold"), ". Watch: ", (f"gpas status {grids} --watch", "bold")))


def submitted_json(done: Submitted) -> SubmittedJson:
    """Return what was submitted, for `--json`."""
    arrays: list[SubmittedArrayJson] = [
        {"name": batch.name, "job": batch.job, "elements": batch.elements} for batch in done.batches
    ]
    return {"arrays": arrays, "jobs": done.jobs, "followed": done.followed, "left": len(done.left),
            "failed_before": done.over, "blocked": len(done.blocked)}  # fmt: skip
