"""Database queries for reports. Commands import this module late, because it imports SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, func, select

from gpas_cli.report.result import PARTIAL, SCORING, ExternalNetwork, Result, TaskResult
from gpas_cli.spec.downstream import BY_TEXT, Downstream, metrics_of
from gpas_cli.spec.stage import EXTERNAL, PRETRAIN
from gpas_cli.store.projection import SPIKE_CURVES
from gpas_cli.store.schema import AttemptRow, CurveRow, MetricRow, ScoreRow, StageRow
from gpas_cli.store.session import STATEMENT_PARAMETERS

DECISIVE = ("done", "diverged")
MODULUS = 2**31 - 1  # the largest INTEGER of Postgres; sums of many numbers below it fit 64 bits
SPIKE_METRICS = {"loss": "loss_spikes", "grad_norm": "gradient_spikes"}

# Columns of an attempt that are fields of a result.
_SAME = (
    *("number", "directory", "outcome", "host", "device", "gpu", "precision", "code", "git_commit", "git_dirty"),
    *("fingerprint", "validation_fingerprint", "parameters", "last_step", "ended"),
)
_RESULT = tuple(AttemptRow.__table__.c[name] for name in ("id", "stage_key", "cause", "gone", *_SAME))
_SCORE = tuple(own.name for own in fields(TaskResult))


def results(engine: Engine, keys: Iterable[str]) -> dict[str, Result]:
    """Return the result of the latest done or diverged attempt by stage key; stages without one are left out.

    They are in the order of `keys`. An attempt whose run directory is gone counts only if there is no other, and its
    result is marked as gone. A stage that has not finished has a result if some of its tasks are scored.
    """
    found: dict[str, Result] = {}
    wanted = list(keys)
    with engine.connect() as connection:
        for part in parts(wanted):
            rows = connection.execute(
                select(*_RESULT, StageRow.kind)
                .join(StageRow, StageRow.key == AttemptRow.stage_key)
                .where(AttemptRow.stage_key.in_(part), AttemptRow.outcome.in_(DECISIVE))
                .order_by(AttemptRow.gone.is_(None), AttemptRow.number)
            )
            latest = {row.stage_key: row._asdict() for row in rows}
            metrics = _metrics(connection, [row["id"] for row in latest.values()])
            trained = [key for key, row in latest.items() if row["kind"] == PRETRAIN and row["gone"] is None]
            spikes = _spike_counts(connection, trained)
            found |= {
                key: _result(row, {**metrics.get(row["id"], {}), **spikes.get(key, {})}) for key, row in latest.items()
            }
            found |= _with_scores(connection, part, found)
    return {key: found[key] for key in wanted if key in found}


def ingested(engine: Engine) -> tuple[int | None, ...]:
    """Return numbers that are equal as long as nothing has been ingested, merged or deleted."""
    row = AttemptRow
    counts = (func.count(), func.max(row.id), func.count(row.gone))
    read = (row.journal_offset, row.journal_events, row.journal_tail, row.journal_mtime)
    with engine.connect() as connection:
        found = connection.execute(select(*counts, *(func.sum(one % MODULUS) for one in read)).select_from(row)).one()
    return tuple(None if number is None else int(number) for number in found)


def attempts(engine: Engine, key: str) -> list[dict[str, Any]]:
    """Return all attempts at a stage, oldest first: the columns of the table "attempt", and `metrics`."""
    with engine.connect() as connection:
        rows = _rows(
            connection,
            select(AttemptRow.__table__).where(AttemptRow.stage_key == key).order_by(AttemptRow.number),
        )
        metrics = _metrics(connection, [row["id"] for row in rows])
    return [{**row, "metrics": metrics.get(row["id"], {})} for row in rows]


def stage(engine: Engine, key: str) -> dict[str, Any] | None:
    """Return the stage's kind, parents and cell; None if the database has no attempt at it."""
    with engine.connect() as connection:
        rows = _rows(connection, select(StageRow.__table__).where(StageRow.key == key))
    return rows[0] if rows else None


def external_networks(engine: Engine) -> list[ExternalNetwork]:
    """Return the networks with scores that were not trained here, in the order in which they were first scored.

    Each is there once for each choice of settings. Scores whose run directories are gone are left out.
    """
    with engine.connect() as connection:
        rows = _score_rows(connection, StageRow.kind == EXTERNAL)
    by_key: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(row["stage_key"], {})[row["task"], row["metric"]] = row
    first = sorted(rows, key=lambda row: (row["created"] or 0.0, row["stage_key"]))
    return [_external(key, list(by_key[key].values())) for key in dict.fromkeys(row["stage_key"] for row in first)]


