"""The index of ended stages: it says what the run directories say, whatever happens to either."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from launching import entry

from gpas_cli.events import event_of
from gpas_cli.plan.usage import UsageMeter
from gpas_cli.state import cancellation, ended_index, locks, observe, rerun
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.claims import write_claim
from gpas_cli.state.ended_index import FOLDER, EndedIndex
from gpas_cli.state.job_exit import JobExit
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.submitters import Submitter
from gpas_cli.state.usage import Usage
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import AttemptDir, stage_dir, write_json

KEY = "0123456789abcdef"
STEP = ("step", {"step": 3, "steps": 100, "loss": 5.0})


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ended_index, "SETTLED_SECONDS", -60.0)
    # Where it cannot be determined, as in a chroot, there is no index.
    monkeypatch.setattr(ended_index.file_systems, "type_of", lambda path: "ext4")
    return tmp_path / "runs"


def attempt(
    runs: Path, outcome: str = "", exited: dict[str, Any] | None = None, key: str = KEY, **fields: Any
) -> AttemptDir:
    made = make_attempt(runs, key, {"submitter": {"host": socket.gethostname(), "pid": 1}, "created": time.time() - 50})
    journal = Journal(made.journal_path)
    journal.append(event_of({"kind": STEP[0], **STEP[1]}))
    if outcome:
        ended = {"kind": "outcome", "outcome": outcome, "step": 3, "cause": "because", "metrics": {"perplexity": 7.0}}
        journal.append(event_of(ended | fields))
    journal.close()
    if exited:
        write_json(made.exit_path, {"t": 1.0, "code": None, "signal": None, **exited})
    return made


def seen(runs: Path, index: EndedIndex | None = None, key: str = KEY) -> StageStatus:
    """Return the status without its age, which differs from call to call."""
    return replace(observe.observe(runs, key, index=index), age=None)


def remembered(runs: Path, key: str = KEY) -> bool:
    """Look with a new index, check that it says what the run directory says, and return whether it was used."""
    index = EndedIndex(runs)
    used = index.find(key) is not None
    index = EndedIndex(runs)
    with_index = observe.observe(runs, key, index=index)
    without = observe.observe(runs, key)
    assert replace(with_index, age=None) == replace(without, age=None)
    assert (with_index.age is None) == (without.age is None)
    assert abs((with_index.age or 0.0) - (without.age or 0.0)) < 1.0
    index.save()
    return used


@contextmanager
def running(runs: Path, **_: Any) -> Iterator[None]:
    fd = locks.hold(alive_path(attempt(runs)))
    yield
    os.close(fd)


def then(*outcomes: str) -> Callable[[Path], None]:
    return lambda runs: [attempt(runs, outcome) for outcome in outcomes] and None


def exits(**exited: Any) -> Callable[[Path], None]:
    return lambda runs: attempt(runs, exited=exited) and None


def again(runs: Path) -> None:
    attempt(runs, "done")
    rerun.request(runs, KEY)


def again_and_failed(runs: Path) -> None:
    again(runs)
    attempt(runs, "failed")


def cancelled_in_queue(runs: Path) -> None:
    attempt(runs, "interrupted")
    cancellation.request(stage_dir(runs, KEY))


def logged(runs: Path) -> None:
    attempt(runs, exited={"code": 1}).log_path.write_text("Traceback\nValueError: no\n")


def damaged(runs: Path) -> None:
    path = attempt(runs, "done").journal_path
    path.write_bytes(path.read_bytes().replace(b'"outcome":"done"', b'"outcome":"dome"'))


def without_journal(runs: Path) -> None:
    attempt(runs, "done")
    make_attempt(runs, KEY)


STATES: dict[str, tuple[Callable[[Path], None], bool]] = {  # what happened, and whether it can be indexed
    "missing": (lambda runs: None, False),
    "done": (then("done"), True),
    "diverged": (then("diverged"), True),
    "failed": (then("failed"), True),
    "failed, with a node": (lambda runs: attempt(runs, "failed", node="n1") and None, True),
    "cancelled": (then("cancelled"), True),
    "interrupted": (then("interrupted"), True),
    "earlier result": (then("failed", "done", "failed", "interrupted"), True),
    "several failures": (then("interrupted", "failed"), True),
    "exit code": (exits(code=1), True),
    "exit code with a log": (logged, True),
    "exit by signal": (exits(signal=9), True),
    "exit cancelled": (exits(code=int(JobExit.CANCELLED)), True),
    "exit of a faulty node": (exits(code=int(JobExit.FAULTY_NODE), error="no GPU"), True),
    "ended unseen": (lambda runs: attempt(runs) and None, False),
    "unknown outcome": (then("sublimated"), False),
    "damaged": (damaged, False),
    "to be run again": (again, False),
    "run again and failed": (again_and_failed, False),
    "cancelled while queued": (cancelled_in_queue, True),
    "attempt without a journal": (without_journal, True),
}


@pytest.mark.parametrize("name", STATES)
def test_every_state_is_the_same_with_and_without_the_index(runs: Path, name: str) -> None:
    make, indexed = STATES[name]
    runs.mkdir()
    make(runs)
    assert not remembered(runs)
    assert remembered(runs) is indexed
    assert remembered(runs) is indexed


def test_locks_claims_and_requests_are_examined_again(runs: Path) -> None:
    made = attempt(runs, "interrupted")
    remembered(runs)
    fd = locks.hold(alive_path(made))
    assert remembered(runs)
    assert seen(runs, EndedIndex(runs)).state == "running"
    os.close(fd)
    submitter = Submitter(runs)
    write_claim(runs, KEY, submitter)
    remembered(runs)
    assert remembered(runs)
    assert seen(runs, EndedIndex(runs)).state == "queued"
    submitter.close()
    assert remembered(runs)
    assert seen(runs, EndedIndex(runs)).state == "interrupted"


def flip(runs: Path) -> None:
    """Flip a byte of the outcome and give the journal its old modification time."""
    path = AttemptDir(stage_dir(runs, KEY) / "002").journal_path
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"perplexity":7.0', b'"perplexity":8.0'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(runs: Path) -> None:
    path = stage_dir(runs, KEY) / "002/journal.jsonl"
    path.write_bytes(path.read_bytes() + b"x\n")


def restore(runs: Path) -> None:
    """Replace the run directories by an older copy with the old modification times."""
    shutil.copytree(runs, runs.with_name("backup"), symlinks=True)
    attempt(runs, "failed")
    remembered(runs)
    shutil.rmtree(runs)
    shutil.copytree(runs.with_name("backup"), runs)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a byte is flipped": flip,
    "the journal is deleted": lambda runs: (stage_dir(runs, KEY) / "002/journal.jsonl").unlink(),
    "the attempt is deleted": lambda runs: shutil.rmtree(stage_dir(runs, KEY) / "002"),
    "the stage is deleted": lambda runs: shutil.rmtree(stage_dir(runs, KEY)),
    "an event is appended": append,
    "a new attempt": lambda runs: attempt(runs, "diverged"),
    "a new attempt that runs": lambda runs: attempt(runs),
    "it is to be run again": lambda runs: rerun.request(runs, KEY),
    "it is cancelled": lambda runs: cancellation.request(stage_dir(runs, KEY)),
    "a backup is restored": restore,
    "the journal becomes a folder": lambda runs: (
        (stage_dir(runs, KEY) / "002/journal.jsonl").unlink(),
        (stage_dir(runs, KEY) / "002/journal.jsonl").mkdir(),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_change_of_the_run_directory_is_seen(runs: Path, change: str, outcome: str) -> None:
    attempt(runs, "interrupted")
    attempt(runs, outcome)
    remembered(runs)
    assert remembered(runs)
    CHANGES[change](runs)
    assert not remembered(runs)
    remembered(runs)


@pytest.mark.parametrize(
    "edited",
    ["attempt.json", "exit.json", "log.txt", "cancel.json"],
)
def test_an_edit_in_place_of_what_decided_a_failure_is_seen(runs: Path, edited: str) -> None:
    path = attempt(runs, exited={"code": 1}).path / edited
    remembered(runs)
    assert remembered(runs)
    content = path.read_text() if path.exists() else "{}"
    path.write_text(content.replace('"code": 1', '"code": 2') + "\n")
    assert not remembered(runs)


def test_what_has_just_changed_is_not_indexed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_index, "SETTLED_SECONDS", 30.0)
    attempt(runs, "done")
    remembered(runs)
    assert not remembered(runs)


def test_a_broken_link_may_become_an_attempt(runs: Path, tmp_path: Path) -> None:
    attempt(runs, "done")
    (stage_dir(runs, KEY) / "002").symlink_to(tmp_path / "elsewhere")
    remembered(runs)
    assert not remembered(runs)


def corrupt(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"#" + content[41:])


def foreign(path: Path) -> None:
    body = json.dumps([ended_index.FORMAT, {KEY: ["no", ["entry"], 1, {}, None]}]).encode()
    path.write_bytes(b"%08x %s" % (zlib.crc32(body), body))


def of_another_version(path: Path) -> None:
    body = path.read_bytes()[9:].replace(b"[[%d," % ended_index.FORMAT[0], b"[[0,")
    path.write_bytes(b"%08x %s" % (zlib.crc32(body), body))


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        corrupt,
        foreign,
        of_another_version,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 10**6),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_damaged_or_missing_index_is_rebuilt(runs: Path, harm: Callable[[Path], Any]) -> None:
    attempt(runs, "done")
    remembered(runs)
    path = runs / FOLDER / f"{KEY[:2]}.json"
    harm(path)
    assert not remembered(runs)
    assert remembered(runs) is not path.is_dir()


def test_an_index_copied_from_another_project_is_not_used(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    attempt(other, "done")
    attempt(runs, "diverged")
    remembered(other)
    shutil.copytree(other / FOLDER, runs / FOLDER)
    assert not remembered(runs)
    assert seen(runs, EndedIndex(runs)).state == "diverged"


def test_without_write_permission_nothing_is_written(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(runs, "done")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ended_index, "replace_file", refuse)
    assert not remembered(runs)
    assert not remembered(runs)


def test_a_journal_that_this_user_may_not_read_is_unknown(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = attempt(runs, "done")
    made.journal_path.chmod(0o600)
    remembered(runs)
    assert remembered(runs)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert EndedIndex(runs).find(KEY) is None


@pytest.mark.parametrize(("kind", "indexed"), [("ext4", True), ("nfs4", True), ("cifs", False), ("", False)])
def test_the_file_system_decides_whether_there_is_an_index(
    runs: Path, monkeypatch: pytest.MonkeyPatch, kind: str, indexed: bool
) -> None:
    monkeypatch.setattr(ended_index.file_systems, "type_of", lambda path: kind)
    attempt(runs, "done")
    remembered(runs)
    assert remembered(runs) is indexed
    assert (runs / FOLDER).exists() is indexed


def _look(runs: Path, keys: list[str], times: int) -> None:
    ended_index.SETTLED_SECONDS = -60.0
    for _ in range(times):
        index = EndedIndex(runs)
        for key in keys:
            assert observe.observe(runs, key, index=index).state == "done"
        index.save()


def test_two_processes_may_write_at_once(runs: Path) -> None:
    keys = [f"01{i:014x}" for i in range(6)]  # all in one file
    for key in keys:
        attempt(runs, "done", key=key)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_look, args=(runs, keys[i % 3 :], 20)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    _look(runs, keys, 1)
    assert all(remembered(runs, key) for key in keys)
    assert [path.name for path in (runs / FOLDER).iterdir()] == ["01.json"]


USED: dict[str, Callable[[Path], Any]] = {
    "a new attempt": lambda runs: attempt(runs, "failed", {"code": 1, "t": time.time()}, key=KEY),
    "an attempt is deleted": lambda runs: shutil.rmtree(stage_dir(runs, KEY) / "001"),
    "exit.json appears": lambda runs: write_json(stage_dir(runs, KEY) / "001/exit.json", {"code": 0, "t": time.time()}),
    "attempt.json is edited": lambda runs: edit(stage_dir(runs, KEY) / "002/attempt.json", "cpu-0", "gpu-0"),
    "exit.json is edited": lambda runs: edit(stage_dir(runs, KEY) / "002/exit.json", '"code": 0', '"code": 1'),
    "attempt.json is damaged": lambda runs: edit(stage_dir(runs, KEY) / "002/attempt.json", "{", ""),
    "the journal has changed": lambda runs: edit(stage_dir(runs, KEY) / "001/journal.jsonl", "\n", "\n\n"),
    "it is to be run again": lambda runs: rerun.request(runs, KEY),
}


def edit(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def used(runs: Path, states: list[CellStatus]) -> Usage:
    return UsageMeter(runs).room(states).total.spent


@pytest.mark.parametrize("change", USED)
def test_hours_are_those_of_the_run_directories(runs: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    cell = entry()
    monkeypatch.setattr(sys.modules[__name__], "KEY", cell.cell.stages[0].key)
    for exited in ({}, {"code": 0, "t": time.time()}):
        made = attempt(runs, "done", exited, key=KEY)
        edit(made.attempt_path, '"devices": []', '"devices": ["cpu-0"]')
    states = observe.look(runs, [cell])
    before = used(runs, states)
    assert before.core_hours > 0
    assert EndedIndex(runs).find_usage(KEY) == before == used(runs, states)
    USED[change](runs)
    assert EndedIndex(runs).find_usage(KEY) is None
    after = used(runs, states)
    shutil.rmtree(runs / FOLDER)
    assert used(runs, states) == after
