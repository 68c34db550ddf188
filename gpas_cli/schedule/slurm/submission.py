"""A submission on disk: what one job array is to run, written before sbatch is called.

runs/.slurm/<name>/
    submission.json   {schema, name, time, submitter, code, git, project, keys: [[key, ...] of element 0, ...], ...}
    elements.jsonl    line i: the stage jobs of array index i, each as attempt.json will say it
    job.json          {job, time}: sbatch's answer; absent when nobody lived to write it
    *_submission.sh, *_log.out   the sbatch text, and what SLURM and the supervisors said

The name is unique and is the array's job name, so that the scheduler can be asked for it whatever became of the
submitter. Job ids are only shown: a controller that crashed hands them out again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file
from gpas_cli.state.claims import read_claim
from gpas_cli.store.rundir import read_json, write_json

if TYPE_CHECKING:
    from gpas_cli.plan.stage_jobs import StageJob
    from gpas_cli.project import Project
    from gpas_cli.state.submitters import Submitter
    from gpas_cli.store.snapshot import Snapshot

SCHEMA = 1
SETTLED = 3600.0  # seconds after which a submission without claims is over: its submitter may just be claiming


@dataclass(frozen=True)
class Submission:
    """One job array, as recorded."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def since(self) -> float:
        """Unix time at which it was recorded, just before sbatch."""
        return float(self.record["time"])

    @property
    def keys(self) -> list[list[str]]:
        """The stage keys of each element."""
        return [list(keys) for keys in self.record["keys"]]

    @property
    def owner(self) -> int:
        """The number of the user who submitted it. Raises OSError."""
        return (self.folder / "submission.json").stat().st_uid

    def job(self) -> str:
        """The array's job id as sbatch told it, "" when that is not recorded."""
        try:
            return str(read_json(self.folder / "job.json")["job"])
        except (OSError, GpasError, KeyError):
            return ""

    def submitted(self, job: str) -> None:
        """Record sbatch's answer."""
        write_json(self.folder / "job.json", {"job": job, "time": time.time()})

    def element(self, index: int) -> list[dict[str, Any]]:
        """The stage jobs of one array index. Raises GpasError when there is none."""
        with (self.folder / "elements.jsonl").open(encoding="utf-8") as file:
            for i, line in enumerate(file):
                if i == index:
                    return list(json.loads(line))
        raise GpasError(f"{self.folder} has no element {index}")

    def log(self, index: int) -> Path | None:
        """What SLURM and the supervisor of one array index printed, None where there is nothing yet."""
        found = self.folder.glob(f"*_{index}_0_log.out")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def discard(self) -> None:
        """Leave nothing behind, for a submission that the scheduler refused."""
        shutil.rmtree(self.folder, ignore_errors=True)


def folder(runs: Path) -> Path:
    return runs / ".slurm"


def new_name(grid: str) -> str:
    """A job name nobody else has: readable first, then 48 random bits."""
    return f"gpas-{re.sub(r'[^A-Za-z0-9_-]', '_', grid)[:40]}-{secrets.token_hex(6)}"


def record(
    project: Project,
    name: str,
    elements: Sequence[Sequence[StageJob]],
    code: Snapshot,
    submitter: Submitter,
    reduce: Collection[str] = (),
) -> Submission:
    """Write a submission to disk. The stages in `reduce` ran out of memory and are to take fewer rows at a time.

    Raises OSError, with nothing left behind, when it cannot be written.
    """
    place = folder(project.runs) / name
    about = {
        "schema": SCHEMA,
        "name": name,
        "time": time.time(),
        "submitter": {"id": submitter.id, "host": submitter.host, "pid": submitter.pid},
        "code": code.code,
        "git": dict(code.git),
        "project": {"config": str(project.config), "cache": str(project.cache)},
        "keys": [[job.key for job in jobs] for jobs in elements],
    }
    place.mkdir(parents=True)
    try:
        lines = [json.dumps([_facts(job, job.key in reduce) for job in jobs], ensure_ascii=False) for jobs in elements]
        replace_file(place / "elements.jsonl", "".join(f"{line}\n" for line in lines))
        write_json(place / "submission.json", about)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return Submission(place, about)


def _facts(job: StageJob, reduce: bool) -> dict[str, Any]:
    return {**job.facts(), "threads": job.resources.threads, **({"reduce": True} if reduce else {})}


def read(place: Path) -> Submission:
    """The submission in a folder. Raises OSError or StoreError when it cannot be read."""
    return Submission(place, read_json(place / "submission.json"))


def find(runs: Path, name: str) -> Submission | None:
    """The submission of that name; None when it is not there, or not readable."""
    try:
        return read(folder(runs) / name)
    except (OSError, GpasError):
        return None


def open_names(runs: Path) -> list[str]:
    """The names of the submissions that some stage may still be claimed by."""
    place = folder(runs)
    if not place.is_dir():
        return []
    found = (entry for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))
    return [entry.name for entry in found if not (Path(entry.path) / "closed").exists()]


def close_finished(runs: Path) -> None:
    """Mark the submissions that claim no stage any more: nobody needs to ask the scheduler about them again."""
    for name in open_names(runs):
        made = find(runs, name)
        if (
            made is not None
            and time.time() - made.since > SETTLED
            and not any(
                (claim := read_claim(runs, key)) and claim.submission == name for keys in made.keys for key in keys
            )
        ):
            (made.folder / "closed").touch()
