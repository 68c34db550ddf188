"""What the scheduler says of all our jobs: one question, kept in runs/.slurm/.queue.json for everyone who asks soon.

squeue comes first: it tells what is so now, while sacct shows a requeued job as ended for seconds. sacct is asked only
about arrays that squeue does not list any more, and its answer about an ended job is kept. Where the scheduler does
not answer, what was known grows older, and asking again waits longer each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.launch.slurm import commands, states, submission
from gpas_cli.launch.slurm.commands import SlurmError
from gpas_cli.store.rundir import read_json, write_json

FRESH = 3.0  # seconds for which an answer serves everyone
BACK_OFF, LONGEST = 5.0, 120.0  # seconds before a scheduler that did not answer is asked again: doubled up to this
PREFIX = "gpas-"
WHOLE = -1  # stands for every index of an array that has no record of its own
# squeue pads and cuts every column to its width; nothing else is safe to split at.
COLUMNS = (
    ("ArrayJobID", 20), ("ArrayTaskID", 16), ("Name", 80), ("State", 24), ("Reason", 48), ("NodeList", 200),
    ("StartTime", 24), ("EndTime", 24), ("exit_code", 12), ("RestartCnt", 12),
    ("tres-alloc", 120),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One array element as the scheduler knows it. Times are unix, 0 where it tells none."""

    id: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: float = 0.0
    end: float = 0.0
    exit: str = ""
    restarts: int = 0
    gpus: int = 0

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of this start of the job, so far or in all."""
        until = self.end if self.ended else time.time()
        return self.gpus * max(0.0, until - self.start) / 3600 if self.start else 0.0

    @property
    def ended(self) -> bool:
        return self.state in states.ENDED

    def __str__(self) -> str:
        told = self.reason if self.reason not in ("None", "", "NonZeroExitCode") else ""
        where = f" on {self.nodes}" if self.nodes and self.state in states.AT_WORK else ""
        return f"SLURM {self.id} {self.state}{where}{f' ({told})' if told else ''}"


Jobs = dict[str, dict[int, Job]]


@dataclass
class Queue:
    """An answer: job name -> array index -> job. `time` is when the scheduler gave it, 0 when it never has.

    `error` says why a newer answer could not be had, "" when this one is fresh.
    """

    time: float = 0.0
    jobs: Jobs = field(default_factory=dict)
    error: str = ""
    failures: int = 0
    tried: float = 0.0

    def find(self, name: str, index: int) -> Job | None:
        """The element of the array of that name; of one that was cancelled whole, SLURM keeps a single record."""
        elements = self.jobs.get(name, {})
        return elements.get(index) or elements.get(WHOLE)

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.time)


def current(runs: Path, max_age: float = FRESH) -> Queue:
    """What the scheduler says now, or said at most `max_age` seconds ago; an old answer with its error otherwise."""
    known = _load(runs)
    if known.age <= max_age and not known.error:
        return known
    if known.error and time.time() - known.tried < min(LONGEST, BACK_OFF * 2 ** (known.failures - 1)):
        return known
    fresh = _ask(runs, known)
    with suppress(OSError):  # a read-only place costs the sharing, not the answer
        _save(runs, fresh)
    return fresh


def _ask(runs: Path, known: Queue) -> Queue:
    began = time.time()
    try:
        jobs = _with_past(runs, _live(), known)
    except SlurmError as error:
        return replace(known, error=str(error), failures=known.failures + 1, tried=time.time())
    return Queue(time=began, jobs=jobs)


def _live() -> Jobs:
    """Every job of ours that the controller remembers."""
    layout = ",".join(f"{name}:{width}" for name, width in COLUMNS)
    told = commands.run("squeue", "-h", "-r", "-a", "-t", "all", "-u", commands.user(), "-O", layout)
    return _table(_squeue_rows(told))


def _squeue_rows(told: str) -> Iterator[tuple[str, int, Job]]:
    ends = list(accumulate(width for _, width in COLUMNS))
    for line in told.splitlines():
        cut = [line[end - width : end].strip() for end, (_, width) in zip(ends, COLUMNS, strict=True)]
        array, index, name, state, reason, nodes, start, end, code, again, tres = cut
        if name.startswith(PREFIX) and (index.isdigit() or states.plain(state) in states.ENDED):
            element = int(index) if index.isdigit() else WHOLE
            shown = _exit_words(code) if states.plain(state) in states.ENDED else ""
            restarts = int(again) if again.isdigit() else 0
            times = (_time(start), _time(end))
            job = Job(
                f"{array}_{index}" if index.isdigit() else array,
                states.plain(state),
                reason,
                nodes,
                *times,
                shown,
                restarts,
                _gpus(tres),
            )
            yield name, element, job


def _gpus(tres: str) -> int:
    """The GPUs among allocated resources, `cpu=4,mem=8G,node=1,gres/gpu=2`."""
    counts = [part.partition("=")[2] for part in tres.split(",") if part.startswith("gres/gpu=")]
    return int(counts[0]) if counts and counts[0].isdigit() else 0


def _exit_words(code: str) -> str:
    """squeue's exit status, as wait() gives it or as words, in sacct's form `code:signal`."""
    status = int(code) if code.isdigit() else 0
    return code if ":" in code else f"{status >> 8}:{status & 127}"


def _with_past(runs: Path, jobs: Jobs, known: Queue) -> Jobs:
    """`jobs` and the ended ones that the controller has forgotten: those known before, else what sacct says."""
    open_names = submission.open_names(runs)
    for name, elements in known.jobs.items():
        for index, job in elements.items():
            if job.ended and index not in jobs.get(name, {}) and name in open_names:
                jobs.setdefault(name, {})[index] = job
    gone = {name: found for name in open_names if (found := _missing(runs, name, jobs))}
    if not gone or not commands.present("sacct"):
        return jobs
    with suppress(SlurmError):  # no accounting: what squeue does not list is gone, and how it ended is not known
        for name, index, job in _history(gone):
            if job.ended and index not in jobs.get(name, {}):
                jobs.setdefault(name, {})[index] = job
    return jobs


def _missing(runs: Path, name: str, jobs: Jobs) -> float:
    """The time of a submission of which elements are unaccounted for; 0 when there is none to ask about."""
    made = submission.find(runs, name)
    known = jobs.get(name, {})
    if made is None or WHOLE in known or len(known) >= len(made.keys):
        return 0.0
    return made.since


def _history(since: dict[str, float]) -> Iterator[tuple[str, int, Job]]:
    first = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(since.values()) - 60))
    fields = "JobID,JobName%300,State,ExitCode,NodeList%200,Start,End"
    told = commands.run("sacct", "-n", "-X", "-P", "-S", first, f"--name={','.join(since)}", "-o", fields)
    for line in told.splitlines():
        parts = line.split("|")
        if len(parts) != 7:
            continue
        raw, name, state, code, nodes, start, end = parts
        base = Job("", states.plain(state), "", nodes, _time(start), _time(end), code)
        for index in indices(raw):
            yield name, index, replace(base, id=f"{raw.split('_')[0]}_{index}")


def indices(job_id: str) -> Iterator[int]:
    """The array indices of `12_3`, `12_[3,5-7%4]`; none for a job that is no array."""
    _, _, tail = job_id.partition("_")
    for part in tail.strip("[]").split("%")[0].rstrip("]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)


def _table(rows: Iterator[tuple[str, int, Job]]) -> Jobs:
    jobs: Jobs = {}
    for name, index, job in rows:
        jobs.setdefault(name, {})[index] = job
    return jobs


def _time(word: str) -> float:
    if word.isdigit():
        return float(word)
    if "T" not in word:  # N/A, Unknown: of every job that waits
        return 0.0
    try:
        return time.mktime(time.strptime(word, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0


def _path(runs: Path) -> Path:
    return submission.folder(runs) / ".queue.json"


def _load(runs: Path) -> Queue:
    try:
        found = read_json(_path(runs))
        jobs = {name: {int(i): Job(**job) for i, job in rows.items()} for name, rows in found.pop("jobs").items()}
        return Queue(jobs=jobs, **found)
    except (OSError, GpasError, KeyError, TypeError, ValueError):
        return Queue()


def _save(runs: Path, queue: Queue) -> None:
    jobs = {name: {str(i): vars(job) for i, job in rows.items()} for name, rows in queue.jobs.items()}
    told = {"time": queue.time, "error": queue.error, "failures": queue.failures, "tried": queue.tried}
    write_json(_path(runs), {**told, "jobs": jobs}, indent=None)
