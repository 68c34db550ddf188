"""Syncs that wait for, race with, or come after the death of another; databases that belong to someone else."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from dumps import dump
from life import OTHER, Connect, Life
from sqlalchemy import Engine, text
from users import ordinary

from gpas_cli.errors import StoreError
from gpas_cli.store import attempt_rows, ingest, maintenance, owner, peek, session
from gpas_cli.store.ingest import Ingested, sync
from gpas_cli.store.owner import _Owner


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


def test_a_killed_sync_is_continued(
    engine: Engine, life: Life, as_fresh: Callable[[Engine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "AT_ONCE", 1)
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
    killed_sync(engine, life, 4)
    with engine.connect() as connection:
        offset, events, mtime = connection.execute(
            text("SELECT journal_offset, journal_events, journal_mtime FROM attempt")
        ).one()
    assert 700 <= offset < size
    assert mtime is None
    assert sync(engine, life.runs) == Ingested(attempts=1, events=26 - events)
    assert sync(engine, life.runs) == Ingested()
    as_fresh(engine)


def test_many_syncs_read_all_once(connect: Connect, url: str, life: Life, as_fresh: Callable[[Engine], None]) -> None:
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
ingest.AT_ONCE = 3
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
def rivals(url: str, life: Life, stop: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes, each when all have imported what they need; they end after `stop` has been made."""
    command = [sys.executable, "-c", CODE, url, str(life.runs), "400", str(stop)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(RIVALS)]
    try:
        for rival in started:
            assert rival.stdout.readline() == "ready\n"
        for rival in started:
            rival.stdin.write("go\n")
            rival.stdin.flush()
        yield started
    finally:
        for rival in started:
            rival.kill()
            rival.communicate()


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 2])
def test_journals_that_grow_meanwhile(url: str, life: Life, connect: Connect, tmp_path: Path, killed: int) -> None:
    """Every process stores a few events of a journal at a time, and some are killed in the middle."""
    attempts = [life.attempt(f"{n:016x}") for n in range(10)]
    connect(url)
    stop = tmp_path / "stop"
    with rivals(url, life, stop) as started:
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


def test_the_first_sync_names_the_project_and_the_database_remembers_it(engine: Engine, life: Life) -> None:
    assert owner.recorded(engine) is None
    life.whole()
    sync(engine, life.runs)
    found = owner.recorded(engine)
    assert found == owner.of(life.runs)
    assert len(found.id) == 16
    assert found.runs == str(life.runs)
    assert [path.name for path in life.runs.iterdir() if path.name.startswith(".")] == [peek.PROJECT_FILE]
    sync(engine, life.runs)
    assert owner.recorded(engine) == found


def test_no_database_is_created_without_run_directories(connect: Connect, url: str, life: Life) -> None:
    sync(connect(url), life.runs)
    assert not life.runs.exists()


def test_another_projects_results_are_left_alone(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    engine = connect(url)
    other = type(life)(tmp_path / "other/runs")
    life.whole()
    other.whole()
    sync(engine, life.runs)
    before = dump(engine)
    for refused in (sync, owner.refuse_other):
        with pytest.raises(StoreError, match=f"another project, .*{life.runs}, not those of {other.runs}; name"):
            refused(engine, other.runs)
    assert dump(engine) == before
    assert not (other.runs / peek.PROJECT_FILE).exists()


def test_the_id_moves_with_the_run_directories(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    engine = connect(url)
    life.whole()
    sync(engine, life.runs)
    first = owner.of(life.runs).id
    moved = life.runs.rename(tmp_path / "moved")
    sync(engine, moved)
    assert owner.recorded(engine) == owner.of(moved)
    maintenance.rebuild(url, moved)
    again = owner.recorded(connect(url))
    assert (again.id, again.runs) == (first, str(moved))
    new = f"sqlite:///{tmp_path / 'new.db'}"
    maintenance.rebuild(new, moved)
    assert owner.of(moved).id == first
    assert owner.recorded(connect(new)) == again


def test_run_directories_that_begin_anew_keep_their_database(connect: Connect, url: str, life: Life) -> None:
    engine = connect(url)
    life.whole()
    sync(engine, life.runs)
    before = owner.recorded(engine)
    shutil.rmtree(life.runs)
    life.whole("fe" * 8)
    assert sync(engine, life.runs).gone == 1
    assert owner.recorded(engine) == before == owner.of(life.runs)


@cases("store/cases.yaml")
def test_projects_are_distinguished(one: list[str], other: list[str], across_hosts: bool, same: bool) -> None:
    """Each project is its id, its host and its folder."""
    assert _Owner(*one).is_same(_Owner(*other), across_hosts=across_hosts) is same
    assert _Owner(*other).is_same(_Owner(*one), across_hosts=across_hosts) is same


def test_rivals_agree_on_one_id(connect: Connect, life: Life, tmp_path: Path) -> None:
    life.whole()
    engines = [connect(f"sqlite:///{tmp_path / name}.db") for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda engine: sync(engine, life.runs), engines))
    assert len({owner.recorded(engine) for engine in engines}) == 1
    assert [path.name for path in life.runs.iterdir() if path.name.startswith(".")] == [peek.PROJECT_FILE]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id"'])
def test_an_id_that_cannot_be_read_is_one_message(connect: Connect, url: str, life: Life, content: str) -> None:
    life.whole()
    (life.runs / peek.PROJECT_FILE).write_text(content)
    with pytest.raises(StoreError, match=r"\.project\.json"):
        sync(connect(url), life.runs)


def test_read_only_run_directories_are_known_by_their_place(connect: Connect, unprivileged: Path, life: Life) -> None:
    """A colleague's runs, read into a database of one's own."""
    life.runs = unprivileged / "runs"
    life.whole()
    life.runs.chmod(0o555)
    engine = connect("sqlite://")
    with ordinary():
        assert sync(engine, life.runs).attempts == 1
        assert sync(engine, life.runs).attempts == 0
    life.runs.chmod(0o755)
    found = owner.recorded(engine)
    assert (found.id, found.runs) == ("", str(life.runs))
    sync(engine, life.runs)
    assert json.loads((life.runs / peek.PROJECT_FILE).read_text())["id"] == owner.of(life.runs).id != ""
