"""Claims on stages: `runs/<key[:2]>/<key>/claim.json` names the submitter that will run a stage."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import StoreError
from gpas_cli.files import replace_file
from gpas_cli.state import locks
from gpas_cli.state.submitters import Submitter, claims_lock
from gpas_cli.store.records import ClaimRecord
from gpas_cli.store.rundir import read_record, stage_dir
from gpas_cli.structure import to_mapping

CLAIM = "claim.json"
LOCAL, SLURM = "local", "slurm"  # the schedulers of claims by older versions, which name none
_NAME = re.compile(r"[^/\0]+")  # of a submitter; it becomes part of a file name


@dataclass(frozen=True)
class Claim:
    """The scheduler that will run a stage, and the process that submitted it. `since` is unix time.

    `submission` is the scheduler's name for the submission, and `index` the job in it; such a claim outlives its
    submitter. `submission` is "" if the submitting process runs the stage itself. `after` contains the keys of the
    stages that the job waits for. `grid` is the grid for which the stage was requested, "" if it is not recorded.
    """

    submitter: str
    host: str
    pid: int
    since: float
    submission: str = ""
    index: int = 0
    after: tuple[str, ...] = ()
    scheduler: str = LOCAL
    grid: str = ""

    def __str__(self) -> str:
        if self.submission:
            return f"{self.submission} [{self.index}]"
        return f"gpas run {self.pid} on {self.host}"


def claim_path(runs: Path, key: str) -> Path:
    return stage_dir(runs, key) / CLAIM


def read_claim(runs: Path, key: str) -> Claim | None:
    """Return the claim on a stage, even if its submitter is dead; None if there is none or it cannot be read."""
    try:
        found = read_record(ClaimRecord, claim_path(runs, key))
    except (OSError, StoreError):
        return None
    if not _NAME.fullmatch(found.submitter):
        return None
    return Claim(
        found.submitter, found.host, found.pid, found.time, found.submission, found.index, found.after,
        found.scheduler or (SLURM if found.submission else LOCAL), found.grid,
    )  # fmt: skip


def write_claim(
    runs: Path,
    key: str,
    submitter: Submitter,
    scheduler: str = LOCAL,
    *,
    submission: str = "",
    index: int = 0,
    after: Sequence[str] = (),
    grid: str = "",
) -> None:
    """Write a claim, replacing any earlier one. There is no fsync, because no submitter survives a power cut.

    Without a `submission` the submitter itself runs the stage; the other arguments are as in `Claim`.
    """
    path = claim_path(runs, key)
    claim = ClaimRecord(
        submitter=submitter.id, host=submitter.host, pid=submitter.pid, time=time.time(), scheduler=scheduler,
        submission=submission, index=index, after=tuple(after), grid=grid,
    )  # fmt: skip
    content = json.dumps(to_mapping(claim)) + "\n"
    try:
        replace_file(path, content, durable=False)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content, durable=False)


def release_claim(runs: Path, key: str, submission: str, index: int) -> None:
    """Remove the claim of a job that has ended, unless another job has claimed the stage since, as `gpas retry` does.

    Raises OSError, or GpasError if `claims_lock` is not released by its holder.
    """
    with locks.locked(claims_lock(runs)):
        claim = read_claim(runs, key)
        if claim is not None and (claim.submission, claim.index) == (submission, index):
            claim_path(runs, key).unlink(missing_ok=True)
