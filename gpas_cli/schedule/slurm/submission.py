"""A submission on disk: the stages that one job array runs, recorded before sbatch is called.

runs/.slurm/<name>/
    submission.json   the stages and code submitted (`SubmissionRecord`)
    elements.jsonl    line i: the stages of array index i (`ElementRecord`), in the form of attempt.json
    job.json          sbatch's answer (`JobRecord`); absent if the submitter died before it could write it
    *_submission.sh, *_log.out   the sbatch text, and the output of SLURM and the supervisors

The name is unique and is the array's job name, so that the array can be found in the queue even if the submitter died.
Job ids are only displayed: a controller that crashed reuses them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.files import parse_json, replace_file
from gpas_cli.state.claims import read_claim
from gpas_cli.store.records import Author, ElementRecord, Folders, JobRecord, SubmissionRecord, element_of
from gpas_cli.store.rundir import read_record, write_record
from gpas_cli.structure import from_mapping, to_mapping

if TYPE_CHECKING:
    from gpas_cli.plan.stage_jobs import StageJob
    from gpas_cli.project import Project
    from gpas_cli.state.submitters import Submitter
    from gpas_cli.store.snapshot import Snapshot

SETTLED_SECONDS = 3600.0  # age at which a submission without claims is closed; a younger one may still claim


@dataclass(frozen=True)
class Submission:
    """One job array, as recorded."""

    folder: Path
    record: SubmissionRecord

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def since(self) -> float:
        """Unix time at which it was recorded, just before sbatch."""
        return self.record.time

    @property
    def keys(self) -> list[list[str]]:
        """The stage keys of each element."""
        return [list(keys) for keys in self.record.keys]

    def keys_of(self, index: int) -> tuple[str, ...]:
        """Return the stage keys of one element."""
        return tuple(self.record.keys[index])

    @property
    def owner(self) -> int:
        """The numeric id of the user who submitted it. Raises OSError."""
        return (self.folder / "submission.json").stat().st_uid

    def job(self) -> str:
        """Return the array's job id from sbatch's answer, "" if it is not recorded."""
        try:
            return read_record(JobRecord, self.folder / "job.json").job
        except (OSError, GpasError):
            return ""

    def submitted(self, job: str) -> None:
        """Record sbatch's answer."""
        write_record(self.folder / "job.json", JobRecord(job=job, time=time.time()))

    def element(self, index: int) -> list[ElementRecord]:
        """Return the stages of one array index. Raises GpasError if there is no such line, or it is damaged."""
        path = self.folder / "elements.jsonl"
        where = f"{path}, line {index + 1}"
        with path.open("rb") as file:
            for line in islice(file, index, index + 1):
                try:
                    return [from_mapping(ElementRecord, each, where) for each in parse_json(line)]
                except (ValueError, TypeError) as error:
                    raise GpasError(f"{where}: not the stages of an array index: {error}") from error
        raise GpasError(f"{self.folder} has no element {index}")

    def log(self, index: int) -> Path | None:
        """Return the newest log of SLURM and the supervisor of one array index, None if there is none yet."""
        found = self.folder.glob(f"*_{index}_0_log.out")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def started(self) -> set[int]:
        """Return the array indices that a node has started: each then has a log."""
        logs = (re.fullmatch(r"[^_]+_(\d+)_0_log\.out", path.name) for path in self.folder.iterdir())
        return {int(found[1]) for found in logs if found}

    def discard(self) -> None:
        """Delete the folder of a submission that the scheduler refused."""
        shutil.rmtree(self.folder, ignore_errors=True)


def folder(runs: Path) -> Path:
    return runs / ".slurm"


def new_name(grid: str) -> str:
    """Return a unique job name: a readable part, then 48 random bits."""
    return f"gpas-{re.sub(r'[^A-Za-z0-9_-]', '_', grid)[:40]}-{secrets.token_hex(6)}"


def record(
    project: Project,
    name: str,
    elements: Sequence[Sequence[StageJob]],
    code: Snapshot,
    submitter: Submitter,
    reduce: Collection[str] = (),
) -> Submission:
    """Write a submission to disk. The stages in `reduce` ran out of memory and get a smaller micro-batch.

    Raises OSError, and leaves nothing behind, if it cannot be written.
    """
    place = folder(project.runs) / name
    about = SubmissionRecord(
        name=name,
        time=time.time(),
        submitter=Author(submitter.id, submitter.host, submitter.pid),
        code=code.code,
        git=dict(code.git),
        project=Folders(config=str(project.config), cache=str(project.cache)),
        keys=tuple(tuple(job.key for job in jobs) for jobs in elements),
    )
    place.mkdir(parents=True)
    try:
        records = [
            [
                element_of(job.record(), job.resources.threads, reduce=job.key in reduce, larger=job.larger)
                for job in jobs
            ]
            for jobs in elements
        ]
        lines = [json.dumps([to_mapping(each) for each in element], ensure_ascii=False) for element in records]
        replace_file(place / "elements.jsonl", "".join(f"{line}\n" for line in lines))
        write_record(place / "submission.json", about)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return Submission(place, about)


def read(place: Path) -> Submission:
    """Return the submission in a folder. Raises OSError or StoreError if it cannot be read."""
    return Submission(place, read_record(SubmissionRecord, place / "submission.json"))


def find(runs: Path, name: str) -> Submission | None:
    """Return the submission of that name, None if it is missing or unreadable."""
    try:
        return read(folder(runs) / name)
    except (OSError, GpasError):
        return None


def open_names(runs: Path) -> list[str]:
    """Return the names of the submissions that may still claim a stage."""
    place = folder(runs)
    if not place.is_dir():
        return []
    found = (entry for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))
    return [entry.name for entry in found if not (Path(entry.path) / "closed").exists()]


def close_finished(runs: Path) -> None:
    """Mark the submissions that no longer claim a stage; the scheduler is not queried about them again."""
    for name in open_names(runs):
        made = find(runs, name)
        if (
            made is not None
            and time.time() - made.since > SETTLED_SECONDS
            and not any(
                (claim := read_claim(runs, key)) and claim.submission == name for keys in made.keys for key in keys
            )
        ):
            (made.folder / "closed").touch()
