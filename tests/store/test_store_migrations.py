"""Migrations: the scripts, and each with data in every table, down and up again and one after the other."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from attempts import write_events
from dumps import dump
from life import Connect, Life
from sqlalchemy import JSON, Engine, inspect, text

from gpas_cli.errors import StoreError
from gpas_cli.events import event_of
from gpas_cli.project import packaged
from gpas_cli.store import maintenance, peek, session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.peek import HEAD, VERSION_TABLE
from gpas_cli.store.rundir import all_attempts
from gpas_cli.store.schema import Base

OLDER = HEAD

NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9000", "{HEAD}"


def upgrade():
    with op.batch_alter_table("attempt") as attempt:
        attempt.add_column(sa.Column("weather", sa.Text()))


def downgrade():
    with op.batch_alter_table("attempt") as attempt:
        attempt.drop_column("weather")
"""


def scripts() -> ScriptDirectory:
    engine = session.open_engine("sqlite://")
    with engine.connect() as connection:
        found = ScriptDirectory.from_config(session.alembic_config(connection))
    engine.dispose()
    return found


def test_the_head_is_the_last_script() -> None:
    assert scripts().get_current_head() == HEAD


def test_revisions_sort_by_age_because_versions_are_compared_as_text() -> None:
    revisions = [script.revision for script in scripts().walk_revisions()][::-1]
    assert revisions == sorted(revisions)
    assert all(re.fullmatch(r"\d{4}", revision) for revision in revisions)


def test_models_and_migrations_agree(connect: Connect, url: str) -> None:
    with connect(url).connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_models_and_migrations_make_the_same_tables(connect: Connect, sqlite_url: str, tmp_path: Path) -> None:
    """What compare_metadata does not see: WITHOUT ROWID, the names of constraints."""
    made = connect("sqlite://", create=True)
    by_models = session.open_engine(f"sqlite:///{tmp_path / 'models.db'}")
    Base.metadata.create_all(by_models)

    def tables(engine: Engine) -> dict[str, list[str]]:
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all()
        return {name: definitions(sql.replace('"', "")) for name, sql in rows if name != VERSION_TABLE}

    def definitions(sql: str) -> list[str]:
        """Return the columns and constraints, and the text after the closing bracket, in no particular order."""
        _, inner, options = re.split(r"(?s)^[^(]*\((.*)\)", sql)
        return sorted(part.strip() for part in [*re.split(r",(?![^(]*\))", inner), options])

    assert tables(made) == tables(by_models)
    by_models.dispose()


@pytest.fixture
def newer_program(connect: Connect, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the database of today's program, and a program that is one revision ahead of it."""
    connect(url).dispose()
    ahead = tmp_path / "migrations"
    shutil.copytree(packaged("migrations"), ahead, ignore=shutil.ignore_patterns("__pycache__"))
    (ahead / "versions" / "9000_weather.py").write_text(NEXT)
    monkeypatch.setattr(session, "packaged", lambda name: tmp_path / name)
    for module in (peek, session, maintenance):
        monkeypatch.setattr(module, "HEAD", "9000")
    return url


def test_an_upgrade_keeps_the_rows_and_a_backup(newer_program: str, connect: Connect, tmp_path: Path) -> None:
    older = session.open_engine(newer_program)
    with older.begin() as connection:
        connection.execute(text("INSERT INTO stage VALUES ('0123456789abcdef', 'pretrain', '[]', '{}')"))
    older.dispose()
    kept = maintenance.upgrade(newer_program)
    engine = connect(newer_program)
    assert "weather" in [column["name"] for column in inspect(engine).get_columns("attempt")]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT kind FROM stage")).scalars().all() == ["pretrain"]
    assert maintenance.upgrade(newer_program) is None
    assert (kept is None) == (engine.dialect.name == "postgresql")
    if kept is not None:
        check_backup(kept, tmp_path)


def check_backup(kept: Path, folder: Path) -> None:
    """Check that the backup that an upgrade has made is the database before it."""
    assert kept.parent == folder
    assert kept.name.startswith("gpas.db.backup-")
    backup = sqlite3.connect(kept)
    assert backup.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(OLDER,)]
    assert backup.execute("SELECT kind FROM stage").fetchall() == [("pretrain",)]
    backup.close()


def test_an_upgrade_that_fails_changes_nothing(newer_program: str, tmp_path: Path) -> None:
    script = tmp_path / "migrations" / "versions" / "9000_weather.py"
    script.write_text(NEXT.replace("\n\ndef downgrade", "    op.execute('SELECT * FROM nowhere')\n\ndef downgrade"))
    with pytest.raises(Exception, match="nowhere"):
        maintenance.upgrade(newer_program)
    engine = session.open_engine(newer_program)
    assert "weather" not in [column["name"] for column in inspect(engine).get_columns("attempt")]
    with engine.connect() as connection:
        assert session.version_of(connection) == OLDER
    engine.dispose()


def test_an_upgrade_creates_a_missing_database_and_refuses_a_newer_one(connect: Connect, url: str) -> None:
    assert maintenance.upgrade(url) is None
    with connect(url).begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer than this program's"):
        maintenance.upgrade(url)


def test_migrations_outside_of_gpas_say_how_they_are_run() -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(packaged("migrations")))
    config.set_main_option("path_separator", "os")
    with pytest.raises(RuntimeError, match="gpas db upgrade"):
        command.upgrade(config, "head")


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
