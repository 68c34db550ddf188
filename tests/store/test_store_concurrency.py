"""Syncs that wait for, race with, or come after the death of another."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


def test_a_killed_sync_is_continued(
    engine: Engine, life: Life, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        life.whole(f"{n:016x}")
    with monkeypatch.context() as patch:
        store = attempt_rows.store_points
        calls = iter(range(10))

        def dies(*arguments: Any) -> None:
            store(*arguments)
            if next(calls) == 1:
                raise KeyboardInterrupt

        patch.setattr(attempt_rows, "store_points", dies)
        with pytest.raises(KeyboardInterrupt):
            sync(engine, life.runs)
    assert len(dump(engine)["attempt"]) == 1
    assert sync(engine, life.runs).attempts == 2
    fresh = connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    sync(fresh, life.runs)
    assert dump(engine) == dump(fresh)


def test_a_killed_sync_of_a_long_journal_is_continued_in_it(
    engine: Engine, life: Life, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = life.whole().journal_path.stat().st_size
    monkeypatch.setattr(attempt_rows, "STRETCH_BYTES", 300)
    monkeypatch.setattr(ingest, "TRANSACTION_BYTES", 700)
    with monkeypatch.context() as patch:
        store = attempt_rows.store_points
        calls = iter(range(100))

        def dies(*arguments: Any) -> None:
            store(*arguments)
            if next(calls) == 5:
                raise KeyboardInterrupt

        patch.setattr(attempt_rows, "store_points", dies)
        with pytest.raises(KeyboardInterrupt):
            sync(engine, life.runs)
    with engine.connect() as connection:
        offset, events, mtime = connection.execute(
            text("SELECT journal_offset, journal_events, journal_mtime FROM attempt")
        ).one()
    assert 700 <= offset < size
    assert mtime is None
    assert sync(engine, life.runs) == Ingested(attempts=1, events=26 - events)
    assert sync(engine, life.runs) == Ingested()
    fresh = connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    sync(fresh, life.runs)
    assert dump(engine) == dump(fresh)


def test_many_syncs_at_once_read_everything_once(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    engines = [connect(url) for _ in range(4)]
    for n in range(12):
        life.whole(f"{n:016x}")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda engine: sync(engine, life.runs), engines))
    assert sum(each.events for each in done) == 12 * 26
    fresh = connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    sync(fresh, life.runs)
    assert dump(engines[0]) == dump(fresh)


def test_two_processes_at_once(url: str, life: Life, connect: Connect) -> None:
    for n in range(6):
        life.whole(f"{n:016x}")
    code = (
        "import sys, pathlib; from gpas_cli.store import attempt_rows, ingest, session\n"
        "print(ingest.sync(session.connect(sys.argv[1]), pathlib.Path(sys.argv[2])).events)"
    )
    command = [sys.executable, "-c", code, url, str(life.runs)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sum(int(process.communicate()[0]) for process in processes) == 6 * 26
    assert sync(connect(url), life.runs) == Ingested()


def test_a_reading_connection_takes_no_write_lock(engine: Engine, life: Life) -> None:
    life.whole()
    with session.writing(engine), engine.connect() as reader:
        assert reader.execute(text("SELECT count(*) FROM attempt")).scalar() == 0
