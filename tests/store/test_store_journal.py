"""Journals and whatever else lies in runs/: what cannot be read is passed over and named, all else is read in."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from life import OTHER, Connect, Life
from postgres_server import needs_server
from users import ordinary

from gpas_cli.events import Checkpoint, Evaluation, Outcome, Phase, Started, Step, Unknown
from gpas_cli.store import journal as module
from gpas_cli.store import maintenance
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import Journal, decode, encode
from gpas_cli.store.rundir import AttemptDir, all_attempts, read_json

# A busy machine makes examples slowly.
ON_ANY_MACHINE: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name not in ("n", "t", "kind", "self")), JSON, max_size=3
)


def written(path: Path, count: int) -> list[dict[str, Any]]:
    """Write a journal of `count` events, the same bytes every time."""
    events = [{"n": n, "t": 1760000000.5, "kind": "step", "step": n, "loss": 1.0 / (n + 1)} for n in range(count)]
    path.write_bytes(b"".join(encode(event) for event in events))
    return events


def read(path: Path, offset: int = 0, limit: int = -1) -> tuple[list[dict[str, Any]], int, int]:
    lines, end, damaged = module.read(path, offset, limit)
    return [dict(line.values) for line in lines], end, damaged


def tail(path: Path, *size: int) -> list[dict[str, Any]]:
    return [dict(line.values) for line in module.tail(path, *size)]


def line_of(data: bytes, position: int) -> int:
    return data[:position].count(b"\n")


class Disk:
    """Stands for os.write: passes on at most `room` bytes, then refuses with ENOSPC."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.write = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self.write(fd, data[: self.room])
        self.room -= count
        return count


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Disk]:
    def limit(room: int) -> Disk:
        made = Disk(room)
        monkeypatch.setattr(module.os, "write", made)
        return made

    return limit


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    before = time.time()
    journal = Journal(path)
    journal.append(Unknown("place", unread={"where": Path("/somewhere"), "axes": ("norm", "gate")}))
    journal.append(Step(step=1, loss=math.nan, lr=math.inf, grad_norm=-math.inf))
    journal.close()
    (start, step), offset, damaged = read(path)
    assert (offset, damaged) == (path.stat().st_size, 0)
    assert before <= start.pop("t") <= time.time()
    assert start == {"n": 0, "kind": "place", "where": "/somewhere", "axes": ["norm", "gate"]}
    assert [step[name] for name in ("n", "loss", "lr", "grad_norm")] == [1, "nan", "inf", "-inf"]
    assert math.isnan(float(step["loss"]))


def test_array_scalars_are_numbers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    journal = Journal(tmp_path / "j")
    numbers = {"worst": numpy.float64("nan"), "bad": numpy.float32("inf")}
    journal.append(Step(step=numpy.int64(3), loss=numpy.float32(0.5), unread=numbers))
    journal.close()
    event = read(tmp_path / "j")[0][0]
    assert (event["loss"], event["step"], event["worst"], event["bad"]) == (0.5, 3, "nan", "inf")


def test_an_event_that_json_cannot_represent_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(TypeError, match="object"):
        journal.append(Unknown("x", unread={"value": object()}))
    with pytest.raises(TypeError, match="n: written by the journal itself"):
        journal.append(Unknown("x", unread={"n": 7}))
    journal.append(Step(step=1))
    journal.close()
    assert [event["n"] for event in read(tmp_path / "j")[0]] == [0]


def test_a_closed_journal_takes_no_events(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(Step(1))


def test_a_journal_that_cannot_be_opened_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "nowhere" / "j")


def test_reading_continues_from_an_offset_up_to_the_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + encode({"n": 2, "t": 1.0, "kind": "x"})[:-5])
    events, offset, damaged = read(path)
    assert (len(events), offset, damaged) == (2, len(whole), 0)
    path.write_bytes(whole + encode({"n": 2, "t": 1.0, "kind": "x"}))
    events, offset, damaged = read(path, offset)
    assert ([event["n"] for event in events], offset, damaged) == ([2], path.stat().st_size, 0)
    assert read(path, offset) == ([], offset, 0)


def test_an_event_without_its_newline_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    events, offset, damaged = read(path)
    assert (len(events), offset, damaged) == (2, path.stat().st_size, 0)
    Journal(path).append(Unknown("x"))
    assert [event["n"] for event in read(path, offset)[0]] == [2]
    assert read(path)[2] == 0


