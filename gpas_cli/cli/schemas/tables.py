"""Documents about results: tables, figures, exported networks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, NumberJson, ScoreJson


class MetricJson(TypedDict):
    """The metric that a column shows."""

    name: str
    title: str
    unit: str
    better: Annotated[str, "lower, higher, or empty if neither is better"]
    digits: int


class DeltaJson(TypedDict):
    """The difference from the base: the mean over pairs of the same seed."""

    mean: NumberJson
    std: NumberJson | None
    n: Annotated[int, "pairs"]
    lower: Annotated[int, "pairs with a lower number than the base"]
    higher: Annotated[int, "pairs with a higher number than the base"]
    t: Annotated[NumberJson | None, "Student's t of the paired differences"]
    p: Annotated[NumberJson | None, "its two-sided p value"]
    interval: Annotated[
        list[float] | None, "both ends of the 95 % interval of the mean; null with fewer than two pairs"
    ]


class DeviationJson(TypedDict):
    """A setting of a cell that differs from the recipe of the number printed beside it."""

    setting: str
    published: Any
    ours: Annotated[Any, "null if cells have no such setting"]
    origin: Annotated[str, "where the published value is from: paper or code"]


class PublishedNumberJson(TypedDict):
    """A number that a paper prints."""

    value: NumberJson
    delta: NumberJson | None
    tokens: Annotated[int | None, "tokens that its network was trained on, if stated"]
    deviations: list[DeviationJson]
    remarks: Annotated[list[str], "misprints and unstated choices that concern it"]
    text: Annotated[str, "number and difference as printed, in tables with the paper's own layout"]


class TableRunJson(TypedDict):
    """One run that a cell of the table is the mean of."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    state: str
    value: NumberJson | None
    stderr: Annotated[NumberJson | None, "the standard error of a score over the questions of its task"]
    progress: float | None


class TableCellJson(TypedDict):
    """One cell of a table."""

    mean: NumberJson | None
    std: NumberJson | None
    stderr: Annotated[NumberJson | None, "of a single run at a task: the standard error over the questions"]
    n: Annotated[int, "runs with a result"]
    wanted: Annotated[int, "runs that the grid declares"]
    delta: DeltaJson | None
    mark: str
    status: Annotated[str, "why numbers are missing, empty if none are"]
    published: dict[str, PublishedNumberJson]
    runs: list[TableRunJson]


class TableRowJson(TypedDict):
    """One row."""

    title: str
    labels: dict[str, Any]
    cells: list[TableCellJson | None]


class ExternalCellJson(TypedDict):
    """The number of a network that was not trained here."""

    value: NumberJson | None
    stderr: Annotated[NumberJson | None, "the standard error over the questions"]
    status: Annotated[str, "why there is no number"]


class ExternalRowJson(TypedDict):
    """A network that was not trained here: no rank, no difference, and scored with the settings of the cells."""

    title: str
    name: str
    key: Annotated[str, "content key of its scores: 16 hex digits"]
    origin: Annotated[dict[str, str], "source, revision, digests of the weights and of the other files, architecture"]
    settings: Annotated[dict[str, int], "shots, limit, max_length"]
    precision: str | None
    cells: list[ExternalCellJson]
    scores: list[ScoreJson]


class ColumnJson(TypedDict):
    """One column; `sources` are the papers whose numbers stand beside it."""

    label: Any
    title: str
    metric: MetricJson
    sources: list[str]


class PrintedCellJson(TypedDict):
    """A cell of a published table: the text as printed, and its numbers."""

    text: str
    value: float | None
    delta: Annotated[float | None, "the printed difference from the base"]
    mark: Annotated[str, "underlined, or empty"]


class PrintedRowJson(TypedDict):
    """A row; `band` is the heading above the rows that it belongs to."""

    band: str
    title: str
    cells: list[PrintedCellJson]


class PrintedTableJson(TypedDict):
    """A table as its paper prints it; two tables under one caption have the same name."""

    name: Annotated[str, "SOURCE:NUMBER"]
    title: str
    corner: Annotated[str, "the heading of the titles of the rows"]
    columns: list[str]
    rows: list[PrintedRowJson]
    notes: Annotated[list[str], "why no grid has a cell of it, and misprints and unstated choices"]


class TableJson(DocumentJson):
    """`gpas table --json`; of several tables, an object with the fields `schema` and `tables`, a list of these."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout"]
    title: str
    metric: Annotated[MetricJson, "that of the first column"]
    rows: list[TableRowJson]
    externals: Annotated[list[ExternalRowJson], "the networks that --external names"]
    columns: list[ColumnJson]
    gains: list[dict[str, Any]]
    notes: list[dict[str, Any]]


class PaperTablesJson(DocumentJson):
    """`gpas table --json` of a paper's tables."""

    tables: Annotated[list[TableJson], "tables with our numbers, in the paper's layout"]
    published: Annotated[list[PrintedTableJson], "as printed: tables for which no grid has a cell, settings"]


class MissingRunJson(TypedDict):
    """A run without a number."""

    name: str
    key: str
    state: str


