"""The same store on a Postgres server of the test's own: a new data directory, a unix socket, no port."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from dumps import dump
from life import OTHER, Connect, Life
from postgres_server import needs_server
from second_revision import check_second_revision
from sqlalchemy import inspect, select, text

from gpas_cli.errors import StoreError
from gpas_cli.store import maintenance, session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.schema import VERSION_TABLE, AttemptRow, Base, MetricRow

pytestmark = needs_server


@pytest.fixture
def url(postgres_url: str) -> str:
    """Return a new database on the server."""
    return postgres_url


def test_tables_are_made_by_the_migrations_and_agree_with_the_models(connect: Connect, url: str) -> None:
    engine = connect(url)
    assert set(inspect(engine).get_table_names()) == {*Base.metadata.tables, VERSION_TABLE}
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_rivals_create_the_tables_once(connect: Connect, url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: connect(url), range(4)))
    with engines[0].connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {VERSION_TABLE}")).scalar() == 1


def test_the_content_is_that_of_sqlite(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    server, file = connect(url), connect(f"sqlite:///{tmp_path / 'gpas.db'}")
    attempt = life.attempt()
    life.start(attempt, host="node\0seven", environment={"note": "\0\ud800"})
    life.steps(attempt, range(1, 9))
    for engine in (server, file):
        assert sync(engine, life.runs) == Ingested(attempts=1, events=13)
        assert sync(engine, life.runs) == Ingested()
    life.start(attempt)
    life.steps(attempt, range(5, 12))
    life.end(attempt, "diverged", loss=math.nan, perplexity=math.inf, **{'bits "{x},\\y': -math.inf})
    life.whole(OTHER, cell={"asked": [None, 1e-3, "Grüße"]})
    for engine in (server, file):
        assert sync(engine, life.runs).attempts == 2
    assert dump(server) == dump(file)
    with server.connect() as connection:
        loss = connection.scalar(
            select(MetricRow.value).join(AttemptRow).where(MetricRow.name == "loss", AttemptRow.outcome == "diverged")
        )
        assert connection.execute(text("SELECT value FROM metric WHERE value = 'Infinity'")).scalar() == math.inf
    assert loss is not None
    assert math.isnan(loss)


def test_many_syncs_at_once_read_everything_once(connect: Connect, url: str, life: Life) -> None:
    engines = [connect(url) for _ in range(4)]
    for n in range(12):
        life.whole(f"{n:016x}")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda engine: sync(engine, life.runs), engines))
    assert sum(each.events for each in done) == 12 * 26
    assert len(dump(engines[0])["attempt"]) == 12


def test_it_is_rebuilt_in_place_and_checked(connect: Connect, url: str, life: Life) -> None:
    engine = connect(url)
    life.whole()
    unreadable = life.attempt(OTHER)
    sync(engine, life.runs)
    before = dump(engine)
    assert maintenance.check(url, life.runs) == []
    done = maintenance.rebuild(url, life.runs)
    assert (done.attempts, done.events) == (2, 26)
    assert dump(engine) == before
    unreadable.attempt_path.unlink()
    assert len(maintenance.rebuild(url, life.runs).problems) == 1
    (finding,) = maintenance.check(url, life.runs)
    assert f"fe/{OTHER}/001 is not in the database" in str(finding)


def test_the_second_revision_there_and_back(url: str, life: Life) -> None:
    check_second_revision(url, life)


def test_two_projects_in_one_database_are_refused(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    """The second one neither overwrites nor reads, nor rebuilds the first one's."""
    life.whole()
    engine = connect(url)
    sync(engine, life.runs)
    before = dump(engine)
    other = type(life)(tmp_path / "other/runs")
    other.whole(loss=1.0)
    with pytest.raises(StoreError, match=r"another project, .*runs; name another database with GPAS_DB"):
        sync(engine, other.runs)
    with pytest.raises(StoreError, match="another project"):
        maintenance.rebuild(url, other.runs)
    assert "another project" in str(maintenance.check(url, other.runs)[0])
    assert dump(engine) == before


def test_an_upgrade_makes_no_copy_and_backups_are_left_to_the_server(connect: Connect, url: str) -> None:
    assert maintenance.upgrade(url) is None
    with pytest.raises(StoreError, match="pg_dump"):
        maintenance.backup(url)
    with connect(url).begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0000'"))
    with pytest.raises(StoreError, match="make a backup with pg_dump first"):
        session.connect(url)


def test_a_missing_database_is_reported(postgres_server: Path) -> None:
    with pytest.raises(StoreError, match='database "nothing" does not exist'):
        session.connect(f"postgresql://gpas@/nothing?host={postgres_server}")


def test_a_server_that_goes_away_is_reported(connect: Connect, url: str) -> None:
    engine = connect(url)
    with engine.connect() as victim, engine.connect() as killer:
        pid = victim.execute(text("SELECT pg_backend_pid()")).scalar()
        killer.execute(text(f"SELECT pg_terminate_backend({pid})"))
        with pytest.raises(StoreError, match="nothing is lost: run the command again once the server answers"):
            victim.execute(text("SELECT 1"))