def test_reading_in_parts_and_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "j"
    events = written(path, 50)
    offset = 0
    found = []
    while (stretch := read(path, offset, limit=300))[1] > offset:
        assert len(stretch[0]) < 10
        offset = stretch[1]
        found = found + stretch[0]
    assert found == events


def test_a_missing_journal_has_no_events(tmp_path: Path) -> None:
    assert read(tmp_path / "j") == ([], 0, 0)
    assert tail(tmp_path / "j") == []


@pytest.mark.parametrize("size", [1, 100, 1000, 65536])
def test_tail_reads_the_last_events_within_its_limit(tmp_path: Path, size: int) -> None:
    events = written(tmp_path / "j", 100)
    last = tail(tmp_path / "j", size)
    assert last == events[len(events) - len(last) :]
    assert sum(len(encode(event)) for event in last) <= size
    assert len(last) >= min(100, size // 100 - 1)


def test_events_survive_a_disk_that_is_full_for_a_while(tmp_path: Path, disk: Callable[[int], Disk]) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    full = disk(250)
    for step in range(10):
        journal.append(Step(step=step, loss=0.5))
    assert 0 < journal.pending < 10
    assert read(path)[2] == 0
    full.room = 10**6
    journal.append(Outcome(outcome="done"))
    journal.close()
    events, _, damaged = read(path)
    assert [event["n"] for event in events] == list(range(11))
    assert damaged == 1


@pytest.mark.parametrize(("short", "damaged"), [(1, 0), (2, 1)])
def test_a_line_cut_at_its_very_end_is_read_once(
    tmp_path: Path, disk: Callable[[int], Disk], monkeypatch: pytest.MonkeyPatch, short: int, damaged: int
) -> None:
    monkeypatch.setattr(module.time, "time", lambda: 1760000000.5)
    journal = Journal(tmp_path / "j")
    full = disk(len(encode({"n": 0, "t": 1760000000.5, "kind": "x"})) - short)
    journal.append(Unknown("x"))
    full.room = 10**6
    journal.append(Unknown("y"))
    journal.close()
    events, _, bad = read(tmp_path / "j")
    assert [event["n"] for event in events] == [0, 1]
    assert bad == damaged


def test_full_memory_drops_steps(tmp_path: Path, disk: Callable[[int], Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_LIMIT", 5)
    journal = Journal(tmp_path / "j")
    full = disk(0)
    journal.append(Started())
    for step in range(10):
        journal.append(Step(step=step))
    journal.append(Evaluation(step=9))
    assert (journal.pending, journal.dropped) == (5, 7)
    full.room = 10**6
    journal.append(Outcome("done"))
    journal.close()
    events = read(tmp_path / "j")[0]
    kept = [(event["kind"], event.get("step")) for event in events]
    assert kept[:5] == [("start", None), ("step", 7), ("step", 8), ("step", 9), ("evaluation", 9)]
    assert [event["kind"] for event in events[5:]] == ["outcome", "warning"]
    assert events[-1]["dropped"] == 7


def test_without_steps_to_drop_the_oldest_goes(
    tmp_path: Path, disk: Callable[[int], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_LIMIT", 2)
    journal = Journal(tmp_path / "j")
    full = disk(0)
    for name in "abcd":
        journal.append(Phase(name=name))
    full.room = 10**6
    journal.close()
    assert [event.get("name") for event in read(tmp_path / "j")[0]] == ["c", "d", None]


def test_close_raises_if_events_could_not_be_written(tmp_path: Path, disk: Callable[[int], Disk]) -> None:
    journal = Journal(tmp_path / "j")
    disk(0)
    journal.append(Outcome(outcome="done"))
    with pytest.raises(OSError, match="1 events could not be written"):
        journal.close()


def test_close_raises_if_the_disk_lost_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        journal.append(Checkpoint(step=1))
    with pytest.raises(OSError, match="Input/output"):
        journal.close()


@settings(max_examples=40, **ON_ANY_MACHINE)
@given(fields=FIELDS)
def test_any_fields_survive_a_line(fields: dict[str, Any]) -> None:
    event = {"n": 0, "t": 1.0, "kind": "x"} | module.plain(fields)
    line = encode(event)
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == event


@settings(max_examples=40, **ON_ANY_MACHINE)
@given(data=st.data(), count=st.integers(1, 12))
def test_a_truncation_loses_only_lines_cut(tmp_path_factory: pytest.TempPathFactory, data: Any, count: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "j"
    events = written(path, count)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    found, offset, damaged = read(path)
    complete = line_of(whole, min(cut + 1, len(whole)))  # a line without its newline is complete
    assert found == events[:complete]
    assert tail(path) == found
    assert damaged == 0
    assert offset <= cut
    Journal(path).append(Unknown("more"))
    after, _, damaged = read(path)
    assert (after[:-1], after[-1]["n"]) == (found, complete)
    assert damaged <= 1


@settings(max_examples=60, **ON_ANY_MACHINE)
@given(data=st.data(), count=st.integers(1, 12), flip=st.integers(1, 255))
def test_a_byte_flip_loses_one_line(tmp_path_factory: pytest.TempPathFactory, data: Any, count: int, flip: int) -> None:
    path = tmp_path_factory.mktemp("flip") / "j"
    events = written(path, count)
    whole = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(whole) - 1))
    touched = {line_of(whole, position)} | ({line_of(whole, position) + 1} if whole[position] == 10 else set())
    whole[position] ^= flip
    path.write_bytes(whole)
    found, _, damaged = read(path)
    untouched = [event for line, event in enumerate(events) if line not in touched]
    # Where the last newline was hit, its line is the unfinished one: neither found nor damaged.
    assert [event for event in found if event["n"] not in touched] == untouched
    assert all(event in events for event in found)
    assert damaged <= 2
    assert tail(path) == found


@settings(max_examples=50, **ON_ANY_MACHINE)
@given(junk=st.binary(max_size=400))
def test_junk_is_never_an_event_and_never_an_error(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "j"
    path.write_bytes(junk)
    assert read(path)[0] == []
    assert tail(path) == []
    Journal(path).append(Started())
    assert [event["n"] for event in read(path)[0]] == [0]


def test_a_killed_writer_leaves_a_readable_journal(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from gpas_cli.events import Step; from gpas_cli.store.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1])); n = 0\n"
        "while True:\n    journal.append(Step(n, split='x' * 500)); n += 1\n    print(n, flush=True)\n"
    )
    path = tmp_path / "j"
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    with process, process.stdout:
        shown = [int(process.stdout.readline()) for _ in range(50)][-1]
        process.kill()
    events, _, damaged = read(path)
    assert [event["step"] for event in events] == list(range(len(events)))
    assert len(events) >= shown
    assert damaged == 0


def test_of_a_kind_that_fills_a_journal_the_tail_may_be_thinned(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = [("start", 0), *(("step", i) for i in range(1, 50)), ("spike", 50), ("step", 51), ("outcome", 52)]
    path.write_bytes(b"".join(encode({"n": n, "t": 1.0, "kind": kind}) for kind, n in lines))
    assert [line.n for line in module.lines_in(module.raw_tail(path, newest={"step": 3}))] == [0, 1, 48, 49, 50, 51, 52]
    assert len(module.raw_tail(path, newest={"layers": 1})) == 53


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


# What Postgres reads differently from SQLite; files that cannot be read never reach a database.
VALUES = (
    "an infinite start", "a huge time", "a huge step", "an infinite axis", "a huge axis", "NUL in a name",
    "a lone surrogate", "a stage that is no word",
)  # fmt: skip


@pytest.mark.parametrize(
    ("database", "harm"),
    [
        *(("sqlite_url", harm) for harm in HARM),
        *(pytest.param("schema_url", harm, marks=needs_server) for harm in VALUES),
    ],
)
def test_a_damaged_attempt_does_not_affect_others(
    connect: Connect, request: pytest.FixtureRequest, life: Life, database: str, harm: str
) -> None:
    url = request.getfixturevalue(database)
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
    assert (again.problems, again.attempts) == (done.problems, 0)
    engine.dispose()
    assert maintenance.rebuild(url, life.runs).problems == done.problems
    for problem in done.problems:
        assert str(life.runs) in problem
    maintenance.check(url, life.runs)


NAMED = (
    "a FIFO as journal", "a folder as journal", "deep JSON", "a looping attempt", "a looping stage", "a looping prefix",
)  # fmt: skip


@pytest.mark.parametrize("harm", NAMED)
def test_skipped_attempts_are_named(connect: Connect, sqlite_url: str, life: Life, harm: str) -> None:
    HARM[harm](life.whole())
    (problem,) = sync(connect(sqlite_url), life.runs).problems
    assert problem.startswith(str(life.runs))
    assert sync(connect(sqlite_url), life.runs, keys=["0123456789abcdef"]).attempts == 0


@pytest.mark.parametrize("level", [0, 1], ids=["the attempt", "the stage"])
def test_an_unreadable_folder_is_passed_over(unprivileged: Path, connect: Connect, life: Life, level: int) -> None:
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
