"""Writing the numbers of an attempt: its final metrics and the points of its curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table, bindparam, delete

from gpas_cli.store.projection import Changes
from gpas_cli.store.schema import Base

METRIC, CURVE, LAYER_CURVE = (Base.metadata.tables[name] for name in ("metric", "curve", "layer_curve"))
_DELETE_METRICS = delete(METRIC).where(METRIC.c.attempt_id == bindparam("attempt"))  # made once: that costs most


def forget_points(connection: Connection, attempt: int) -> None:
    """Delete all numbers of an attempt."""
    for table in (METRIC, CURVE, LAYER_CURVE):
        connection.execute(delete(table).where(table.c.attempt_id == attempt))


def store_points(connection: Connection, attempt: int, changes: Changes) -> None:
    """Store the metrics and points that a stretch of journal changes, in the order of the primary keys, which is the
    order of the file."""
    if changes.metrics is not None:
        connection.execute(_DELETE_METRICS, {"attempt": attempt})
        _put(connection, METRIC, [(attempt, name, value) for name, value in sorted(changes.metrics.items())])
    for name, curve in sorted(changes.curves.items()):
        _put(connection, CURVE, [(attempt, name, step, value) for step, value in sorted(curve.items())])
    for name, layers in sorted(changes.layers.items()):
        _put(connection, LAYER_CURVE, [(attempt, name, *at, value) for at, value in sorted(layers.items())])


def _put(connection: Connection, table: Table, rows: list[tuple[Any, ...]]) -> None:
    """Insert points, replacing those that are there; each row is the primary key, in order, and the value.

    Straight to the driver, which is three times as fast as building parameters for each point; NaN becomes NULL as in
    `schema.Real`. No two rows have the same key.
    """
    if not rows:
        return
    points = [(*at, None if math.isnan(value) else value) for *at, value in rows]
    statement = _put_statement(table, connection.dialect)
    if connection.dialect.name == "postgresql":  # the columns as arrays: one statement, ten times as fast
        connection.exec_driver_sql(statement, tuple(map(_array, zip(*points, strict=True))))
    else:
        connection.exec_driver_sql(statement, points)


def _array(values: Iterable[int | float | str | None]) -> str:
    """A Postgres array as text; the driver, which looks at each element in turn, takes ten times as long."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: int | float | str | None) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else repr(value)


@cache
def _put_statement(table: Table, dialect: Dialect) -> str:
    columns = [*table.primary_key.columns, table.c.value]
    key = ", ".join(column.name for column in table.primary_key)
    if dialect.name == "postgresql":
        arrays = ", ".join(f"%s::{column.type.compile(dialect)}[]" for column in columns)
        rows = f"SELECT * FROM unnest({arrays})"
    else:
        rows = f"VALUES ({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table.name} ({key}, value) {rows} ON CONFLICT ({key}) DO UPDATE SET value = excluded.value"
