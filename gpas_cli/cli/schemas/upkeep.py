"""Documents about the text, the database and the machine."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from gpas_cli.cli.schemas.common import DocumentJson, Time


class TotalsJson(TypedDict):
    """How much of a split there is."""

    documents: int
    tokens: int
    bytes: int
    final: Annotated[bool, "whether the source has no more"]
    cut: Annotated[float | None, "share of the text that rows of a fixed length cut off, null where it is not known"]


class PreparedCorpusJson(TypedDict):
    """A corpus that has been tokenised."""

    source: str
    folder: str
    fingerprint: str
    tokenizer: str
    splits: dict[str, TotalsJson]


class PreparedJson(DocumentJson):
    """`gpas data prepare --json`."""

    corpora: list[PreparedCorpusJson]


class CacheJson(TypedDict):
    """One token cache."""

    name: Annotated[str | None, "of the text under `corpora`, if it is one of local files that is declared"]
    folder: str
    source: str
    fingerprint: str
    tokenizer: str
    vocab: int
    max_doc_tokens: int | None
    bytes_on_disk: int
    splits: dict[str, TotalsJson]


class CachesJson(DocumentJson):
    """`gpas data status --json`."""

    cache: str
    caches: list[CacheJson]
    undescribed: Annotated[list[str], "spec.json files that are missing or not as they were written"]


class ImportedTaskJson(DocumentJson):
    """`gpas data import-task --json`."""

    task: Annotated[str, "the name of the task in experiments.yaml"]
    path: str
    questions: int


class CheckedCachesJson(DocumentJson):
    """`gpas data check --json`."""

    caches: Annotated[int, "token caches that were read"]
    damaged: Annotated[list[str], "markers of the shards that have changed"]
    undescribed: Annotated[list[str], "spec.json files that are missing or not as they were written"]


class SyncedJson(DocumentJson):
    """`gpas sync --json`."""

    attempts: Annotated[int, "attempts that changed"]
    events: int
    damaged: Annotated[int, "damaged lines"]
    gone: Annotated[int, "run directories that have disappeared since the last time"]
    problems: list[str]


class CheckedDatabaseJson(DocumentJson):
    """`gpas db check --json`."""

    findings: list[str]


class RebuiltJson(DocumentJson):
    """`gpas db rebuild --json`."""

    attempts: int
    problems: list[str]


class BackedUpJson(DocumentJson):
    """`gpas db backup --json` and `gpas db upgrade --json`."""

    backup: Annotated[str | None, "the copy that was made; null when the schema was up to date"]


class FindingJson(TypedDict):
    """The result of one check."""

    what: str
    status: Literal["ok", "note", "problem"]
    detail: str
    remedy: str


class DiagnosisJson(DocumentJson):
    """`gpas doctor --json`."""

    findings: list[FindingJson]


class ForgottenStageJson(TypedDict):
    """A stage whose attempts were forgotten, or restored."""

    key: str
    directories: Annotated[list[str], "the folders of its attempts, under their new names"]


class ForgottenJson(DocumentJson):
    """`gpas forget --json`."""

    stages: list[ForgottenStageJson]


class DeedJson(TypedDict):
    """What one command did."""

    time: Time
    user: str
    host: str
    what: Annotated[str, "run, retry, rerun, cancel, forget, or one that was undone"]
    cells: Annotated[list[str], "grid/name, or the key of a stage"]
    how: Annotated[str, "the reason, or the settings"]


class HistoryJson(DocumentJson):
    """`gpas history --json`."""

    commands: Annotated[list[DeedJson], "oldest first"]


class ParquetFileJson(TypedDict):
    """A file with the rows of one table of the database."""

    path: str
    rows: int


class ExportedTablesJson(DocumentJson):
    """`gpas db export --json`."""

    files: list[ParquetFileJson]


class MergedStageJson(TypedDict):
    """What the merge did with one stage of the other project."""

    key: str
    what: Literal["copied", "kept", "known", "busy", "unreadable"]
    name: Annotated[str, "the name of its cell there"]
    attempts: int
    differs: Annotated[
        list[str | float] | None, "a metric that differs from the kept one: its name, its value here, there"
    ]
    problem: str


class MergedJson(DocumentJson):
    """`gpas db merge --json`."""

    stages: list[MergedStageJson]


class RemovableJson(TypedDict):
    """A checkpoint that a rule selects."""

    path: str
    bytes: int
    rule: Literal["superseded", "finished", "failed"]


class StageUseJson(TypedDict):
    """What a stage occupies."""

    key: str
    state: str
    checkpoint_bytes: int
    other_bytes: int
    removable: list[RemovableJson]


class OccupiedJson(DocumentJson):
    """`gpas gc --json`."""

    deleted: Annotated[bool, "whether the checkpoints were to be deleted"]
    rules: list[str]
    stages: list[StageUseJson]
