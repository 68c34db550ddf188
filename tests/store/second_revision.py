"""The migration to revision 0002 with data in it, on whatever database."""

from typing import Any

import pytest
from life import Life
from sqlalchemy import Engine, inspect, text

from gpas_cli.errors import StoreError
from gpas_cli.store import maintenance, session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.schema import Base


def of_revision_1(url: str, life: Life) -> dict[str, list[dict[str, Any]]]:
    """Make a database as revision 0001 left it after reading in an attempt; returns its rows."""
    from alembic import command

    engine = session.open_engine(url)
    with session.writing(engine) as connection:
        command.upgrade(session.alembic_config(connection), "head")
    sync(engine, life.runs)
    with session.writing(engine) as connection:
        command.downgrade(session.alembic_config(connection), "0001")
    rows = everything(engine)
    engine.dispose()
    return rows


def everything(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables by column, as they are stored."""
    with engine.connect() as connection:
        names = sorted({*inspect(engine).get_table_names()} & {*Base.metadata.tables})
        selected = {name: connection.execute(text(f"SELECT * FROM {name}")).mappings() for name in names}
        return {name: sorted((dict(row) for row in rows), key=repr) for name, rows in selected.items()}


def check_second_revision(url: str, life: Life) -> None:
    """Upgrade and downgrade a filled database: no row of revision 0001 is lost, and none is read twice."""
    from alembic import command

    life.whole()
    life.whole("fedcba9876543210")
    before = of_revision_1(url, life)
    assert len(before["attempt"]) == 2
    assert not {"journal_tail", "gone"} & before["attempt"][0].keys()
    assert "gpas_project" not in before
    with pytest.raises(StoreError, match="version 0001, this program needs"):
        session.connect(url)
    maintenance.upgrade(url)
    engine = session.connect(url)
    upgraded = everything(engine)
    added: dict[str, list[dict[str, Any]]] = {"gpas_project": [], "score": []}
    empty = {"journal_mtime": None, "journal_tail": None, "gone": None}
    assert upgraded == {**before, "attempt": [{**row, **empty} for row in before["attempt"]], **added}
    assert sync(engine, life.runs) == Ingested()
    sealed = everything(engine)
    assert all(row["journal_tail"] and row["journal_mtime"] for row in sealed["attempt"])
    assert sealed["curve"] == before["curve"]
    with session.writing(engine) as connection:
        command.downgrade(session.alembic_config(connection), "0001")
    assert everything(engine) == before
    engine.dispose()
    assert "this program needs 0003" in str(maintenance.check(url, life.runs)[0])
