"""Migrations: the scripts, upgrades to a later revision, and databases from before the first script."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from dumps import dump
from life import Connect, Life
from sqlalchemy import Engine, inspect, text

from gpas_cli.errors import StoreError
from gpas_cli.project import packaged
from gpas_cli.store import maintenance, peek, session
from gpas_cli.store.ingest import sync
from gpas_cli.store.peek import HEAD, VERSION_TABLE
from gpas_cli.store.schema import Base

OLDER = HEAD

NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9000", "{HEAD}"


def upgrade():
    with op.batch_alter_table("attempt") as attempt:
        attempt.add_column(sa.Column("weather", sa.Text()))
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
    script.write_text(f"{NEXT}    op.execute('SELECT * FROM nowhere')\n")
    with pytest.raises(Exception, match="nowhere"):
        maintenance.upgrade(newer_program)
    engine = session.open_engine(newer_program)
    assert "weather" not in [column["name"] for column in inspect(engine).get_columns("attempt")]
    with engine.connect() as connection:
        assert session.version_of(connection) == OLDER
    engine.dispose()


def test_an_upgrade_creates_a_missing_database_and_a_newer_one_is_refused(connect: Connect, url: str) -> None:
    assert maintenance.upgrade(url) is None
    with connect(url).begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    for refused in (session.connect, maintenance.upgrade):
        with pytest.raises(StoreError, match=f"version 9999, newer than this program's \\({HEAD}\\); update gpas"):
            refused(url)


def test_migrations_outside_of_gpas_say_how_they_are_run() -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(packaged("migrations")))
    config.set_main_option("path_separator", "os")
    with pytest.raises(RuntimeError, match="gpas db upgrade"):
        command.upgrade(config, "head")


def test_a_database_of_an_earlier_revision_is_made_anew_by_a_rebuild(url: str, connect: Connect, life: Life) -> None:
    life.whole()
    engine = connect(url)
    sync(engine, life.runs)
    whole = dump(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    remedy = "version 0001, from before 0003, the oldest that can be upgraded; `gpas db rebuild` makes it anew"
    for refused in (session.connect, maintenance.upgrade):
        with pytest.raises(StoreError, match=remedy):
            refused(url)
    if engine.dialect.name == "postgresql":
        for refused in (session.connect, lambda url: maintenance.rebuild(url, life.runs)):
            with pytest.raises(StoreError, match="on a server first name an empty database with GPAS_DB"):
                refused(url)
        return
    engine.dispose()
    maintenance.rebuild(url, life.runs)
    assert dump(connect(url)) == whole
