"""A submission on disk: the stages that one job array runs, recorded before it is submitted.

runs/.SCHEDULER/<name>/
    submission.json   the stages and code submitted (`SubmissionRecord`)
    elements.jsonl    line i: the stages of array index i (`ElementRecord`), in the form of attempt.json
    job.json          the batch system's answer (`JobRecord`); absent if the submitter died before it could write it
    submission.sh, *_log.out   the script, and the output of the batch system and the supervisors

The name is unique and is the array's job name, so that the array can be found in the queue even if the submitter died.
Ids of SLURM's jobs are only displayed: a controller that crashed reuses them.

Elements also record there which of them failed and why (`failed-INDEX.json`), nodes that cannot run the jobs
(`avoid-NODE.json`), and that the rest is held back after `failures` of the same cause (`breaker.json`).
"""

import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.files import append_regular, open_regular, parse_json, replace_file
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.state.claims import Submitter, read_claim
from gpas_cli.store.records import BreakerRecord, ElementFailure, ElementRecord, Folders, JobRecord, SubmissionRecord
from gpas_cli.store.rundir import attempts, read_record, write_record
from gpas_cli.store.snapshot import Snapshot
from gpas_cli.structure import Frozen, from_mapping, to_mapping
from gpas_cli.words import count

_SETTLED_SECONDS = 3600.0  # age at which a submission without claims is closed; a younger one may still claim
_AVOID_NODE_SECONDS = 86400.0  # how long new submissions of a stage exclude a node that could not run it


class BatchError(GpasError):
    """A batch system's program failed. `answered`: the system itself refused, rather than being unreachable."""

    def __init__(self, message: str, *, answered: bool = True):
        super().__init__(message)
        self.answered = answered

    def says(self, texts: Collection[str]) -> bool:
        """Return whether its message has one of the texts, which are in small letters."""
        return any(text in str(self).lower() for text in texts)


class ArrayIndex(Frozen):
    """The array element in which a stage will run. `job` is the job id of the array."""

    job: str
    index: int


class Array(Frozen):
    """A job array to submit. Index i runs `elements[i]`; empty elements are not submitted.

    All of it waits for the elements `after` of other arrays, or each element for that of the same index in `beside`.
    """

    elements: tuple[tuple[StageJob, ...], ...]
    after: tuple[ArrayIndex, ...] = ()
    beside: str = ""

    @property
    def first(self) -> StageJob:
        return next(job for element in self.elements for job in element)

    @property
    def jobs(self) -> list[StageJob]:
        return [job for element in self.elements for job in element]

    def places(self, job: str) -> dict[str, ArrayIndex]:
        """Return where its stages run, by key, given its id."""
        return {stage.key: ArrayIndex(job, i) for i, element in enumerate(self.elements) for stage in element}

    @property
    def indices(self) -> list[int]:
        return [i for i, element in enumerate(self.elements) if element]

    def halves(self) -> "list[Array]":
        """Return two arrays of half as many elements. Those that wait for another array's keep their indices."""
        middle = self.indices[len(self.indices) // 2]
        keep = middle if self.beside else 0
        first, second = self.elements[:middle], self.elements[middle:]
        return [replace(self, elements=first), replace(self, elements=((),) * keep + second)]


class Submission(Frozen):
    """One job array, as recorded."""

    folder: Path
    record: SubmissionRecord

    @property
    def name(self) -> str:
        return self.folder.name

    def job(self) -> str:
        """Return the array's job id from the batch system's answer, "" if it is not recorded."""
        with suppress(OSError, GpasError):
            return read_record(JobRecord, self.folder / "job.json").job
        return ""

    def submitted(self, job: str) -> None:
        """Record the batch system's answer."""
        write_record(self.folder / "job.json", JobRecord(job=job, time=time.time()))

    def element(self, index: int) -> list[ElementRecord]:
        """Return the stages of one array index. Raises GpasError if there is no such line, or it is damaged."""
        path = self.folder / "elements.jsonl"
        where = f"{path}, line {index + 1}"
        with open_regular(path) as file:
            for line in islice(file, index, index + 1):
                try:
                    return [from_mapping(ElementRecord, each, where) for each in parse_json(line)]
                except (ValueError, TypeError) as error:
                    raise GpasError(f"{where}: not the stages of an array index: {error}") from error
        raise GpasError(f"{self.folder} has no element {index}")

    def log(self, index: int) -> Path | None:
        """Return the newest log of the system and the supervisor of one array index, None if there is none yet."""
        found = self.folder.glob(f"*_{index}_0_log.out")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def started(self) -> set[int]:
        """Return the array indices that a node has started: each then has a log."""
        logs = (re.fullmatch(r"[^_]+_(\d+)_0_log\.out", path.name) for path in self.folder.iterdir())
        return {int(found[1]) for found in logs if found}


def new_name(grid: str) -> str:
    """Return a unique job name: a readable part, then 48 random bits."""
    return f"gpas-{re.sub(r'[^A-Za-z0-9_-]', '_', grid)[:40]}-{secrets.token_hex(6)}"


def record(
    place: Path, project: Project, elements: Sequence[Sequence[StageJob]], code: Snapshot, submitter: Submitter,
    reduce: Collection[str] = (), failures: int = SubmissionRecord.failures,
) -> Submission:  # fmt: skip
    """Write a submission to the folder `place`. The stages in `reduce` ran out of memory and get a smaller micro-batch.
    `failures`: as in SubmissionRecord.

    Raises OSError, and leaves nothing behind, if it cannot be written.
    """
    about = SubmissionRecord(
        name=place.name, time=time.time(), submitter=submitter.author, code=code.code, git=dict(code.git),
        project=Folders(config=str(project.config), cache=str(project.cache)),
        keys=tuple(tuple(job.key for job in jobs) for jobs in elements), failures=failures,
    )  # fmt: skip

    def element(job: StageJob) -> Any:
        more = {"reduce": job.key in reduce, "larger": job.larger, "again": job.again}
        return to_mapping(ElementRecord.of(job.record(), threads=job.resources.threads, **more))

    place.mkdir(parents=True)
    try:
        lines = [json.dumps([element(job) for job in jobs], ensure_ascii=False) for jobs in elements]
        replace_file(place / "elements.jsonl", "".join(f"{line}\n" for line in lines))
        write_record(place / "submission.json", about)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return Submission(place, about)


def read(place: Path) -> Submission:
    """Return the submission in a folder. Raises OSError or StoreError if it cannot be read."""
    return Submission(place, read_record(SubmissionRecord, place / "submission.json"))


def find(place: Path) -> Submission | None:
    """Return the submission in a folder, None if it is missing or unreadable."""
    with suppress(OSError, GpasError):
        return read(place)
    return None


def open_names(place: Path) -> list[str]:
    """Return the names of the submissions that may still claim a stage, given the folder of all of a scheduler."""
    if not place.is_dir():
        return []
    found = (entry for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))
    return [entry.name for entry in found if not (Path(entry.path) / "closed").exists()]


