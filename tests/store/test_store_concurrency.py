"""Syncs that wait for, race with, or come after the death of another: nothing is lost, nothing is read twice."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


RIVALS = 5
# Prints a line when it is ready to start, and at the end how many events it has read.
CODE = """
import pathlib, sys
from gpas_cli.store import attempt_rows, ingest, session
url, runs, stretch, stop = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4])
attempt_rows.STRETCH_BYTES = stretch
ingest.TRANSACTION_BYTES = 2 * stretch
engine = session.connect(url)
print("ready", flush=True)
sys.stdin.readline()
events = 0
over = False
while not over:
    over = stop.exists()  # before reading: what was written before it came to be is read
    events += ingest.sync(engine, runs).events
print(events)
"""


@contextmanager
def rivals(url: str, life: Life, stop: Path, stretch: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes, each when all have imported what they need; they end after `stop` has been made."""
    command = [sys.executable, "-c", CODE, url, str(life.runs), str(stretch), str(stop)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(RIVALS)]
    try:
        for rival in started:
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
        for rival in started:
            assert rival.stdin is not None
            rival.stdin.write("go\n")
            rival.stdin.flush()
        yield started
    finally:
        for rival in started:
            rival.kill()
            rival.communicate()


@pytest.mark.long
def test_processes_at_once(url: str, life: Life, connect: Connect, tmp_path: Path) -> None:
    for n in range(40):
        life.whole(f"{n:016x}")
    connect(url)
    stop = tmp_path / "stop"
    stop.touch()
    with rivals(url, life, stop, stretch=1 << 20) as started:
        assert sum(int(rival.communicate()[0]) for rival in started) == 40 * 26
        assert [rival.returncode for rival in started] == [0] * RIVALS
    engine, fresh = connect(url), connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    sync(fresh, life.runs)
    assert dump(engine) == dump(fresh)
    assert sync(engine, life.runs) == Ingested()


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 2])
def test_journals_that_grow_meanwhile(url: str, life: Life, connect: Connect, tmp_path: Path, killed: int) -> None:
    """Every process stores a few events of a journal at a time, and some are killed in the middle."""
    attempts = [life.attempt(f"{n:016x}") for n in range(10)]
    connect(url)
    stop = tmp_path / "stop"
    with rivals(url, life, stop, stretch=400) as started:
        for n, attempt in enumerate(attempts * 4):
            life.steps(attempt, range(1 + n, 41 + n))
        for rival in started[:killed]:
            rival.kill()
        for attempt in attempts:
            life.end(attempt, loss=1.0)
        stop.touch()
        read = [int(rival.communicate()[0]) for rival in started[killed:]]
        assert [rival.returncode for rival in started[killed:]] == [0] * (RIVALS - killed)
    assert killed or sum(read) == 10 * (4 * 43 + 1)
    engine, fresh = connect(url), connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    assert sync(engine, life.runs) == Ingested()
    sync(fresh, life.runs)
    assert dump(engine) == dump(fresh)
