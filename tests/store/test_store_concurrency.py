"""Syncs that wait for, race with, or come after the death of another."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dumps import dump
from life import OTHER, Connect, Life
from sqlalchemy import Engine, text

from gpas_cli.errors import StoreError
from gpas_cli.store import attempt_rows, ingest, session
from gpas_cli.store.ingest import Ingested, sync


def test_a_locked_database_only_delays_a_sync(connect: Connect, url: str, life: Life) -> None:
    engine = connect(url, busy_seconds=0.2)
    life.whole()
    with session.writing(connect(url)):
        life.whole(OTHER)  # the job continues meanwhile
        with pytest.raises(StoreError, match=r"held the lock for 0\.2 s; nothing is lost: run the command again"):
            sync(engine, life.runs)
    assert sync(engine, life.runs) == Ingested(attempts=2, events=52)


def killed_sync(engine: Engine, life: Life, at: int) -> None:
    """Begin a sync that dies at that call of `store_points`, after it."""
    store = attempt_rows.store_points
    calls = iter(range(1, 100))

    def dies(*arguments: Any) -> None:
        store(*arguments)
        if next(calls) == at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_rows, "store_points", dies)
        with pytest.raises(KeyboardInterrupt):
            sync(engine, life.runs)


def test_a_killed_sync_is_continued(engine: Engine, life: Life, as_fresh: Callable[[Engine], None]) -> None:
    for n in range(3):
        life.whole(f"{n:016x}")
    killed_sync(engine, life, 2)
    assert len(dump(engine)["attempt"]) == 1
    assert sync(engine, life.runs).attempts == 2
    as_fresh(engine)


def test_a_killed_sync_of_a_long_journal_is_continued_in_it(
    engine: Engine, life: Life, as_fresh: Callable[[Engine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = life.whole().journal_path.stat().st_size
    monkeypatch.setattr(attempt_rows, "STRETCH_BYTES", 300)
    monkeypatch.setattr(ingest, "TRANSACTION_BYTES", 700)
    killed_sync(engine, life, 6)
    with engine.connect() as connection:
        offset, events, mtime = connection.execute(
            text("SELECT journal_offset, journal_events, journal_mtime FROM attempt")
        ).one()
    assert 700 <= offset < size
    assert mtime is None
    assert sync(engine, life.runs) == Ingested(attempts=1, events=26 - events)
    assert sync(engine, life.runs) == Ingested()
    as_fresh(engine)


def test_many_syncs_at_once_read_everything_once(
    connect: Connect, url: str, life: Life, as_fresh: Callable[[Engine], None]
) -> None:
    engines = [connect(url) for _ in range(4)]
    for n in range(12):
        life.whole(f"{n:016x}")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda engine: sync(engine, life.runs), engines))
    assert sum(each.events for each in done) == 12 * 26
    as_fresh(engines[0])


def test_a_reading_connection_takes_no_write_lock(engine: Engine, life: Life) -> None:
    life.whole()
    with session.writing(engine), engine.connect() as reader:
        assert reader.execute(text("SELECT count(*) FROM attempt")).scalar() == 0
