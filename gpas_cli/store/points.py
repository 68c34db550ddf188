"""Write the numbers of an attempt: its final metrics, its scores at tasks and the points of its curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection, Dialect, Table, bindparam, delete, insert

from gpas_cli.store.projection import Changes
from gpas_cli.store.schema import Base

METRIC, SCORE, CURVE, LAYER_CURVE = (Base.metadata.tables[name] for name in ("metric", "score", "curve", "layer_curve"))
# Made once: building a statement costs more than running it.
_DELETE_METRICS = delete(METRIC).where(METRIC.c.attempt_id == bindparam("attempt"))
_INSERT_METRICS = insert(METRIC)
_DELETE_SCORE = delete(SCORE).where(
    SCORE.c.attempt_id == bindparam("attempt"), SCORE.c.task == bindparam("of"), SCORE.c.metric == bindparam("by")
)
_INSERT_SCORES = insert(SCORE)


def forget_points(connection: Connection, attempt: int) -> None:
    """Delete all numbers of an attempt."""
    for table in (METRIC, SCORE, CURVE, LAYER_CURVE):
        connection.execute(delete(table).where(table.c.attempt_id == attempt))


def store_points(connection: Connection, attempt: int, changes: Changes) -> None:
    """Store the metrics and points that a stretch of journal changes.

    They are inserted in the order of the primary keys, which is the order of the file.
    """
    if changes.metrics is not None:
        connection.execute(_DELETE_METRICS, {"attempt": attempt})
        metrics = sorted(changes.metrics.items())
        rows = [{"attempt_id": attempt, "name": name, "value": value} for name, value in metrics]
        if rows:
            connection.execute(_INSERT_METRICS, rows)
    _store_scores(connection, attempt, changes)
    for name, curve in sorted(changes.curves.items()):
        steps = sorted(curve)
        _put(connection, CURVE, attempt, name, [steps, [curve[step] for step in steps]])
    for name, layers in sorted(changes.layers.items()):
        places = sorted(layers)
        steps, depths = [step for step, _ in places], [layer for _, layer in places]
        _put(connection, LAYER_CURVE, attempt, name, [steps, depths, [layers[place] for place in places]])


def _store_scores(connection: Connection, attempt: int, changes: Changes) -> None:
    if changes.scores:
        places = [{"attempt": attempt, "of": task, "by": metric} for task, metric in changes.scores]
        connection.execute(_DELETE_SCORE, places)
        connection.execute(_INSERT_SCORES, [{"attempt_id": attempt, **row} for row in changes.scores.values()])


def _put(connection: Connection, table: Table, attempt: int, name: str, columns: Sequence[Sequence[float]]) -> None:
    """Insert the points of one curve, replacing those that are there. `columns` are its steps (and layers) and values.

    The driver gets them without SQLAlchemy's parameters for each point, which takes a third of the time; Postgres gets
    each column as one array in the binary format, a tenth of the time of one row after the other.
    NaN becomes NULL as in `schema.Real`: SQLite does that itself.
    """
    if not columns[0]:
        return
    statement = _put_statement(table, connection.dialect)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(statement, (attempt, name, *columns))
    else:
        connection.exec_driver_sql(statement, [(attempt, name, *point) for point in zip(*columns, strict=True)])


@cache
def _put_statement(table: Table, dialect: Dialect) -> str:
    key = [column.name for column in table.primary_key]
    names = ", ".join([*key, "value"])
    if dialect.name == "postgresql":
        # The attempt and the name are the same in all rows; what follows them are columns.
        varying = [*table.primary_key.columns, table.c.value][2:]
        arrays = ", ".join(f"%b::{column.type.compile(dialect)}[]" for column in varying)
        places = ", ".join(key[2:])
        rows = f"SELECT %s, %s, {places}, nullif(value, 'NaN') FROM unnest({arrays}) AS point({places}, value)"
    else:
        rows = f"VALUES ({', '.join('?' * (len(key) + 1))})"
    replace = f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET value = excluded.value"
    return f"INSERT INTO {table.name} ({names}) {rows} {replace}"
