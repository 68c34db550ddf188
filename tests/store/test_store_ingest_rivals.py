"""Sixteen processes ingest at once: nothing is lost, nothing is read twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dumps import dump
from life import Connect, Life

from gpas_cli.store.ingest import Ingested, sync

CODE = """
import pathlib, sys
from gpas_cli.store import ingest, session
engine = session.connect(sys.argv[1])
sys.stdin.readline()
print(ingest.sync(engine, pathlib.Path(sys.argv[2])).events)
"""


@pytest.mark.long
def test_sixteen_processes_at_once(url: str, life: Life, connect: Connect, tmp_path: Path) -> None:
    for n in range(80):
        life.whole(f"{n:016x}")
    connect(url)
    command = [sys.executable, "-c", CODE, url, str(life.runs)]
    rivals = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(16)]
    for rival in rivals:  # all have imported what they need before the first one starts
        assert rival.stdin is not None
        rival.stdin.write("go\n")
        rival.stdin.flush()
    assert sum(int(rival.communicate()[0]) for rival in rivals) == 80 * 26
    assert [rival.returncode for rival in rivals] == [0] * 16
    engine, fresh = connect(url), connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    sync(fresh, life.runs)
    assert dump(engine) == dump(fresh)
    assert sync(engine, life.runs) == Ingested()