class HoleJson(TypedDict):
    """A cell of a table in which runs have no number; diverged runs are results."""

    row: str
    column: str
    runs: list[MissingRunJson]


class RemedyJson(TypedDict):
    """A command that fills cells without a number, and what it would cost."""

    command: str
    jobs: int
    gpu_hours: float
    core_hours: float
    wall_hours: Annotated[float | None, "null on SLURM, where jobs wait"]
    refused: Annotated[dict[str, int], "cells that cannot run here, by reason"]


class MissingTableJson(TypedDict):
    """What one table misses."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout"]
    title: str
    missing: list[HoleJson]
    commands: list[RemedyJson]


class MissingJson(DocumentJson):
    """`gpas table --missing --json`."""

    tables: list[MissingTableJson]


class MeanJson(TypedDict):
    """A mean over the runs that a line stands for."""

    mean: float
    std: Annotated[float | None, "sample standard deviation; null for a single run"]
    n: int


class PointJson(MeanJson):
    """A mean at an update or, in curves by layer, at a layer counted from 1."""

    x: float


class DrawnRunJson(TypedDict):
    """The curve of one cell; points and spikes are pairs of x and y."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    points: list[list[float]]
    spikes: list[list[float]]
    final_norm: float | None


class SeriesJson(TypedDict):
    """One line of a figure."""

    title: str
    labels: dict[str, Any]
    over: Annotated[str, "the averaged axis"]
    colour: Annotated[int, "hue: that of the scheme, or a number from 0"]
    style: Annotated[int, "line style: 0 with a gate, 1 without one"]
    shade: Annotated[float | None, "between 0 and 1 if colours represent numbers"]
    points: list[PointJson]
    final_norm: Annotated[MeanJson | None, "the value at the final norm, which is no layer"]
    matrix: Annotated[list[list[float]] | None, "means of a heat map, a list for each row from the lowest"]
    columns: Annotated[list[float] | None, "x of the heat map's columns"]
    runs: list[DrawnRunJson]


class LineJson(TypedDict):
    """A line that no run has recorded: a bound, published numbers, a fitted law."""

    title: str
    points: Annotated[list[list[float]], "pairs of x and y"]
    band: Annotated[list[list[float]], "x, low and high"]
    colour: int
    style: int
    shade: float | None
    form: Literal["line", "points", "joined"]
    in_legend: bool


class PlotJson(TypedDict):
    """One plot: its axes, and what is drawn in it."""

    title: str
    x: Annotated[str, "title of the x axis"]
    y: Annotated[str, "title of the y axis, with the unit"]
    log: Annotated[bool, "whether y is logarithmic where all values are positive"]
    log_x: bool
    layers: Annotated[int, "the number of layers if x counts layers, else 0"]
    level: Annotated[float | None, "a value of y that is marked, such as a ratio of 1"]
    bars: bool
    heat_map: Annotated[str, "title of the colours of a heat map, empty for lines"]
    note: str
    series: list[SeriesJson]
    lines: list[LineJson]


class PaperFigureJson(TypedDict):
    """A figure of a paper. Without any panel, `problem` is why."""

    name: str
    paper: str
    number: str
    title: str
    heading: str
    grid: Annotated[str, "the grid whose cells it shows"]
    note: Annotated[str, "how the cells differ from the paper's, such as toy size; empty if they do not"]
    panels: list[PlotJson]
    missing: Annotated[list[str], "cells without a result"]
    unrecorded: Annotated[list[str], "cells with a result that have not recorded the curve"]
    command: Annotated[str, "runs the missing cells; empty if none is missing"]
    problem: str
    files: Annotated[list[str], "the pictures written"]


class PaperFiguresJson(DocumentJson):
    """`gpas figure --paper NAME --json`."""

    figures: list[PaperFigureJson]


class PowerLawJson(TypedDict):
    """A fitted law y = factor x^-exponent."""

    factor: float
    exponent: float
    interval: Annotated[list[float], "95 % interval of the exponent"]
    points: int
    centre: Annotated[float, "mean of log x"]
    sum_squares: Annotated[float, "sum of squares of log x around its mean"]
    scatter: Annotated[float, "standard deviation of log y around the law"]


class LawJson(TypedDict):
    """The law of one method."""

    source: Annotated[str, "ours, or the source of the published numbers"]
    method: str
    over: Literal["parameters", "flops"]
    sizes: int
    law: Annotated[PowerLawJson | None, "null for fewer than 3 sizes"]
    words: str


class ScalingJson(DocumentJson):
    """`gpas figure --scaling --json`."""

    files: list[str]
    panels: list[PlotJson]
    laws: list[LawJson]
    missing: Annotated[list[str], "cells without a result"]


class FigureJson(DocumentJson, PlotJson):
    """`gpas figure --json`; a picture is drawn only if --out names a file."""

    what: str
    files: Annotated[list[str], "the pictures written"]
    cells: Annotated[list[str], "cells that have recorded the curve"]
    missing: Annotated[list[str], "cells that have not"]
