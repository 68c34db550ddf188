"""Types that several documents share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

State = Literal["missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown"]
NumberJson = float | str  # a number that is not finite is the string "nan", "inf" or "-inf"
Time = Annotated[float, "unix time, seconds"]
Seconds = Annotated[float, "seconds"]


class DocumentJson(TypedDict):
    """Every document begins with its version."""

    schema: Annotated[Literal[1], "version of the document's form"]


class CellNameJson(TypedDict):
    """A cell of a grid; a cell that several grids have is in the list of each."""

    key: Annotated[str, "content key: 16 hex digits"]
    grid: str
    name: Annotated[str, "the name within the grid; grid/name is unique"]


class LabelledCellJson(CellNameJson):
    """A cell with its label on every axis."""

    axes: dict[str, Any]


class SlurmJobJson(TypedDict):
    """What SLURM reports about a cell's job; all null if it reports nothing."""

    job: str | None
    node: str | None
    partition: str | None
    reason: Annotated[str | None, "why it waits"]
    position: Annotated[int | None, "its place among the jobs that wait"]
    waiting: Annotated[int | None, "how many jobs wait"]
    expected_start: Annotated[float | None, "unix time"]


class HoursJson(TypedDict):
    """Hours of devices: of GPUs, or of cores where no GPU was used."""

    gpu_hours: float
    core_hours: float


class ScoreJson(TypedDict):
    """One metric of one task."""

    task: str
    metric: Annotated[str, "acc, acc_norm, perplexity, word_perplexity, ..., skipped (a number of questions)"]
    value: Annotated[NumberJson, "accuracies are fractions"]
    stderr: Annotated[NumberJson | None, "the standard error, null if unknown"]
    examples: Annotated[int, "how many questions were scored"]
    shots: Annotated[int, "answered examples before each question"]
    task_version: str
    harness: Annotated[str, "the program that scored the task, and its version"]
