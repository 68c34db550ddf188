"""Documents about cells: their states, and what they are."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from gpas_cli.cli.schemas.common import (
    CellNameJson,
    DocumentJson,
    HoursJson,
    LabelledCellJson,
    NumberJson,
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
        float | None, "unix time of the expected end; null unless cells run and all others without a result are queued"
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
    """`gpas status --json`. Without names `cells` has those of started grids, else of the default grid."""

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


class ProfileUseJson(TypedDict):
    """What SLURM jobs that asked for the same used. Bytes and seconds; 0 if unknown."""

    memory: int
    cpus: int
    limit: int
    jobs: int
    used_memory: Annotated[int, "the largest of a job"]
    used_cores: Annotated[float, "on average"]
    longest: float


class TopJson(DocumentJson):
    """`gpas top --json`; with --usage only `profiles`."""

    time: NotRequired[Time]
    running: NotRequired[list[RunningCellJson]]
    queued: NotRequired[list[QueuedCellJson]]
    grids: NotRequired[list[GridUseJson]]
    total: NotRequired[UseJson]
    profiles: NotRequired[list[ProfileUseJson]]


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
    site: Annotated[dict[str, str], "those of them that the site's profile sets, with their places in its file"]


class ShortcutJson(TypedDict):
    """The stream that enters the first layer, at initialisation, and the two conditions of Spike No More."""

    std: Annotated[float, "standard deviation of the stream, after the stages of the embedding and with positions"]
    large: bool
    small_sublayers: Annotated[bool, "whether output matrices start at 1/sqrt(2L) of the others"]
    remark: Annotated[str, "how it differs from what the names of the settings suggest, empty if it does not"]


class ExplainedCellJson(CellNameJson):
    """What a cell is."""

    layers: list[EquationJson]
    shortcut: ShortcutJson
    depth: Annotated[list[str], "which layers train in each update, in words; empty if all do"]
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
    tokens_per_second: Annotated[float, "of the process that was measured, without padding"]
    positions_per_second: Annotated[float, "of all processes, with padding, without communication"]
    flops_per_second: Annotated[float, "of the process that was measured"]
    peak_memory: Annotated[float, "bytes"]
    micro_batch: Annotated[int, "rows at once"]
    steps: Annotated[int, "updates that were measured"]
    rows: Annotated[int, "rows of each update that were computed"]
    processes: Annotated[int, "of the job; one of them was measured"]
    device: str
    gemm: Annotated[str, "how float32 matrix products were computed"]


class MeasuredJson(DocumentJson):
    """`gpas bench --json`."""

    shapes: list[ShapeJson]
