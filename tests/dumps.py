"""The content of a results database, for comparing two of them."""

import math
from typing import Any

from sqlalchemy import Engine, select

from gpas_cli.store.schema import Base

METRIC, SCORE, CURVE, LAYER_CURVE, STAGE, ATTEMPT = (
    Base.metadata.tables[name] for name in ("metric", "score", "curve", "layer_curve", "stage", "attempt")
)


def dump(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows by table, sorted, with (stage key, attempt number) in place of the database's own attempt ids.

    Two databases made from the same run directories, in whatever order, have equal dumps. NaN, which is not equal to
    itself, becomes the string "nan".
    """
    with engine.connect() as connection:
        attempts = [dict(row) for row in connection.execute(select(ATTEMPT)).mappings()]
        ids = {row.pop("id"): (row["stage_key"], row["number"]) for row in attempts}
        dumped = {
            "stage": [tuple(row) for row in connection.execute(select(STAGE))],
            "attempt": [tuple(row.values()) for row in attempts],
        }
        for table in (METRIC, CURVE, LAYER_CURVE):
            rows = connection.execute(select(*table.primary_key, table.c.value))
            dumped[table.name] = [(*ids[i], *at, "nan" if math.isnan(value) else value) for i, *at, value in rows]
        scores = connection.execute(select(SCORE))
        dumped["score"] = [(*ids[i], *others) for i, *others in scores]
    return {name: sorted(rows, key=lambda row: repr(row)) for name, rows in dumped.items()}
