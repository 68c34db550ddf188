"""Run directories, `gpas status` and `gpas table` say the same, whatever happens to a directory after it was read.

Without the folder of runs, as on a file system that is not mounted, commands say so, and nothing runs anew.
With damaged or forged files, no command crashes, whatever numbers they hold.
"""

import json
import os
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from face import FOUR, TRAINED, Face, tiny

from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.store.rundir import AttemptDir


@pytest.fixture
def project(tmp_path: Path) -> Face:
    return Face(tmp_path / "project", tiny(FOUR))


def states(project: Face) -> dict[str, str]:
    return {cell["name"]: cell["state"] for cell in project("status", "--all", "--json").json["cells"]}


@pytest.mark.parametrize("writable", [True, False], ids=["a database that is up to date", "one that stays behind"])
def test_a_damaged_outcome_counts_nowhere(project: Face, writable: bool) -> None:
    made = project.train_all()
    assert "103" in project("table", "--format", "markdown").out
    if not writable:
        (project.folder / "old.db").write_bytes((project.folder / "gpas.db").read_bytes())
    journal = made["gpas-s1"].journal_path
    content = bytearray(journal.read_bytes())
    content[-20] ^= 1
    stat = journal.stat()
    journal.write_bytes(content)
    assert states(project)["gpas-s1"] == "interrupted"
    if not writable:  # as a failing disk leaves it: with its old time, so that ingestion has no reason to read it
        os.utime(journal, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    said = project("table", "--format", "markdown").out
    assert "103" not in said
    assert "1/2 seeds" in said
    assert ("not shown, because the run directories no longer contain them: the numbers of gpas-s1" in said) is (
        not writable
    )


def test_special_files_do_not_block_commands(project: Face) -> None:
    """Opening a FIFO without a writer would block forever."""
    cell = project.cells()[0]
    attempt = project.waiting(cell)
    (attempt.path / "exit.json").write_text('{"code": 1, "signal": null}')
    os.mkfifo(attempt.log_path)
    assert states(project)[cell.name] == "failed"
    assert "not a regular file" in project("logs", cell.name, expect=2).err
    os.mkfifo(attempt.journal_path)
    assert states(project)[cell.name] == "unknown"
    assert f"{attempt.journal_path}: not a regular file" in project("db", "sync").out
    assert "`gpas db sync` ingests it or prints why not" in project("db", "check", expect=4).out


VALUES = ("Infinity", "-1", "1" + "0" * 400, "{}", r'"\u0000"')
FILES: dict[str, dict[str, Any]] = {
    "process.json": {"host": socket.gethostname(), "pid": 1, "token": "boot/1"},
    "exit.json": {"code": 1, "signal": None, "t": 1.0},
    "attempt.json": {},
    "cancel.json": {"t": 1, "signalled": False},
    "../claim.json": {"submitter": "a-1-b", "host": "h", "pid": 1, "time": 1.0, "submission": "x", "after": ["x"]},
}
COMMANDS = ("status", "status --watch", "plan", "cancel pre-s1")


def broken(path: Path) -> Iterator[None]:
    """Put one of VALUES in place of each field of the JSON in `path` in turn; the next field gets the next value."""
    whole = path.read_text()
    fields = {name: json.dumps(field) for name, field in json.loads(whole).items()}
    for name, value in zip(fields, cycle(VALUES), strict=False):
        path.write_text("{" + ", ".join(f'"{n}": {value if n == name else f}' for n, f in fields.items()) + "}")
        yield
    path.write_text(whole)


@pytest.mark.parametrize("file", FILES)
def test_an_impossible_number_stops_no_command(face: Face, file: str) -> None:
    attempt = face.attempt("pre-s1", *TRAINED[:4])
    path = attempt.path / file
    if FILES[file]:
        path.write_text(json.dumps(FILES[file]))
    alive_path(attempt).touch()
    running = file == "process.json"
    with locks.locked(alive_path(attempt) if running else attempt.path / "other.lock"):
        for _ in broken(path):
            for command in COMMANDS:
                said = face(*command.split(), expect=None)
                assert said.code in (0, 2, 3), (path.read_text(), command, said.err)
            forget_requests(attempt, but=path)


def forget_requests(attempt: AttemptDir, but: Path) -> None:
    for path in {attempt.path / "cancel.json", attempt.path.parent / "cancel.json"} - {but}:
        path.unlink(missing_ok=True)
