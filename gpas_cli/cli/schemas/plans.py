"""Documents about runs: the plan of one, and its result."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from gpas_cli.cli.schemas.common import CellNameJson, DocumentJson, LabelledCellJson, NumberJson, State


class PlannedCellJson(LabelledCellJson):
    """One cell of a plan."""

    action: Annotated[
        str, "its state, `new` for one without an attempt, `invalid` for one that cannot be run to its end here"
    ]
    detail: str
    will_run: Annotated[bool, "whether `gpas run` starts a job for it"]


class EstimateJson(TypedDict):
    """What the jobs to start will take."""

    gpu_hours: float
    core_hours: float
    longest_hours: Annotated[float, "the longest chain of jobs"]
    wall_hours: Annotated[float | None, "until all have ended; null behind a scheduler"]
    slots: Annotated[int, "jobs at once on this machine"]
    tokens: float
    basis: Annotated[list[str], "where the speeds come from"]


class SizeCostJson(TypedDict):
    """The cells of one size, batch, length and number of updates."""

    size: str
    cells: int
    jobs: int
    parameters: int
    precision: str
    batch: Annotated[int, "rows per update"]
    length: Annotated[int, "tokens per row"]
    updates: int
    tokens: Annotated[int, "tokens that a cell trains on"]
    devices: Annotated[int, "GPUs or cores of a job"]
    hours: Annotated[float, "of the longest job"]
    gpu_hours: float
    core_hours: float


class StageCostJson(TypedDict):
    """The jobs to start of one kind of stage that ask for the same; `tokenise` is a kind too, without a cost."""

    stage: str
    resources: Annotated[dict[str, Any], "what each job asks for"]
    jobs: int
    hours: Annotated[float, "of the longest job"]
    gpu_hours: float
    core_hours: float


class ShrunkSettingJson(TypedDict):
    """A setting of the cells of a smoke test."""

    setting: str
    before: Annotated[list[Any], "its values in the declared cells"]
    after: Annotated[list[Any], "its values in their tiny forms"]


class ShrunkJson(TypedDict):
    """The settings that `--shrink` changed, and where the results are."""

    folder: Annotated[str, "where the text and the results are"]
    left_out: Annotated[int, "cells that differ from others only in the seed"]
    settings: list[ShrunkSettingJson]


class JobMemoryJson(TypedDict):
    """The predicted memory of each GPU of the trainings of one size and recipe, in bytes, at the peak of an update."""

    size: str
    jobs: int
    gpu: Annotated[str, "the kind of GPU"]
    devices: Annotated[int, "GPUs of a job"]
    strategy: Literal["none", "ddp", "fsdp"]
    recompute: Annotated[bool, "whether activations are recomputed in the backward pass"]
    micro_batch: Annotated[int, "rows at once"]
    device_bytes: Annotated[int, "what the GPU has"]
    weights: int
    gradients: int
    state: Annotated[int, "of the optimizer"]
    gathered: Annotated[int, "tables that fsdp gathers for a whole pass"]
    activations: int
    working: Annotated[int, "what exists for some time: logits, gradients within a layer"]
    total: int
    fits: bool


class SizeElsewhereJson(SizeCostJson):
    """The cells of one size on GPUs that this machine does not have."""

    assumed_mfu: Annotated[float, "the share of the peak FLOP/s that training is assumed to reach"]


class ElsewhereJson(TypedDict):
    """What the jobs that ask for more GPUs than this machine has would take on others."""

    gpus: Annotated[list[str], "kinds of GPU with the same peak, and so the same estimate"]
    number: Annotated[int, "GPUs that the jobs share"]
    gpu_hours: float
    longest_hours: Annotated[float, "the longest chain of jobs"]
    wall_hours: Annotated[float, "until all have ended"]
    basis: str
    sizes: list[SizeElsewhereJson]


class PlanJson(DocumentJson):
    """`gpas plan --json`, and `gpas run grid --dry-run --json`."""

    cells: list[PlannedCellJson]
    jobs: Annotated[int, "jobs to start"]
    texts: Annotated[list[str], "corpora that a job of their own tokenises first"]
    stages: Annotated[dict[str, int], "how many stages are in which state"]
    estimate: EstimateJson
    warnings: NotRequired[list[str]]
    sizes: list[SizeCostJson]
    stage_costs: list[StageCostJson]
    cost: Annotated[float | None, "GPU-hours times --price"]
    memory: Annotated[list[JobMemoryJson], "empty if the kind of GPU is unknown"]
    elsewhere: Annotated[list[ElsewhereJson], "if this machine has too few GPUs: the cost on common ones"]
    shrunk: NotRequired[Annotated[ShrunkJson, "with --shrink"]]


class RunCellJson(CellNameJson):
    """The result of a run for one cell."""

    state: State
    skipped: Annotated[bool, "whether the run ended without starting the cell"]
    reason: Annotated[str, "why there is no result, empty for a result of this run"]
    attempt: int | None
    directory: str | None
    metrics: dict[str, NumberJson]


class SubmittedArrayJson(TypedDict):
    """One SLURM job array."""

    name: str
    job: Annotated[str, "SLURM's id, empty when it is not known"]
    elements: int


class SubmittedJson(TypedDict):
    """What was submitted to SLURM."""

    arrays: list[SubmittedArrayJson]
    jobs: int
    followed: Annotated[int, "stages that were already queued or running"]
    left: Annotated[int, "stages that SLURM has no room for yet"]
    failed_before: Annotated[int, "stages that wait for `gpas retry`"]
    blocked: Annotated[int, "stages whose parent failed"]


class RunJson(DocumentJson):
    """`gpas run grid --json`, train, retry and rerun; also what the command of --notify reads.

    Without --wait, jobs that SLURM runs have not ended: `cells` is then empty, `submitted` says what was submitted.
    """

    exit_code: Literal[0, 3, 4]
    counts: Annotated[dict[str, int], "the number of cells in each state"]
    cells: list[RunCellJson]
    submitted: SubmittedJson | None
    shrunk: NotRequired[Annotated[ShrunkJson, "with --shrink"]]
