"""Damaged or forged files in runs/: no command crashes, whatever numbers they hold."""

import json
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from face import TRAINED, Face

from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.store.rundir import AttemptDir

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
