"""Several processes ingest at once: nothing is lost, nothing is read twice."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dumps import dump
from life import Connect, Life

from gpas_cli.store.ingest import Ingested, sync

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
