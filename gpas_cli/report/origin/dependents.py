"""Which recorded stages build on others."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Engine, select

from gpas_cli.store.schema import StageRow


def dependents(engine: Engine, keys: Iterable[str]) -> list[str]:
    """Return the keys of all stages in the database that build on one of `keys`, directly or through others."""
    with engine.connect() as connection:
        parents = {key: set(above) for key, above in connection.execute(select(StageRow.key, StageRow.parents))}
    reached = set(keys)
    found: list[str] = []
    while new := [key for key, above in parents.items() if key not in reached and above & reached]:
        found += new
        reached.update(new)
    return found
