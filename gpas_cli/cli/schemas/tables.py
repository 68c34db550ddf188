"""Documents about results: tables, figures, exported networks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from gpas_cli.cli.schemas.common import Document, Number


class Metric(TypedDict):
    """The metric that a table shows."""

    name: str
    title: str
    unit: str
    better: str
    digits: int


class Delta(TypedDict):
    """The difference from the base: the mean over pairs of the same seed."""

    mean: Number
    std: Number | None
    n: Annotated[int, "pairs"]
    lower: Annotated[int, "pairs with a lower number than the base"]
    higher: Annotated[int, "pairs with a higher number than the base"]
    t: Annotated[Number | None, "Student's t of the paired differences"]
    p: Annotated[Number | None, "its two-sided p value"]


class PublishedNumber(TypedDict):
    """A number that a paper prints."""

    value: Number
    delta: Number | None


class TableRun(TypedDict):
    """One run that a cell of the table is the mean of."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    state: str
    value: Number | None
    stderr: Annotated[Number | None, "the standard error of a score over the questions of its task"]
    progress: float | None


class TableCell(TypedDict):
    """One cell of a table."""

    mean: Number | None
    std: Number | None
    stderr: Annotated[Number | None, "of a single run at a task: the standard error over the questions"]
    n: Annotated[int, "runs with a result"]
    wanted: Annotated[int, "runs that the grid declares"]
    delta: Delta | None
    mark: str
    status: Annotated[str, "why numbers are missing, empty when none is"]
    published: dict[str, PublishedNumber]
    runs: list[TableRun]


class TableRow(TypedDict):
    """One row."""

    title: str
    labels: dict[str, Any]
    cells: list[TableCell | None]


class Column(TypedDict):
    """One column; `sources` are the papers whose numbers stand beside it."""

    label: Any
    title: str
    sources: list[str]


class Table(Document):
    """`gpas table --json`; of several grids, an object with the fields `schema` and `tables`, a list of these."""

    title: str
    metric: Metric
    rows: list[TableRow]
    columns: list[Column]
    gains: list[dict[str, Any]]
    notes: list[dict[str, Any]]


class Mean(TypedDict):
    """A mean over the runs that a line stands for."""

    mean: float
    std: Annotated[float | None, "sample standard deviation; null for a single run"]
    n: int


class Point(Mean):
    """A mean at an update or, in curves by layer, at a layer counted from 1."""

    x: float


class DrawnRun(TypedDict):
    """The curve of one cell; points and spikes are pairs of x and y."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    points: list[list[float]]
    spikes: list[list[float]]
    final_norm: float | None


class Series(TypedDict):
    """One line of a figure."""

    title: str
    labels: dict[str, Any]
    over: Annotated[str, "the averaged axis"]
    points: list[Point]
    final_norm: Annotated[Mean | None, "the value at the final norm, which is no layer"]
    matrix: Annotated[list[list[float]] | None, "means of a heat map: over n = 1, 2, ... layers, by first layer"]
    runs: list[DrawnRun]


class Figure(Document):
    """`gpas figure --json`; a picture is drawn only if --out names a file."""

    what: str
    files: Annotated[list[str], "the pictures written"]
    title: str
    x: Annotated[str, "title of the x axis"]
    y: Annotated[str, "title of the y axis, with the unit"]
    log: Annotated[bool, "whether y is logarithmic where all values are positive"]
    series: list[Series]
    cells: Annotated[list[str], "cells that have recorded the curve"]
    missing: Annotated[list[str], "cells that have not"]


class FoldError(TypedDict):
    """How the exported network compares with the cell's; null where there was nothing to compare."""

    random_error: float | None
    held_out_error: float | None
    held_out_tokens: int
    perplexity: float | None
    exported_perplexity: float | None


class Exported(Document):
    """`gpas export --json`."""

    cell: str
    folder: str
    form: Literal["llama", "bundled"]
    reason: str
    checkpoint: str
    step: int
    steps: int
    parameters: int
    dtype: str
    measured: FoldError
    notes: list[str]
