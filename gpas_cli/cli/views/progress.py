"""The progress of a run: on a terminal the running jobs and the results so far, redrawn in place; plain lines when
piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpas_cli.period import Period
from gpas_cli.spec.stage import called, main_result
from gpas_cli.words import stopwatch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from gpas_cli.plan.stage_jobs import StageJob
    from gpas_cli.schedule.summary import Reporter, RunSnapshot
    from gpas_cli.state.status import StageStatus
    from gpas_cli.store.rundir import AttemptDir

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
PLAIN_SECONDS = 30.0  # between two lines about progress where there is no terminal


@contextmanager
def make_reporter(console: Console, results: Callable[[], RenderableType | None] = lambda: None) -> Iterator[Reporter]:
    """Yield a reporter for `console`: a live one if it is a terminal, which shows `results` after each ended job."""
    with live_view(console) as live:
        yield LiveReporter(console, live, results) if live else PlainReporter(console)


@contextmanager
def live_view(console: Console) -> Iterator[Live | None]:
    """Yield a part of the terminal that is redrawn in place and erased at the end; None if there is no terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield live


class PlainReporter:
    """Prints a line when a job starts or ends, and a summary line every 30 seconds."""

    def __init__(self, console: Console):
        self.console = console
        self.began = time.monotonic()
        self._summaries = Period(PLAIN_SECONDS, at_once=False)
        self.noticed: set[str] = set()

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        again = f", attempt {attempt.number}" if attempt.number > 1 else ""
        self.say(f"started     {job.id} ({job.kind}{again})")

    def finished(self, job: StageJob, status: StageStatus) -> None:
        if status.state != "missing":  # cells that were never started are listed together at the end
            self.say(f"{called(status.state, status.metrics):<11} {job.id}{result(status)}")

    def tick(self, board: RunSnapshot) -> None:
        if not self._summaries.is_over():
            return
        doing = "; ".join(f"{job.name} {progress_text(status)}" for job, status in board.running)
        self.say(f"{headline(board, time.monotonic() - self.began)}{': ' if doing else ''}{doing}")

    def notice(self, message: str) -> None:
        if message not in self.noticed:
            self.noticed.add(message)
            self.say(message)

    def say(self, text: str) -> None:
        elapsed = stopwatch(time.monotonic() - self.began)
        self.console.print(f"[{elapsed:>5}] {text}", markup=False)


class LiveReporter(PlainReporter):
    """Prints the same lines above a table of the running jobs and one of the results so far."""

    def __init__(self, console: Console, live: Live, results: Callable[[], RenderableType | None] = lambda: None):
        super().__init__(console)
        self.live = live
        self.results = results
        self._ended: Mapping[str, int] = {}
        self._results: RenderableType | None = None

    def tick(self, board: RunSnapshot) -> None:
        from rich.console import Group

        if board.ended != self._ended:
            self._ended = board.ended
            self._results = self.results()
        running = render(board, time.monotonic() - self.began)
        self.live.update(running if self._results is None else Group(running, "", self._results))


def render(board: RunSnapshot, elapsed: float) -> RenderableType:
    """Return a table of running and followed jobs above a line of totals."""
    from rich.console import Group
    from rich.text import Text

    from gpas_cli.cli.views.columns import Cell, Columns

    numbers = ("step", "loss", "tokens/s", "left")
    rows: list[tuple[Cell, ...]] = []
    for job, status in board.running:
        *words, losses = _row(job, status)
        rows.append((*words, (losses, "cyan")))
    rows += [tuple((text, "dim") for text in _row(job, status)) for job, status in board.followed]
    droppable = ("training loss", "tokens/s")
    table = Columns(("job", *numbers, "training loss"), rows, "", frozenset(numbers), droppable, wrapped=False)
    return Group(table, Text(headline(board, elapsed), style="bold"))


def headline(board: RunSnapshot, elapsed: float) -> str:
    """Return how many jobs are in each state, and the elapsed time."""
    parts = [f"{count} {state}" for state, count in board.ended.items() if count]
    parts += [f"{len(board.running)} running", f"{len(board.waiting)} waiting"]
    if board.followed:
        parts.append(f"{len(board.followed)} running under another gpas")
    tail = "; other jobs hold the slots" if board.starved and not board.running else ""
    stopping = "; jobs are saving and exiting, Ctrl-C again kills them" if board.stopping else ""
    return f"{', '.join(parts)} after {stopwatch(elapsed)}{tail}{stopping}"


def _row(job: StageJob, status: StageStatus) -> tuple[str, ...]:
    progress = status.progress
    if progress is None or progress.step is None:
        return (job.name, progress.phase if progress else status.state, "", "", "", "")
    speed = f"{progress.tokens_per_second:,.0f}" if progress.tokens_per_second else ""
    left = stopwatch(progress.eta) if progress.eta is not None else ""
    loss = f"{progress.loss:.3f}{spike_mark(progress.spikes)}" if progress.loss is not None else ""
    return (job.name, progress.counted, loss, speed, left, sparkline(progress.losses))


def progress_text(status: StageStatus) -> str:
    """Return the progress of a job in a few words."""
    progress = status.progress
    if progress is None or progress.step is None:
        return progress.phase if progress else status.state
    loss = f" loss {progress.loss:.3f}" if progress.loss is not None else ""
    left = f", {stopwatch(progress.eta)} left" if progress.eta else ""
    return f"{progress.counted}{loss}{left}"


def result(status: StageStatus) -> str:
    """Return how a job ended, as a suffix to its name and state."""
    found = main_result(status.metrics) if status.state in ("done", "diverged") else None
    if found:
        metric, value = found
        return f": {metric.words} {metric.shown(value)}"
    if status.state == "interrupted" and status.outcome and status.progress and not status.cause:
        saved = status.progress.saved
        return ": nothing to save yet" if saved is None else f": saved at update {saved}"
    return f": {status.cause or status.evidence}" if status.state != "done" else ""


def sparkline(values: tuple[float, ...], width: int = WIDTH) -> str:
    """Return the last `width` finite values as bars between their minimum and maximum."""
    shown = [value for value in values if value == value and abs(value) < float("inf")][-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[int((value - low) / span * (len(BARS) - 1)) if span else 0] for value in shown)


def spike_mark(count: int) -> str:
    """Return " ▲2" for two recent spikes of the loss or gradient norm, "" for none."""
    return f" ▲{count}" if count else ""
