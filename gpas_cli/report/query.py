"""Database queries for reports. Commands import this module late, because it imports SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select

from gpas_cli.report.result import SCORING, ExternalNetwork, Result
from gpas_cli.report.stored_results import metrics_in, results_in, score_rows, task_result
from gpas_cli.spec.downstream import Downstream
from gpas_cli.spec.stage import EXTERNAL
from gpas_cli.store.peek import STATEMENT_PARAMETERS, Rows
from gpas_cli.store.schema import AttemptRow, StageRow

DECISIVE = ("done", "diverged")
MODULUS = 2**31 - 1  # the largest INTEGER of Postgres; sums of many numbers below it fit 64 bits


def results(engine: Engine, keys: Iterable[str]) -> dict[str, Result]:
    """Return what `results_in` returns."""
    with engine.connect() as connection:
        return results_in(_plain(connection), keys)


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
        metrics = metrics_in(_plain(connection), [row["id"] for row in rows])
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
        rows = score_rows(_plain(connection), "stage.kind IN ({})", [EXTERNAL])
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
        scores=tuple(map(task_result, rows)),
    )


def _plain(connection: Connection) -> Rows:
    place = "%s" if connection.dialect.name == "postgresql" else "?"

    def rows(statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        found = connection.exec_driver_sql(statement.replace("?", place), tuple(parameters))
        return [dict(row) for row in found.mappings()]

    return rows


def _rows(connection: Connection, statement: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the distinct values in lists that fit into one statement."""
    distinct = list(dict.fromkeys(values))
    return (distinct[i : i + STATEMENT_PARAMETERS] for i in range(0, len(distinct), STATEMENT_PARAMETERS))
