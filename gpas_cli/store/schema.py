"""The tables. Their content comes from run directories and can be rebuilt from them.

    gpas_project   the project whose results the database holds (`store.owner`)
    stage          what is computed: a content key and the cell it stands for
    attempt        one attempt at a stage: where and with what it ran, how it ended, how far its journal was read
    metric         the final numbers of an attempt's outcome
    score          the scores of an attempt at downstream tasks, with what they were computed by
    curve          numbers by step: the training loss, the evaluations
    layer_curve    numbers by step and layer

SQLite and Postgres both store infinities. NaN is stored as NULL in both (SQLite cannot hold it, and Postgres sorts it
above every number), and `Real` converts it back: in the columns called `value`, which have a row only where a number
was reported, NULL always means NaN.
"""

import math
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Double, ForeignKey, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator


class Real(TypeDecorator[float]):
    """A 64-bit float that may be NaN, which is stored as NULL."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return None if value is None or math.isnan(value) else value

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        return math.nan if value is None else value


class Base(DeclarativeBase):
    """The base of all tables. Constraints are named, because Alembic can only change named ones."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {float: Double, str: Text, dict[str, Any]: JSON(none_as_null=True), list[str]: JSON}  # noqa: RUF012


class ProjectRow(Base):
    """One row: the id of the run directories, and where they were when they were last ingested."""

    __tablename__ = "gpas_project"  # a shared server may have another program's table "project"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    runs: Mapped[str]


class StageRow(Base):
    """What is computed: a stage of a cell, with all settings (`cell`) and the stages it depends on (`parents`)."""

    __tablename__ = "stage"

    key: Mapped[str] = mapped_column(String(16), primary_key=True)
    kind: Mapped[str]
    parents: Mapped[list[str]]
    cell: Mapped[dict[str, Any]]


class AttemptRow(Base):
    """An attempt at a stage: where and with what it ran, how it ended, and how much of its journal has been read.

    `created`, `started` and `ended` are unix times. NULL in a column means that no event has reported it yet.

    `journal_mtime` (nanoseconds) and `journal_tail` (a checksum of the last bytes before `journal_offset`) show a
    journal that changed after it was read; NULL: read by revision 0001. `gone` is the unix time at which the run
    directory was first missed, NULL while it is there.
    """

    __tablename__ = "attempt"
    __table_args__ = (UniqueConstraint("stage_key", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stage_key: Mapped[str] = mapped_column(String(16), ForeignKey("stage.key"))
    number: Mapped[int]
    directory: Mapped[str]

    grid: Mapped[str]
    name: Mapped[str]
    axes: Mapped[dict[str, Any]]
    executor: Mapped[str]

    host: Mapped[str | None]
    device: Mapped[str | None]
    gpu: Mapped[str | None]
    threads: Mapped[int | None]
    precision: Mapped[str | None]
    code: Mapped[str | None]
    git_commit: Mapped[str | None]
    git_dirty: Mapped[bool | None]
    environment: Mapped[dict[str, Any] | None]

    created: Mapped[float | None]
    started: Mapped[float | None]
    ended: Mapped[float | None]
    outcome: Mapped[str | None]
    cause: Mapped[str | None]
    resumed_from: Mapped[int | None]
    last_step: Mapped[int | None]
    parameters: Mapped[int | None] = mapped_column(BigInteger)
    fingerprint: Mapped[str | None]
    validation_fingerprint: Mapped[str | None]

    journal_offset: Mapped[int] = mapped_column(BigInteger, default=0)
    journal_events: Mapped[int] = mapped_column(default=0)
    journal_damaged: Mapped[int] = mapped_column(default=0)
    journal_mtime: Mapped[int | None] = mapped_column(BigInteger)
    journal_tail: Mapped[int | None] = mapped_column(BigInteger)
    gone: Mapped[float | None]


class MetricRow(Base):
    """The final numbers of an attempt, such as `perplexity`, from the outcome in its journal."""

    __tablename__ = "metric"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Real, nullable=True)


class ScoreRow(Base):
    """The score of an attempt at a downstream task. Accuracies are fractions.

    `examples`: how many questions were scored, with `shots` solved examples before each. `harness`: the program that
    scored them, and its version. `stderr`: the standard error, NULL if unknown.
    """

    __tablename__ = "score"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Real, nullable=True)
    stderr: Mapped[float | None]
    examples: Mapped[int]
    shots: Mapped[int]
    task_version: Mapped[str]
    harness: Mapped[str]


class CurveRow(Base):
    """Numbers by update, such as `loss` or `eval_perplexity`.

    The table is clustered on its key: a curve is one stretch of the file, and takes about 22 bytes a point.
    """

    __tablename__ = "curve"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    value: Mapped[float] = mapped_column(Real, nullable=True)


class LayerCurveRow(Base):
    """Numbers by update and layer, such as `activation_variance`. `layer` is the index in the event's list, from 0: a
    value after the last layer's is the final norm's."""

    __tablename__ = "layer_curve"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    layer: Mapped[int] = mapped_column(Integer, primary_key=True)
    value: Mapped[float] = mapped_column(Real, nullable=True)
