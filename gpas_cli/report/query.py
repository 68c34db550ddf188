"""Database queries for reports: results, scores and recorded curves. Commands import this module late, because it
imports SQLAlchemy.

The curves of the attempts at a stage are joined: at a step that several have, the latest one counts. Attempts whose run
directories are gone are left out.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Engine, Select, func, literal, select
from sqlalchemy.orm import aliased

from gpas_cli.report.recorded import attempts_in, rows_through
from gpas_cli.store.peek import parts
from gpas_cli.store.schema import AttemptRow, CurveRow, LayerCurveRow

DECISIVE = ("done", "diverged")
LAST = 2**31 - 1  # as `until`, the largest step that the database can hold


def attempts(engine: Engine, key: str) -> list[dict[str, Any]]:
    """Return what `attempts_in` returns, from a database of any kind."""
    with engine.connect() as connection:
        return attempts_in(rows_through(connection), key)


Curve = list[tuple[int, float]]  # (step, value), in order of step
LayerCurve = list[tuple[int, dict[int, float]]]  # (step, {index of the layer: value}), in order of step


def curves(
    engine: Engine, keys: Iterable[str], name: str, *, until: int | None = None, number: int | None = None
) -> dict[str, Curve]:
    """Return the curve `name` by stage key; stages without it are left out.

    until: return only the last point recorded at or before this step. number: read this attempt alone.
    """
    found = _read(engine, keys, _statement(CurveRow, name, until, number), until)
    return {key: [(step, values[0]) for step, values in recorded] for key, recorded in found.items()}


def layer_curves(engine: Engine, keys: Iterable[str], name: str, *, until: int | None = None) -> dict[str, LayerCurve]:
    """Return the curve by layer `name` by stage key; stages without it are left out. `until` is as for `curves`."""
    found = _read(engine, keys, _statement(LayerCurveRow, name, until), until)
    return {key: [(step, dict(sorted(values.items()))) for step, values in curve] for key, curve in found.items()}


def curve_names(engine: Engine, keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of the curves that attempts at the stages `keys` have, and of the curves by layer, sorted."""
    names: set[str] = set()
    by_layer: set[str] = set()
    with engine.connect() as connection:
        for part in parts(keys):
            of_stages = select(AttemptRow.id).where(AttemptRow.stage_key.in_(part))
            names.update(connection.scalars(select(CurveRow.name).where(CurveRow.attempt_id.in_(of_stages)).distinct()))
            layers = select(LayerCurveRow.name).where(LayerCurveRow.attempt_id.in_(of_stages)).distinct()
            by_layer.update(connection.scalars(layers))
    return sorted(names), sorted(by_layer)


def _read(engine: Engine, keys: Iterable[str], statement: Select[Any], until: int | None) -> dict[str, LayerCurve]:
    joined: dict[str, dict[int, tuple[int, dict[int, float]]]] = {}
    with engine.connect() as connection:
        for part in parts(keys):
            for key, number, step, layer, value in connection.execute(statement.where(AttemptRow.stage_key.in_(part))):
                steps = joined.setdefault(key, {})
                if step not in steps or steps[step][0] != number:
                    steps[step] = (number, {})
                steps[step][1][layer] = value
    first = None if until is None else -1  # each attempt has a last point; the stage has one
    found = {key: [(step, values) for step, (_, values) in sorted(steps.items())] for key, steps in joined.items()}
    return {key: recorded[first:] for key, recorded in found.items()}


def _statement(
    table: type[LayerCurveRow] | type[CurveRow], name: str, until: int | None, number: int | None = None
) -> Select[Any]:
    """Return the rows (stage key, number of the attempt, step, layer, value), earlier attempts first."""
    layer = LayerCurveRow.layer if table is LayerCurveRow else literal(0)
    columns: list[Any] = [AttemptRow.stage_key, AttemptRow.number, table.step, layer, table.value]
    statement = (
        select(*columns)
        .join(AttemptRow, AttemptRow.id == table.attempt_id)
        .where(AttemptRow.gone.is_(None), table.name == name)
        .order_by(AttemptRow.number)
    )
    if number is not None:
        statement = statement.where(AttemptRow.number == number)
    if until is None:
        return statement
    other = aliased(table)
    last = (
        select(func.max(other.step))
        .where(other.attempt_id == table.attempt_id, other.name == name, other.step <= min(until, LAST))
        .scalar_subquery()
    )
    return statement.where(table.step == last)
