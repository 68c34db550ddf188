"""`gpas logs`: journal events as text and the output of the process; following neither cuts nor loses a line."""

import json
import tracemalloc
from pathlib import Path

import pytest
from cases import tables
from face import START, TRAINED, Face, end, step

from gpas_cli.cli.commands import logs
from gpas_cli.cli.views.log import AttemptLog
from gpas_cli.events import event_of
from gpas_cli.store import journal
from gpas_cli.store.journal import Journal, encode
from gpas_cli.store.rundir import AttemptDir


def log_of(folder: Path) -> AttemptLog:
    return AttemptLog(AttemptDir(folder), "pretrain", raw=False, headed=True)


def test_a_healthy_cell_has_a_log(face: Face) -> None:
    face.ended("pre-s1", "done", 4.48)
    lines = face("logs", "pre-s1").out.splitlines()
    assert lines[0].startswith("==> pretrain ")
    texts = [text[21:] for text in lines[1:] if not text.startswith("|")]
    assert texts == tables("cli/cases.yaml")["a_healthy_cell_has_a_log"]
    assert lines[-2] == "| done"  # what the process printed comes before its outcome


def test_attempts_follow_each_other_and_tail_counts_from_the_end(face: Face) -> None:
    face.attempt("pre-s1", ("start", START), ("outcome", end("failed", cause="no luck")), log="Traceback\nboom\n")
    face.ended("pre-s1", "done", 4.48)
    out = face("logs", "pre-s1").out
    assert out.index("| boom") < out.index("failed at update 4: no luck") < out.index("attempt 2")
    lines = out.splitlines()
    for number in (0, 1, 3, 11, 14, 99):
        assert face("logs", "pre-s1", "--tail", str(number)).out.splitlines() == lines[len(lines) - number :][-99:]
    assert face("logs", "pre-s1", "-f", "-n", "1").out.splitlines() == lines[-1:]  # it has ended


def test_events_stay_raw(face: Face) -> None:
    face.ended("pre-s1", "done", 4.48)
    events = [json.loads(text) for text in face("logs", "pre-s1", "--events").out.splitlines()]
    assert [event["kind"] for event in events] == [kind for kind, _ in TRAINED] + ["outcome"]
    assert [event["n"] for event in events] == list(range(10))


def test_ctrl_c_exits_quietly(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    face.attempt("pre-s1", ("start", START))

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", interrupt)
    monkeypatch.setattr(logs, "_ENDED", ())
    said = face("logs", "pre-s1", "-f")
    assert said.err == ""
    assert said.out.count("started on there") == 1


def test_an_unfinished_line_is_printed_once_it_is_complete(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    printed = []
    for piece in ("one\ntw", "o\n", "", "three"):
        with (tmp_path / "log.txt").open("a") as file:
            file.write(piece)
        printed.append(list(log.new_lines(whole=False)))
    assert printed == [["| one"], ["| two"], [], []]
    assert list(log.new_lines(whole=True)) == ["| three"]


def test_following_prints_every_event_once(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    writer = Journal(tmp_path / "journal.jsonl")
    lines: list[str] = []
    for number in range(1, 5):
        writer.append(event_of({"kind": "step", **step(number)}))
        lines += log.new_lines(whole=False)
    writer.append(event_of({"kind": "outcome", **end("interrupted")}))
    writer.append(event_of({"kind": "start", **START}))  # a requeued job
    writer.close()
    lines += log.new_lines(whole=True)
    assert [text[21:24] for text in lines] == ["1/4", "2/4", "3/4", "4/4", "int", "sta"]


@pytest.mark.long
def test_a_large_journal_is_not_loaded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STRETCH_BYTES", 1 << 14)
    line = {"t": 0.0, "kind": "layers", "step": 1, "values": {"gate": [0.1] * 100}}
    size = 0
    with (tmp_path / "journal.jsonl").open("wb") as file:
        for number in range(4_000):
            size += file.write(encode({"n": number, **line}))
        file.write(encode({"n": 4_000, "t": 0.0, "kind": "warning", "message": "last"}))
    assert size > 1_800_000
    for read in (lambda: list(log_of(tmp_path).new_lines(whole=True)), lambda: log_of(tmp_path).last(1, whole=True)):
        tracemalloc.start()
        (text,) = read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert text.endswith("warning: last")
        assert peak < 1_000_000
