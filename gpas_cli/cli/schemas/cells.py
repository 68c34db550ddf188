"""Documents about cells: their states, what they are, and where a number comes from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from gpas_cli.cli.schemas.common import (
    CellNameJson,
    DocumentJson,
    HoursJson,
    LabelledCellJson,
    NumberJson,
    ScoreJson,
    SlurmJobJson,
    State,
    Time,
)


class GridSummaryJson(TypedDict):
    """One grid in numbers."""

    grid: str
    cells: int
    states: dict[str, int]
    ends: Annotated[
        float | None, "unix time of the expected end of running and queued cells; null unless one is running"
    ]


class TotalJson(TypedDict):
    """All grids together."""

    cells: Annotated[int, "different cells"]
    rows: Annotated[int, "cells of each grid, added up: a cell that two grids have counts twice"]
    states: dict[str, int]


class CellStatusJson(LabelledCellJson, SlurmJobJson):
    """The state of one cell and its evidence."""

    state: State
    outcome: Annotated[str | None, "the outcome in the journal of the decisive attempt"]
    stage: Annotated[str, "the first stage without a result, or the last one"]
    evidence: str
    age: Annotated[float | None, "seconds since the newest evidence"]
    cause: str | None
    attempt: int | None
    directory: str | None
    step: int | None
    steps: int | None
    spikes: int | None
    metrics: dict[str, NumberJson]


class TextJson(TypedDict):
    """A corpus that a job tokenises, and that cells wait for."""

    name: str
    key: str
    state: State
    fraction: float | None
    evidence: str
    cause: str | None
    job: str | None
    directory: str | None


class StatusJson(DocumentJson):
    """`gpas status --json`. Without names `cells` has those of the default grid and of every grid that was started."""

    grids: list[GridSummaryJson]
    total: TotalJson
    cells: list[CellStatusJson]
    texts: list[TextJson]


class RoomCellJson(CellNameJson):
    """A running or queued cell."""

    stage: str


class RunningCellJson(RoomCellJson, SlurmJobJson, HoursJson):
    """A running cell."""

    attempt: int | None
    devices: list[str]
    phase: str | None
    step: NumberJson | None
    steps: NumberJson | None
    loss: NumberJson | None
    tokens_per_second: NumberJson | None
    mfu: NumberJson | None
    memory: Annotated[NumberJson | None, "bytes"]
    eta: Annotated[NumberJson | None, "seconds"]
    spikes: NumberJson | None


class QueuedCellJson(RoomCellJson, SlurmJobJson):
    """A queued cell."""


class UseJson(HoursJson):
    """The hours that cells have used, and those that running and queued cells still need."""

    states: dict[str, int]
    left: Annotated[int, "cells without a result"]
    to_go: HoursJson | None
    ends: Annotated[float | None, "unix time"]


class GridUseJson(UseJson):
    """The resource usage of a grid."""

    grid: str


class TopJson(DocumentJson):
    """`gpas top --json`."""

    time: Time
    running: list[RunningCellJson]
    queued: list[QueuedCellJson]
    grids: list[GridUseJson]
    total: UseJson


class EventJson(TypedDict):
    """`gpas logs --json`: one event of a journal a line, without a schema number. Further fields depend on `kind`."""

    n: Annotated[int, "counts the events of an attempt from 0"]
    t: Time
    kind: Annotated[
        str, "start, phase, data, verified, step, layers, spike, evaluation, checkpoint, profile, warning or outcome"
    ]


class CancelledCellJson(CellNameJson):
    """What was done about one cell."""

    state: State
    asked: Annotated[bool, "whether its job will be stopped or dropped"]
    what: str


class CancelledJson(DocumentJson):
    """`gpas cancel --json`: the cells that were queued or running."""

    cells: list[CancelledCellJson]


class SpikeJson(TypedDict):
    """A spike of the loss or of the gradient norm."""

    step: int
    of: Literal["loss", "grad_norm"]
    value: NumberJson


class DifferenceJson(TypedDict):
    """A setting in which a cell differs from the one without a gate."""

    setting: str
    base: Any
    own: Any


class TryJson(TypedDict):
    """One attempt."""

    number: int
    outcome: str | None
    cause: str
    state: State
    evidence: str
    signal: Annotated[Any, "the signal that ended the process, null when none did"]
    retry: Annotated[dict[str, Any] | None, "why the attempt before was run again"]
    imported: Annotated[dict[str, Any] | None, "the project and attempt that it was copied from"]
    computed: dict[str, Any]
    facts: Annotated[dict[str, Any], "host, device, code, git commit, fingerprints of the text and environment"]
    log: str
    metrics: dict[str, NumberJson]
    directory: str
    checkpoint: str | None


class SpentJson(TypedDict):
    """The hours of all attempts, by what came of them."""

    trained: Annotated[HoursJson, "in the result, or in a running attempt"]
    lost: Annotated[HoursJson, "computed after the last checkpoint that was resumed from, and computed again"]
    failed: Annotated[HoursJson, "attempts that contributed nothing"]
    superseded: Annotated[HoursJson, "earlier results that a later one has replaced"]


class SeedOriginJson(TypedDict):
    """One run of a number in a table."""

    seed: Any
    cell: Annotated[str, "grid/name"]
    key: str
    state: str
    value: NumberJson | None
    base: Annotated[NumberJson | None, "the number of the same seed in the base row"]
    attempt: int | None
    directory: Annotated[str | None, "in the folder of run directories"]
    host: str | None
    device: str | None
    ended: Annotated[float | None, "unix time"]
    environment: dict[str, Any]


class PublishedNumberJson(TypedDict):
    """A published number of the same table cell."""

    source: str
    short: Annotated[str, "the source's short name"]
    table: str
    what: str
    value: float
    delta: Annotated[float | None, "the difference from the published base"]


class CodeJson(TypedDict):
    """A version of the code that made a number."""

    code: Annotated[str, "the hash of the package's files"]
    commit: str
    dirty: Annotated[bool, "whether the checkout had local changes"]
    snapshot: Annotated[str | None, "the folder with a copy of the code, null if there is none"]
    seeds: list[Any]


class PairedJson(TypedDict):
    """The mean of the paired differences from the base."""

    mean: NumberJson
    n: int
    p: NumberJson | None


class TableNumberJson(TypedDict):
    """A number of a table, and what it was computed from."""

    grid: str
    cell: Annotated[str, "the words that name it: ROW,COLUMN"]
    row: dict[str, Any]
    column: dict[str, Any]
    metric: str
    mean: NumberJson | None
    std: NumberJson | None
    n: int
    status: Annotated[str, "why numbers are missing, empty if none is"]
    delta: PairedJson | None
    base: Annotated[str | None, "the words that name the base"]
    published: list[PublishedNumberJson]
    seeds: list[SeedOriginJson]
    code: list[CodeJson]
    hours: SpentJson
    command: Annotated[list[str], "the words of the command that makes the number in an empty project"]
    other_cells: Annotated[int, "further cells that this command runs"]


class OriginJson(TypedDict):
    """One stage of a cell."""

    key: str
    stage: str
    name: str
    parents: list[str]
    decisive: Annotated[int | None, "the number of the attempt that tables show"]
    base: str | None
    cell: dict[str, Any]
    spikes: list[SpikeJson]
    differences: list[DifferenceJson]
    attempts: list[TryJson]
    hours: SpentJson
    forgotten: Annotated[list[dict[str, Any]], "attempts that `gpas forget` has set aside: when, by which user, why"]
    scores: Annotated[list[ScoreJson], "the newest score of each task and metric; empty for stages without tasks"]


class WhyJson(DocumentJson):
    """`gpas why --json`."""

    numbers: Annotated[list[TableNumberJson], "of the cells of tables that were named"]
    stages: Annotated[list[OriginJson], "of the cells that were named"]
    problem: Annotated[str | None, "why new results could not be read into the database"]


class EquationJson(TypedDict):
    """Layers with the same equation."""

    first: int
    last: int
    equation: str


class StageKeyJson(TypedDict):
    """A stage of a cell's chain."""

    kind: str
    key: str
    parents: list[str]
    resources: Annotated[dict[str, Any], "what its job asks for"]


class ExplainedCellJson(CellNameJson):
    """What a cell is."""

    layers: list[EquationJson]
    stages: list[StageKeyJson]
    cell: dict[str, Any]
    bounds: NotRequired[Annotated[dict[str, Any], "with --bounds: gpas_cli/evaluate/theory.py explains each number"]]


class ExplainedJson(DocumentJson):
    """`gpas explain --json`."""

    cells: list[ExplainedCellJson]


class ShapeJson(TypedDict):
    """Cells of one shape, and the measurement of one of them."""

    cells: int
    cell: str
    host: str
    time: Time
    shape: list[Any]
    seconds_per_step: float
    tokens_per_second: float
    positions_per_second: float
    flops_per_second: float
    peak_memory: Annotated[float, "bytes"]
    micro_batch: Annotated[int, "rows at once"]
    steps: Annotated[int, "updates that were measured"]
    rows: Annotated[int, "rows of each update that were computed"]
    device: str
    gemm: Annotated[str, "how float32 matrix products were computed"]


class MeasuredJson(DocumentJson):
    """`gpas bench --json`."""

    shapes: list[ShapeJson]
