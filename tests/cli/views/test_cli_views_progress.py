"""The progress of a run on a terminal: the results so far below the running jobs."""

import io
from dataclasses import replace

from rich.console import Console

from gpas_cli.cli.views.progress import make_reporter
from gpas_cli.schedule.scheduler import RunSnapshot

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
