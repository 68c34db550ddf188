"""Which recorded stages build on others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Engine, select

from gpas_cli.store.schema import StageRow


def dependents(engine: Engine, keys: Iterable[str]) -> dict[str, list[str]]:
    """Return for each key the keys of all stages in the database that build on it, directly or through others."""
    with engine.connect() as connection:
        parents = {key: set(above) for key, above in connection.execute(select(StageRow.key, StageRow.parents))}
    return {key: _building_on(key, parents) for key in keys}


def _building_on(stage: str, parents: Mapping[str, set[str]]) -> list[str]:
    reached = {stage}
    found: list[str] = []
    while new := [key for key, above in parents.items() if key not in reached and above & reached]:
        found += new
        reached.update(new)
    return found
