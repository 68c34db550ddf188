"""Every migration with data in every table: down and up again, and one after the other."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from attempts import write_events
from dumps import dump
from life import Life
from sqlalchemy import JSON, Engine, inspect, text

from gpas_cli.errors import StoreError
from gpas_cli.events import event_of
from gpas_cli.store import maintenance, session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.peek import HEAD
from gpas_cli.store.rundir import all_attempts
from gpas_cli.store.schema import Base

# Run directories that an early program wrote, and beside them the database that it filled from them.
OLD = Path(__file__).parent / "data/version_1"
REVISIONS = [f"{n:04d}" for n in range(1, int(HEAD) + 1)]
SCORE = {
    "kind": "score", "task": "arc_easy", "metric": "acc", "value": 0.5, "stderr": 0.01, "examples": 100, "shots": 0,
    "task_version": "1", "harness": "lm_eval 0.4",
}  # fmt: skip

Rows = dict[str, list[dict[str, Any]]]


def go(engine: Engine, revision: str, *, down: bool) -> None:
    from alembic import command

    with session.writing(engine) as connection:
        (command.downgrade if down else command.upgrade)(session.alembic_config(connection), revision)


def everything(engine: Engine) -> Rows:
    """Return all rows of all tables by column, as they are stored."""
    with engine.connect() as connection:
        names = sorted({*inspect(engine).get_table_names()} & {*Base.metadata.tables})
        selected = {name: connection.execute(text(f"SELECT * FROM {name}")).mappings() for name in names}
        return {name: sorted((dict(row) for row in rows), key=repr) for name, rows in selected.items()}


def columns_of(engine: Engine) -> dict[str, set[str]]:
    """Return the names of the columns of our tables, as the database has them."""
    inspector = inspect(engine)
    names = {*inspector.get_table_names()} & Base.metadata.tables.keys()
    return {name: {column["name"] for column in inspector.get_columns(name)} for name in names}


def common(rows: Rows, columns: dict[str, set[str]]) -> Rows:
    """Return the rows of the tables and columns that an older revision has as well."""
    return {
        name: sorted(({key: row[key] for key in row if key in columns[name]} for row in rows[name]), key=repr)
        for name in columns
    }


def filled(url: str, life: Life) -> Engine:
    """Return a database in which a sync has put rows into every table."""
    whole = life.whole()
    write_events(life.attempt(), [event_of(SCORE)])
    life.end(whole, outcome="diverged", loss=float("inf"), perplexity=float("nan"))
    engine = session.connect(url)
    sync(engine, life.runs)
    assert {name for name, rows in everything(engine).items() if rows} == Base.metadata.tables.keys()
    return engine


def insert(engine: Engine, rows: Rows) -> None:
    """Insert rows as `everything` returns them."""
    with session.writing(engine) as connection:
        for table in (table.name for table in Base.metadata.sorted_tables if rows.get(table.name)):
            names = list(rows[table][0])
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
            for row in rows[table]:
                stored = {name: json.dumps(v) if isinstance(v, dict | list) else v for name, v in row.items()}
                connection.execute(text(statement), stored)


@pytest.mark.parametrize("older", REVISIONS[:-1])
def test_what_both_revisions_have_survives(url: str, life: Life, older: str) -> None:
    engine = filled(url, life)
    before = everything(engine)
    go(engine, older, down=True)
    columns = columns_of(engine)
    assert everything(engine) == common(before, columns)
    go(engine, "head", down=False)
    assert common(everything(engine), columns) == common(before, columns)
    assert everything(engine).keys() == before.keys()
    engine.dispose()


def test_one_revision_after_the_other_down_to_nothing_and_up_again(url: str, life: Life) -> None:
    engine = filled(url, life)
    rows, whole = everything(engine), dump(engine)
    for older in reversed(REVISIONS[:-1]):
        go(engine, older, down=True)
        rows = common(rows, columns_of(engine))
        assert everything(engine) == rows
    oldest = columns_of(engine)
    go(engine, "base", down=True)
    assert columns_of(engine) == {}
    go(engine, REVISIONS[0], down=False)
    assert columns_of(engine) == oldest
    insert(engine, rows)  # as a program of that revision did
    for newer in REVISIONS:
        go(engine, newer, down=False)
        assert common(everything(engine), oldest) == rows
    journals = sum(len(attempt.journal_path.read_bytes().splitlines()) for attempt in all_attempts(life.runs))
    assert sync(engine, life.runs).events == journals  # of which revision 0001 did not record what it had read
    assert sync(engine, life.runs) == Ingested()
    assert dump(engine) == whole
    engine.dispose()


@pytest.fixture
def first(url: str) -> str:
    """Return a database as a program of revision 0001 left it after it had read the run directories in `OLD`."""
    engine = session.open_engine(url)
    go(engine, REVISIONS[0], down=False)
    with closing(sqlite3.connect(":memory:")) as file, session.writing(engine) as connection:
        file.executescript((OLD.parent / "version_1.sql").read_text())
        file.row_factory = sqlite3.Row
        for table in Base.metadata.sorted_tables:
            kinds = {column.name: column.type for column in table.columns}
            if table.name in columns_of(engine):
                for row in file.execute(f"SELECT * FROM {table.name}"):
                    read = {
                        name: json.loads(value) if isinstance(kinds[name], JSON) else value
                        for name, value in dict(row).items()
                    }
                    connection.execute(table.insert().values(read))
    engine.dispose()
    return url


def test_a_database_of_the_first_revision_is_upgraded_to_what_a_rebuild_gives(first: str, tmp_path: Path) -> None:
    runs = shutil.copytree(OLD / "runs", tmp_path / "runs")
    with pytest.raises(StoreError, match=f"version {REVISIONS[0]}, this program needs {HEAD}; run `gpas db upgrade`"):
        session.connect(first)
    kept = maintenance.upgrade(first)
    assert (kept is None) == first.startswith("postgresql")
    with session.opened(first) as engine:
        assert len(everything(engine)["attempt"]) == 6
        assert sync(engine, runs).problems == ()
        upgraded = dump(engine)
    assert maintenance.check(first, runs) == []
    maintenance.rebuild(first, runs)
    with session.opened(first) as engine:
        assert dump(engine) == upgraded
