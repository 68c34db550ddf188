"""Documents about exported networks and archives, and about networks that were not trained here."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, NumberJson, ScoreJson


class FoldErrorJson(TypedDict):
    """How the exported network compares with the cell's; null where there was nothing to compare."""

    random_error: float | None
    held_out_error: float | None
    held_out_tokens: int
    perplexity: float | None
    exported_perplexity: float | None


class ArchiveJson(TypedDict):
    """An archive of tables."""

    path: str
    grids: list[str]
    cells: int
    attempts: int
    files: int
    size: Annotated[int, "bytes"]
    digest: Annotated[str, "sha256 of the file"]
    without_code: Annotated[list[str], "versions of the code whose copy is gone"]
    names_left: Annotated[list[str], "with --anonymous: FILE: NAME for each name that could not be removed"]


class ExportedJson(DocumentJson):
    """`gpas export --json`: the fields of the exported network or, with --archive, only `archive`."""

    archive: NotRequired[ArchiveJson]
    cell: NotRequired[str]
    folder: NotRequired[str]
    form: NotRequired[Literal["llama", "bundled"]]
    reason: NotRequired[str]
    checkpoint: NotRequired[str]
    step: NotRequired[int]
    steps: NotRequired[int]
    parameters: NotRequired[int]
    dtype: NotRequired[str]
    measured: NotRequired[FoldErrorJson]
    notes: NotRequired[list[str]]
    checked: NotRequired[Annotated[str, "whether transformers loads the folder, or why that was not tried"]]


class EvaluatedJson(DocumentJson):
    """`gpas evaluate --json`."""

    name: str
    key: Annotated[str, "content key: 16 hex digits"]
    directory: Annotated[str, "the run directory of the newest attempt"]
    origin: Annotated[dict[str, str], "source, revision, digests of the weights and of the other files, architecture"]
    new: Annotated[bool, "false if every score was recorded earlier"]
    missing: Annotated[str, "why tasks have no score, empty if all have one"]
    scores: list[ScoreJson]
    metrics: Annotated[dict[str, NumberJson], "accuracies in percent, averages and perplexities, as tables name them"]