def _external(key: str, rows: Sequence[Mapping[str, Any]]) -> ExternalNetwork:
    last = max(rows, key=lambda row: row["number"])
    recorded = last["cell"].get("downstream") or {}
    usual = Downstream()
    return ExternalNetwork(
        name=last["name"],
        key=key,
        origin=last["cell"].get("external") or {},
        settings={name: recorded.get(name, getattr(usual, name)) for name in SCORING},
        precision=last["precision"],
        scores=tuple(TaskResult(**{name: row[name] for name in _SCORE}) for row in rows),
    )


def _with_scores(connection: Connection, keys: Sequence[str], found: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results, by key, of the stages in `keys` that have scores, with these scores."""
    rows = _score_rows(connection, AttemptRow.stage_key.in_(keys))
    by_key: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        known = found.get(row["stage_key"])
        # Until the stage has been run again, its earlier result counts.
        if known is None or known.gone or row["number"] <= known.number:
            by_key.setdefault(row["stage_key"], {})[row["task"], row["metric"]] = row
    return {key: _scored(found.get(key), scores) for key, scores in by_key.items()}


def _scored(known: Result | None, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Result:
    scores = tuple(TaskResult(**{name: row[name] for name in _SCORE}) for row in rows.values())
    if known is not None and not known.gone:
        return replace(known, scores=scores)
    last = max(rows.values(), key=lambda row: row["number"])
    tasks = (last["cell"].get("downstream") or {}).get("tasks", ())
    metrics = metrics_of({(score.task, score.metric): score.value for score in scores}, tasks)
    metrics |= {f"{score.metric}/{score.task}": score.value for score in scores if score.metric in BY_TEXT}
    return replace(_result(last, metrics), outcome=PARTIAL, scores=scores)


def _spike_counts(connection: Connection, keys: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the number of spikes of each stage by metric; those of a resumed attempt count once."""
    names = {SPIKE_CURVES[of]: metric for of, metric in SPIKE_METRICS.items()}
    found = {key: dict.fromkeys(names.values(), 0.0) for key in keys}
    rows = connection.execute(
        select(AttemptRow.stage_key, CurveRow.name, func.count(CurveRow.step.distinct()))
        .join(CurveRow, CurveRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.stage_key.in_(keys), AttemptRow.gone.is_(None), CurveRow.name.in_(list(names)))
        .group_by(AttemptRow.stage_key, CurveRow.name)
    )
    for key, name, number in rows:
        found[key][names[name]] = float(number)
    return found


def _score_rows(connection: Connection, which: ColumnElement[bool]) -> list[dict[str, Any]]:
    """Return the scores of attempts that are not gone, earlier attempts first; sorted here, because servers collate."""
    rows = _rows(
        connection,
        select(ScoreRow.__table__, AttemptRow.__table__, StageRow.kind, StageRow.cell)
        .join(AttemptRow, AttemptRow.id == ScoreRow.attempt_id)
        .join(StageRow, StageRow.key == AttemptRow.stage_key)
        .where(which, AttemptRow.gone.is_(None)),
    )
    return sorted(rows, key=lambda row: (row["number"], row["task"], row["metric"]))


def _rows(connection: Connection, statement: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def _metrics(connection: Connection, ids: Iterable[int]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for part in parts(ids):
        rows = connection.execute(
            select(MetricRow.attempt_id, MetricRow.name, MetricRow.value).where(MetricRow.attempt_id.in_(part))
        )
        for attempt_id, name, value in sorted(rows, key=tuple):  # a server has an order of its own
            found.setdefault(attempt_id, {})[name] = value
    return found


def _result(row: Mapping[str, Any], metrics: Mapping[str, float]) -> Result:
    same = {name: row[name] for name in _SAME}
    own = {"key": row["stage_key"], "stage": row["kind"], "cause": row["cause"] or "", "gone": row["gone"] is not None}
    return Result(metrics=metrics, **own, **same)


def parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the distinct values in lists that fit into one statement."""
    distinct = list(dict.fromkeys(values))
    return (distinct[i : i + STATEMENT_PARAMETERS] for i in range(0, len(distinct), STATEMENT_PARAMETERS))
