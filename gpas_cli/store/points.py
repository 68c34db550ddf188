"""Write the numbers of an attempt: its final metrics, its scores at tasks and the points of its curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain

from sqlalchemy import Connection, Dialect, Table, bindparam, delete, insert

from gpas_cli.store.projection import Changes
from gpas_cli.store.schema import Base

METRIC, SCORE, CURVE, LAYER_CURVE = (Base.metadata.tables[name] for name in ("metric", "score", "curve", "layer_curve"))
STATEMENT_ROWS = 200  # of a curve, for SQLite, whose older versions take at most 999 parameters
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

    The driver gets them without SQLAlchemy's parameters for each point, which takes a third of the time. SQLite gets
    STATEMENT_ROWS points in a statement, half the time of a statement for each; Postgres gets each column as one array
    in the binary format, a tenth of the time of one row after the other.
    NaN becomes NULL as in `schema.Real`: SQLite does that itself.
    """
    if not columns[0]:
        return
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_put_arrays(table, connection.dialect), (attempt, name, *columns))
        return
    points = list(zip(*columns, strict=True))
    whole = len(points) - len(points) % STATEMENT_ROWS
    for begin in range(0, whole, STATEMENT_ROWS):
        part = chain.from_iterable(points[begin : begin + STATEMENT_ROWS])
        connection.exec_driver_sql(_put_rows(table), (attempt, name, *part))
    if whole < len(points):
        connection.exec_driver_sql(_put_row(table), [(attempt, name, *point) for point in points[whole:]])


@cache
def _put_row(table: Table) -> str:
    """Return the statement that inserts a point of a curve into SQLite."""
    return _insert(table, f"VALUES ({', '.join('?' * (len(_places(table)) + 3))})")


@cache
def _put_rows(table: Table) -> str:
    """Return the statement that inserts STATEMENT_ROWS points of a curve into SQLite."""
    places = _places(table)
    row = f"({', '.join('?' * (len(places) + 1))})"
    values = ", ".join(f"column{number + 1}" for number in range(len(places) + 1))
    points = ", ".join([row] * STATEMENT_ROWS)
    # Without WHERE, SQLite would take ON for a part of a join.
    return _insert(table, f"SELECT ?1, ?2, {values} FROM (VALUES {points}) WHERE true")


@cache
def _put_arrays(table: Table, dialect: Dialect) -> str:
    """Return the statement that inserts points of a curve into Postgres, given as arrays."""
    places = _places(table)
    columns = [*(table.c[name] for name in places), table.c.value]
    arrays = ", ".join(f"%b::{column.type.compile(dialect)}[]" for column in columns)
    listed = ", ".join(places)
    points = f"unnest({arrays}) AS point({listed}, value)"
    return _insert(table, f"SELECT %s, %s, {listed}, nullif(value, 'NaN') FROM {points}")


def _places(table: Table) -> list[str]:
    """Return the columns that place a point on its curve: those of the key after the attempt and the name."""
    return [column.name for column in table.primary_key][2:]


def _insert(table: Table, rows: str) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    replace = f"ON CONFLICT ({key}) DO UPDATE SET value = excluded.value"
    return f"INSERT INTO {table.name} ({key}, value) {rows} {replace}"
