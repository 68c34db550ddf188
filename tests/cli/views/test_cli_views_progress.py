"""The progress of a run on a terminal: the results so far below the running jobs."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from shipped import EXPERIMENTS, cells_of

from gpas_cli.cli.views.progress import make_reporter, print_submitted
from gpas_cli.grid import Entry
from gpas_cli.grid.variant import vary
from gpas_cli.schedule.scheduler import RunSnapshot, Submitted

BOARD = RunSnapshot(running=(), followed=(), waiting=(), ended={}, slots=1, starved=False, stopping=False)


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