def close_finished(place: Path) -> None:
    """Mark the submissions that no longer claim a stage; the scheduler is not queried about them again."""
    for name in open_names(place):
        made = find(place / name)
        if made is not None and time.time() - made.record.time > _SETTLED_SECONDS:
            claims = (read_claim(place.parent, key) for keys in made.record.keys for key in keys)
            if not any(claim and claim.submission == name for claim in claims):
                append_regular(made.folder / "closed").close()


def count_failure(submission: Submission, index: int, cause: str) -> str:
    """Record that an element failed. Return the cause if too many elements share it: the rest is then held back."""
    folder, most = submission.folder, submission.record.failures
    with suppress(OSError, GpasError):
        write_record(folder / f"failed-{index}.json", ElementFailure(cause=_same(cause)))
        seen = Counter(read_record(ElementFailure, path).cause for path in folder.glob("failed-*.json"))
        if cause and seen[_same(cause)] >= most and not breaker(folder):
            write_record(folder / "breaker.json", BreakerRecord(cause=cause, cells=most, t=time.time()))
            return cause
    return ""


def breaker(submission: Path) -> str:
    """Return why the rest of a submission is held back, "" if it is not."""
    with suppress(OSError, GpasError):
        record = read_record(BreakerRecord, submission / "breaker.json")
        failed = f"{count(record.cells, 'cell')} of {submission.name} failed"
        return f"held back: {failed}{' for the same reason' if record.cells > 1 else ''}: {record.cause}"
    return ""


def faulty_nodes(runs: Path, key: str) -> set[str]:
    """Return the nodes that could not run recent attempts at a stage, according to exit.json."""
    found = set[str]()
    for attempt in attempts(runs, key):
        with suppress(OSError, GpasError):
            ended = attempt.read_exit()
            if ended.node and time.time() - (ended.t or 0.0) < _AVOID_NODE_SECONDS:
                found.add(ended.node)
    return found


def avoided(submission: Path, node: str, others: Collection[str]) -> list[str]:
    """Record that a node cannot run the jobs of a submission. Return all such nodes and `others`, sorted by name."""
    with suppress(OSError):
        append_regular(submission / f"avoid-{node}.json").close()
    noted = {path.stem.removeprefix("avoid-") for path in submission.glob("avoid-*.json")}
    return sorted({node, *others, *noted})


def _same(cause: str) -> str:
    """Return a cause without the parts that differ between cells: numbers, keys, paths."""
    return re.sub(r"[0-9a-f]{8,}|\d+|/\S+", "*", cause)
