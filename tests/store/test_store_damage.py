"""Whatever lies in runs/: what cannot be read is passed over and named, and every other attempt is read in."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from life import OTHER, Connect, Life
from postgres_server import needs_server
from users import ordinary

from gpas_cli.store import maintenance
from gpas_cli.store.ingest import sync
from gpas_cli.store.rundir import AttemptDir, all_attempts, read_json

THIRD = "00" * 8
DEEP = b'{"a":' * 100_000


def line(body: bytes) -> bytes:
    """Return a journal's line with the right checksum."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


def changed(attempt: AttemptDir, **facts: Any) -> None:
    attempt.attempt_path.write_text(json.dumps(read_json(attempt.attempt_path) | facts))


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.name)


HARM: dict[str, Callable[[AttemptDir], object]] = {
    "a FIFO as journal": lambda a: fifo(a.journal_path),
    "a FIFO as attempt.json": lambda a: fifo(a.attempt_path),
    "deep JSON": lambda a: a.attempt_path.write_bytes(DEEP),
    "an event of deep JSON": lambda a: a.journal_path.write_bytes(line(DEEP)),
    "an infinite start": lambda a: a.journal_path.write_bytes(line(b'{"n":0,"t":Infinity,"kind":"start"}')),
    "a huge time": lambda a: a.journal_path.write_bytes(line(b'{"n":0,"t":1%s,"kind":"start"}' % (b"0" * 400))),
    "a huge step": lambda a: a.journal_path.write_bytes(
        line(b'{"n":0,"t":1.0,"kind":"step","step":5,"loss":1%s}' % (b"0" * 400))
    ),
    "an infinite axis": lambda a: changed(a, axes={"lr": float("inf")}),
    "a huge axis": lambda a: changed(a, axes={"lr": 10**400}),
    "NUL in a name": lambda a: changed(a, name="a\0b", cell={"why": "\0"}),
    "a lone surrogate": lambda a: changed(a, name="\ud800", cell={"why": "\ud800"}),
    "parents that are no list": lambda a: changed(a, parents=7),
    "a stage that is no word": lambda a: changed(a, stage={"kind": []}),
    "a folder as journal": lambda a: (a.journal_path.unlink(), a.journal_path.mkdir()),
    "a looping journal": lambda a: (a.journal_path.unlink(), loop(a.journal_path)),
    "a looping attempt": lambda a: loop(a.path.parent / "002"),
    "a looping stage": lambda a: loop(a.path.parents[2] / "ab" / f"ab{'0' * 14}"),
    "a looping prefix": lambda a: loop(a.path.parents[2] / "ab"),
    "a number beyond 32 bits": lambda a: (a.path.parent / "99999999999999999999").mkdir(),
    "a file as prefix": lambda a: (a.path.parents[2] / "ab").write_text("a file"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_attempt_does_not_affect_others(connect: Connect, sqlite_url: str, life: Life, harm: str) -> None:
    check_the_others(connect, sqlite_url, life, harm)


# What Postgres reads differently from SQLite; files that cannot be read never reach a database.
VALUES = ("an infinite start", "a huge time", "a huge step", "an infinite axis", "a huge axis", "NUL in a name")


@needs_server
@pytest.mark.parametrize("harm", [*VALUES, "a lone surrogate", "a stage that is no word"])
def test_postgres_stores_the_others_too(connect: Connect, schema_url: str, life: Life, harm: str) -> None:
    check_the_others(connect, schema_url, life, harm)


def check_the_others(connect: Connect, url: str, life: Life, harm: str) -> None:
    for key in (THIRD, OTHER):
        life.whole(key)
    HARM[harm](life.whole())
    engine = connect(url)
    done = sync(engine, life.runs)
    with engine.connect() as connection:
        read = {
            row.stage_key for row in connection.exec_driver_sql("SELECT stage_key FROM attempt WHERE outcome='done'")
        }
    assert {THIRD, OTHER} <= read
    again = sync(engine, life.runs)
    assert again.problems == done.problems
    assert again.attempts == 0
    engine.dispose()
    assert maintenance.rebuild(url, life.runs).problems == done.problems
    for problem in done.problems:
        assert str(life.runs) in problem
    maintenance.check(url, life.runs)


NAMED = (
    "a FIFO as journal",
    "a folder as journal",
    "deep JSON",
    "a looping attempt",
    "a looping stage",
    "a looping prefix",
)


@pytest.mark.parametrize("harm", NAMED)
def test_skipped_attempts_are_named(connect: Connect, sqlite_url: str, life: Life, harm: str) -> None:
    HARM[harm](life.whole())
    (problem,) = sync(connect(sqlite_url), life.runs).problems
    assert problem.startswith(str(life.runs))
    assert sync(connect(sqlite_url), life.runs, keys=["0123456789abcdef"]).attempts == 0


@pytest.mark.parametrize("level", [0, 1], ids=["the attempt", "the stage"])
def test_a_folder_that_may_not_be_read_is_passed_over_and_named(
    unprivileged: Path, connect: Connect, life: Life, level: int
) -> None:
    unprivileged.chmod(0o777)
    life.runs = unprivileged / "runs"
    life.whole(OTHER)
    attempt = life.whole()
    closed = attempt.path.parent if level else attempt.path
    closed.chmod(0o000)
    engine = connect("sqlite://")
    with ordinary():
        done = sync(engine, life.runs)
    assert done.attempts == 1
    (problem,) = done.problems
    assert str(closed) in problem
    assert "Permission denied" in problem


def test_links_to_folders_are_followed(life: Life, tmp_path: Path) -> None:
    attempt = life.whole()
    shutil.move(attempt.path.parent, tmp_path / "elsewhere")
    attempt.path.parent.symlink_to(tmp_path / "elsewhere")
    assert list(all_attempts(life.runs)) == [attempt]
