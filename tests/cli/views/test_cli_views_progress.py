"""The progress of a run on a terminal, and the results so far; the view of `gpas train`, and its lines."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from attempts import make_attempt, write_events
from cases import cases
from face import Face
from rich.console import Console
from shipped import EXPERIMENTS, cells_of
from sqlalchemy.exc import OperationalError

from gpas_cli.cli import selection
from gpas_cli.cli.views.events import line
from gpas_cli.cli.views.progress import (
    MOST_CELLS,
    make_reporter,
    make_train_reporter,
    numbers,
    print_submitted,
    results_so_far,
    view,
)
from gpas_cli.cli.views.states import event_marks
from gpas_cli.errors import StoreError
from gpas_cli.events import Spike, event_of
from gpas_cli.grid import Entry
from gpas_cli.grid.variant import vary
from gpas_cli.project import Project
from gpas_cli.report import recorded
from gpas_cli.schedule.scheduler import RunSnapshot, Submitted
from gpas_cli.state.status import Progress, StageStatus

BOARD = RunSnapshot(running=(), followed=(), waiting=(), ended=Counter(), slots=1, starved=False, stopping=False)


def test_the_results_are_made_anew_after_a_job_has_ended_and_only_then() -> None:
    made: list[str] = []

    def results() -> str:
        made.append(f"table {len(made) + 1}")
        return made[-1]

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with make_reporter(console, results) as reporter:
        for ended in ({}, {}, {"done": 1}, {"done": 1}, {"done": 1, "failed": 1}):
            reporter.tick(replace(BOARD, ended=ended))
    assert made == ["table 1", "table 2"]
    shown = console.file
    assert isinstance(shown, io.StringIO)
    assert "1 failed, 0 running" in shown.getvalue()
    assert "table" in shown.getvalue()


def test_piped_output_has_lines_alone() -> None:
    console = Console(file=io.StringIO())
    with make_reporter(console, lambda: 1 / 0) as reporter:  # type: ignore[arg-type,return-value]
        reporter.tick(replace(BOARD, ended={"done": 1}))


def test_the_command_that_watches_has_the_settings_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str, of: Sequence[Entry]) -> str:
        print_submitted(Submitted(jobs=1), of, words)
        return capsys.readouterr().out.strip()

    declared = cells_of("quickstart")[:1]
    assert said("quickstart", of=declared) == "1 job submitted. Watch: gpas status quickstart --watch"
    words = ("quickstart", "gate={like: gpas, init: 0.3}", "--where", "seed=1")
    shown = "gpas status quickstart 'gate={like: gpas, init: 0.3}' --where seed=1 --watch"
    varied = vary(EXPERIMENTS, declared, [words[1]])
    assert said(*words, of=varied) == f"1 job submitted. Watch: {shown}"
    assert said(of=varied) == "1 job submitted."  # `gpas retry CELL`


def shown(face: Face) -> str:
    """Return the table as it is printed, "" if there is none."""
    selection.experiments.cache_clear()
    table = results_so_far(Project.find(None), face.entries())
    printed = io.StringIO()
    if table is not None:
        Console(file=printed, width=100).print(table)
    return printed.getvalue()


def test_the_table_so_far_has_the_numbers_of_the_cells_that_have_ended(face: Face) -> None:
    first, *_ = face.entries()
    assert "100.50" not in shown(face)
    face.ended(first.name, "done", 100.5)
    assert "100.50" in shown(face)


@pytest.mark.parametrize(
    "error", [StoreError("locked"), OperationalError("SELECT 1", {}, Exception("locked")), OSError(28, "disk full")]
)
def test_there_is_no_table_so_far_without_readable_results(
    face: Face, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    face.ended(face.entries()[0].name, "done", 100.5)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(recorded, "read_results", fail)
    assert shown(face) == ""


def test_there_is_no_table_so_far_for_several_grids_for_many_cells_and_for_a_removed_grid(face: Face) -> None:
    selection.experiments.cache_clear()
    where = Project.find(None)
    assert results_so_far(where, [replace(entry, grid="removed") for entry in face.entries()]) is None
    assert results_so_far(where, [*face.entries(), *face.entries("shares")]) is None
    assert results_so_far(where, face.entries() * MOST_CELLS) is None


RUNNING = Progress(
    phase="training", step=30, steps=100, loss=3.14159, lr=1e-3, tokens_per_second=12345.6, losses=(5.0, 4.0, 3.1),
    eta=65.0, grad_norm=0.5, mfu=0.413,
)  # fmt: skip


@cases("cli/cases.yaml")
def test_an_event_as_a_line(event: dict[str, Any], text: str) -> None:
    assert line(event_of(event)) == text


def test_the_numbers_in_a_line() -> None:
    assert numbers(RUNNING) == "30/100  loss 3.142  lr 0.001  gradient 0.5  12,346 tokens/s  MFU 41.3%  1:05 left"
    assert numbers(Progress(phase="tokenising")) == "tokenising"
    assert numbers(Progress(step=1, steps=2)) == "1/2"


def test_a_terminal_gets_a_view_and_others_get_lines(tmp_path: Any) -> None:
    attempt = make_attempt(tmp_path, "0123456789abcdef", {})
    job = type("Job", (), {"id": "g/a", "kind": "pretrain", "name": "a"})()
    write_events(attempt, [Spike(step=7, of="loss", value=9.0, usual=3.0)])
    for terminal in (True, False):
        out = io.StringIO()
        with make_train_reporter(Console(file=out, force_terminal=terminal, width=120, highlight=False)) as reporter:
            reporter.started(job, attempt)
            running = StageStatus(state="running", evidence="", reached=RUNNING)
            reporter.tick(replace(BOARD, running=((None, running),)))
            reporter.finished(job, StageStatus(state="interrupted", evidence="", reached=RUNNING))
        text = out.getvalue()
        assert text.count("spike: loss 9 at update 7, usually 3") == 1
        assert "30/100  loss 3.142" in text
        assert "interrupted g/a" in text


def test_recent_spikes_leave_a_mark() -> None:
    counts = [Progress(), Progress(spikes=2), Progress(spikes=2, skipped=1)]
    assert [event_marks(one) for one in counts] == ["", " ▲2", " ▲2 ▽1"]


def test_the_reason_is_shown_while_no_job_runs() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(view(replace(BOARD, starved=True), [], 3.0))
    assert "waiting for a slot: other jobs hold them" in out.getvalue()
