"""Documents about where a number comes from: attempts, code, environment, hours, and the numbers of tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, HoursJson, NumberJson, ScoreJson, State


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
    """The hours of all attempts, by whether they contributed to the result."""

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
    as_if: Annotated[str, "the column that it was looked up in, empty if that is the cell's own"]


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


class ComparedNumberJson(TypedDict):
    """A number with the metric that published tables print."""

    metric: str
    mean: NumberJson | None


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
    compared: Annotated[ComparedNumberJson, "our number to compare with the published ones"]
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
    taken_over: Annotated[
        dict[str, str], "by task, KEY/NNN: the stage and the attempt that measured a score that this stage took over"
    ]


class WhyJson(DocumentJson):
    """`gpas why --json`."""

    numbers: Annotated[list[TableNumberJson], "of the cells of tables that were named"]
    stages: Annotated[list[OriginJson], "of the cells that were named"]
    problem: Annotated[str | None, "why new results could not be read into the database"]
