"""Every file that a run writes: a link or a FIFO in its place is neither followed nor waited for."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from end_to_end import Toy
from face import Face, face

from gpas_cli.errors import Exit
from gpas_cli.store.rundir import AttemptDir

__all__ = ["face"]

CELL = ("small", "--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")
COMMANDS = (("rerun", *CELL, "--yes"), ("sync",), ("status", "small"), ("history",), ("logs", "pre-s1"))
THEIRS = b"alias ll='ls -l'\n"


def link(path: Path, target: Path) -> None:
    target.write_bytes(THEIRS)
    path.symlink_to(target)


def fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a link": link, "a dangling link": lambda path, target: path.symlink_to(target), "a FIFO": fifo,
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_whatever_a_run_writes_is_not_followed(face: Face, tmp_path: Path, what: str) -> None:
    face("run", *CELL, "--yes")
    face("sync")
    written = [path for path in (*face.runs.rglob("*"), face.folder / "gpas.db") if path.is_file()]
    assert {".history.jsonl", ".lock", "cpu-0.lock", ".project.json", "alive.lock", "log.txt", "journal.jsonl",
            "gpas.db"} <= {path.name for path in written}  # fmt: skip
    for path in written:
        target, kept = tmp_path / f"of-{path.name}", path.read_bytes()
        path.unlink()
        PLANTED[what](path, target)
        before = target.read_bytes() if target.exists() else None
        for words in COMMANDS:
            assert face(*words, expect=None).code in set(Exit), (path, words)
        assert (target.read_bytes() if target.exists() else None) == before, path
        path.unlink(missing_ok=True)
        path.write_bytes(kept)
        target.unlink(missing_ok=True)


def test_a_job_follows_no_link_in_the_place_of_what_it_writes(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    attempt = AttemptDir(toy.attempts()[0])
    written = [path for path in attempt.path.rglob("*") if path.is_file() and path != attempt.attempt_path]
    assert attempt.journal_path in written
    (tmp_path / "elsewhere").mkdir()
    for number, path in enumerate(written):
        path.unlink()
        path.symlink_to(tmp_path / f"elsewhere/{number}")
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(attempt.path)]
    codes = []
    for _ in range(2):  # at first there is no journal
        done = subprocess.run(command, cwd=toy.folder, env=toy.environment(), capture_output=True, text=True)
        codes.append(done.returncode)
        assert not list((tmp_path / "elsewhere").iterdir()), done.stderr
        attempt.journal_path.unlink(missing_ok=True)
    assert codes == [75, 0], done.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [(".history.jsonl", ("run", *CELL, "--yes")), (".history.jsonl", ("cancel", *CELL)),
     (".history.jsonl", ("forget", *CELL, "--yes", "--why", "x")), (".history.jsonl", ("history",)),
     (".lock", ("run", *CELL, "--yes")), ("slot", ("run", *CELL, "--yes")), ("../gpas.db", ("sync",))],
)  # fmt: skip
def test_a_command_names_the_link_and_starts_nothing(face: Face, place: str, words: tuple[str, ...]) -> None:
    face("run", "small", "--where", "norm=post", "--where", "gate=none", "--where", "seed=1", "--yes")
    path = next(face.runs.glob(".slots/*/cpu-0.lock")) if place == "slot" else face.runs / place
    path.unlink(missing_ok=True)
    path.symlink_to(face.folder / "bashrc")
    before = (face.folder / "ran.txt").read_text()
    said = face(*words, expect=Exit.USAGE).err
    assert f"{path}: a link" in said.replace("runs/../", "") or f"{path.resolve()}" in said
    assert not (face.folder / "bashrc").exists()
    assert (face.folder / "ran.txt").read_text() == before


def test_a_database_may_be_a_link_to_a_database_of_gpas_alone(face: Face, tmp_path: Path) -> None:
    face("run", *CELL, "--yes")
    face("sync")
    (face.folder / "gpas.db").rename(tmp_path / "fast.db")
    (face.folder / "gpas.db").symlink_to(tmp_path / "fast.db")
    assert "1 done" in face("status", "small").out
    face("rerun", *CELL, "--yes")
    face("sync")
    (face.folder / "gpas.db").unlink()
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    theirs = (tmp_path / "other.db").read_bytes()
    (face.folder / "gpas.db").symlink_to(tmp_path / "other.db")
    assert "which is no database of gpas; gpas creates nothing through a link" in face("sync", expect=Exit.USAGE).err
    assert (tmp_path / "other.db").read_bytes() == theirs


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_sqlite_follows_no_link_beside_the_database(face: Face, tmp_path: Path, suffix: str) -> None:
    face("run", *CELL, "--yes")
    face("sync")
    (face.folder / f"gpas.db{suffix}").unlink(missing_ok=True)
    (face.folder / f"gpas.db{suffix}").symlink_to(tmp_path / "target")
    face("rerun", *CELL, "--yes", expect=None)
    face("sync", expect=None)
    assert not (tmp_path / "target").exists()
