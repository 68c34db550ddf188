"""The progress of runs: on a terminal tables that are redrawn in place, plain lines when piped.

Also what a command that only submits jobs prints, and the results so far of a running grid.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from gpas_cli.cli.console import say
from gpas_cli.cli.selection import experiments
from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.cli.views.events import line, measured, sparkline
from gpas_cli.cli.views.states import event_marks
from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome, Started, Step
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.variant import SEPARATOR
from gpas_cli.period import Period
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import Reporter, RunSnapshot, Submitted
from gpas_cli.spec.extensions import main_result
from gpas_cli.spec.stage import called
from gpas_cli.state.status import Progress, StageStatus
from gpas_cli.store.journal import read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.words import count, fixed, stopwatch

_PLAIN_SECONDS = 30.0  # between two lines about progress where there is no terminal
_NUMBERS_SECONDS = 10.0  # between two lines of numbers where there is no terminal
_SHOWN = (Started, Step, Outcome)  # events that the first line, the numbers and the last line show already
MOST_CELLS = 200  # a larger table does not fit a screen and takes longer to compute


@contextmanager
def make_reporter(console: Console, results: Callable[[], RenderableType | None] = lambda: None) -> Iterator[Reporter]:
    """Yield a reporter for `console`: a live one if it is a terminal, which shows `results` after each ended job."""
    with _live_view(console) as live:
        yield _RunReporter(console, live, results)


def _live_view(console: Console) -> AbstractContextManager[Live | None]:
    """Return a part of the terminal that is redrawn in place and erased at the end; of None without a terminal."""
    return Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else nullcontext()


class _RunReporter(Reporter):
    """Prints a line when a job starts or ends. Below, a terminal has tables of the running jobs and of the results so
    far; otherwise a summary line is printed every 30 seconds.
    """

    def __init__(
        self, console: Console, live: Live | None, results: Callable[[], RenderableType | None] = lambda: None
    ) -> None:
        self.console = console
        self.live = live
        self.results = results
        self.began = time.monotonic()
        self._summaries = Period(_PLAIN_SECONDS, at_once=False)
        self._ended: Mapping[str, int] = {}
        self._results: RenderableType | None = None
        self.noticed: set[str] = set()

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        again = f", attempt {attempt.number}" if attempt.number > 1 else ""
        self.say(f"started     {job.id} ({job.kind}{again})")

    def finished(self, job: StageJob, status: StageStatus) -> None:
        if status.state != "missing":  # cells that were never started are listed together at the end
            self.say(f"{called(status.state, status.metrics):<11} {job.id}{result(status)}")

    def tick(self, snapshot: RunSnapshot) -> None:
        if self.live is None:
            self._summarise(snapshot)
            return
        if snapshot.ended != self._ended:
            self._ended = snapshot.ended
            self._results = self.results()
        running = _render(snapshot, time.monotonic() - self.began)
        self.live.update(running if self._results is None else Group(running, "", self._results))

    def _summarise(self, snapshot: RunSnapshot) -> None:
        if not self._summaries.is_over():
            return
        doing = []
        for name, counted, loss, _, left, _ in (_row(job, status) for job, status in snapshot.running):
            doing.append(f"{name} {counted}{loss and f' loss {loss}'}{left and f', {left} left'}")
        running = f": {'; '.join(doing)}" if doing else ""
        self.say(f"{_headline(snapshot, time.monotonic() - self.began)}{running}")

    def notice(self, message: str) -> None:
        if message not in self.noticed:
            self.noticed.add(message)
            self.say(message)

    def say(self, text: str) -> None:
        elapsed = stopwatch(time.monotonic() - self.began)
        self.console.print(f"[{elapsed:>5}] {text}")


def _render(snapshot: RunSnapshot, elapsed: float) -> RenderableType:
    """Return a table of running and followed jobs above a line of totals."""
    numbers = ("step", "loss", "tokens/s", "left")
    rows: list[tuple[Cell, ...]] = []
    for job, status in snapshot.running:
        *words, losses = _row(job, status)
        rows.append((*words, (losses, "cyan")))
    rows += [tuple((text, "dim") for text in _row(job, status)) for job, status in snapshot.followed]
    droppable = ("training loss", "tokens/s")
    table = Columns(("job", *numbers, "training loss"), rows, "", frozenset(numbers), droppable, wrapped=False)
    return Group(table, Text(_headline(snapshot, elapsed), style="bold"))


def _headline(snapshot: RunSnapshot, elapsed: float) -> str:
    """Return how many jobs are in each state, and the elapsed time."""
    parts = [f"{count:,} {state}" for state, count in snapshot.ended.items() if count]
    parts += [f"{len(snapshot.running):,} running", f"{len(snapshot.waiting):,} waiting"]
    if snapshot.followed:
        parts.append(f"{len(snapshot.followed):,} running under another gpas")
    tail = "; other jobs hold the slots" if snapshot.starved and not snapshot.running else ""
    stopping = "; jobs are saving and exiting, Ctrl-C again kills them" if snapshot.stopping else ""
    return f"{', '.join(parts)} after {stopwatch(elapsed)}{tail}{stopping}"


def _row(job: StageJob, status: StageStatus) -> tuple[str, ...]:
    progress = status.progress
    if progress is None or progress.step is None:
        return (job.name, progress.phase if progress else status.state, "", "", "", "")
    speed = f"{progress.tokens_per_second:,.0f}" if progress.tokens_per_second else ""
    left = stopwatch(progress.eta) if progress.eta is not None else ""
    loss = f"{fixed(progress.loss, 3)}{event_marks(progress)}" if progress.loss is not None else ""
    return (job.name, progress.counted, loss, speed, left, sparkline(progress.losses))


def result(status: StageStatus) -> str:
    """Return how a job ended, as a suffix to its name and state."""
    found = main_result(status.metrics) if status.state in ("done", "diverged") else None
    if found:
        metric, value = found
        return f": {metric.words} {metric.shown(value)}"
    if status.state in ("interrupted", "cancelled") and status.outcome and status.progress and not status.cause:
        saved = status.progress.saved
        return ": nothing to save yet" if saved is None else f": saved at update {saved}"
    return f": {status.cause or status.evidence}" if status.state != "done" else ""


@contextmanager
def make_train_reporter(console: Console) -> Iterator[_TrainReporter]:
    """Yield a reporter of one cell for `console`, with a live view if it is a terminal."""
    with _live_view(console) as live:
        yield _TrainReporter(console, live)


class _TrainReporter(_RunReporter):
    """A reporter that prints the events of the newest attempt's journal."""

    def __init__(self, console: Console, live: Live | None):
        super().__init__(console, live)
        self._numbers = Period(_NUMBERS_SECONDS, at_once=True)
        self._attempt: AttemptDir | None = None

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        super().started(job, attempt)
        self.say(f"run directory {attempt.path}")
        self._attempt = attempt
        self._offset = 0

    def finished(self, job: StageJob, status: StageStatus) -> None:
        self._print_events()
        if status.progress and self.live is None:
            self.say(numbers(status.progress))
        super().finished(job, status)

    def tick(self, snapshot: RunSnapshot) -> None:
        self._print_events()
        seen = [status.progress for _, status in snapshot.running if status.progress]
        stepping = [progress for progress in seen if progress.step is not None]
        if self.live is not None:
            self.live.update(view(snapshot, seen, time.monotonic() - self.began))
        elif (stepping or snapshot.starved) and self._numbers.is_over():
            self.say(numbers(stepping[0]) if stepping else _waiting(snapshot))

    def _print_events(self) -> None:
        """Print a line for each new event that is shown."""
        if self._attempt is None:
            return
        try:
            lines, self._offset, _ = read(self._attempt.journal_path, self._offset)
        except OSError:
            return
        for found in lines:
            text = line(found.event) if not isinstance(found.event, _SHOWN) else ""
            if text:
                self.say(text)


def numbers(progress: Progress) -> str:
    """Return the newest numbers in one line."""
    if progress.step is None:
        return progress.phase
    left = [f"{stopwatch(progress.eta)} left"] if progress.eta else []
    return "  ".join([*measured(progress), *left])


def _waiting(snapshot: RunSnapshot) -> str:
    """Return why nothing is running yet."""
    return "waiting for a slot: other jobs hold them" if snapshot.starved else "starting"


def view(snapshot: RunSnapshot, seen: list[Progress], elapsed: float) -> RenderableType:
    """Return the numbers, the losses as bars, and the elapsed time."""
    lines = [part for p in seen for part in (numbers(p), sparkline(p.losses, 60)) if part]
    return Group(
        *(Text(line, style="cyan") for line in lines or [_waiting(snapshot)]), Text(_headline(snapshot, elapsed))
    )


class Notices(Reporter):
    """A reporter for a command that submits jobs and exits: it prints only notices."""

    def notice(self, message: str) -> None:
        say(message)


def print_submitted(done: Submitted, chosen: Sequence[Entry], words: Sequence[str] = ()) -> None:
    """Print what was submitted and why the rest was not. `words` selected cells with settings of the command line."""
    for text in (*(f"submitted {batch.text}" for batch in done.batches), *done.notes):
        say(text)
    parts = [f"{count(done.jobs, 'job')} submitted"]
    parts += [f"{done.followed} already queued or running"] if done.followed else []
    parts += [f"{len(done.left)} not yet submitted: the queue is full"] if done.left else []
    ended = done.over - done.unknown
    parts += [f"{ended} failed or cancelled earlier (gpas retry)"] if ended else []
    parts += [f"{done.unknown} in an unknown state (gpas status shows why)"] if done.unknown else []
    parts += [f"{len(done.blocked)} blocked by failed prerequisites (gpas retry)"] if done.blocked else []
    varied = any(SEPARATOR in entry.name for entry in chosen)
    named = shlex.join(words if varied else dict.fromkeys(entry.grid for entry in chosen if entry.declared))
    watch = (". Watch: ", (f"gpas status {named} --watch", "bold")) if named else (".",)
    say(Text.assemble((", ".join(parts), "bold"), *watch))


def results_so_far(project: Project, entries: Sequence[Entry]) -> RenderableType | None:
    """Return the current table of the entries' grid, None if it cannot be computed.

    None also for several grids, for more than MOST_CELLS cells, and for a grid that is no longer declared. The caller
    runs jobs: a database that is locked or full for a moment must not end them.
    """
    names = {entry.grid for entry in entries}
    grid = experiments().grids.get(names.pop()) if len(names) == 1 else None
    if grid is None or len(entries) > MOST_CELLS:
        return None
    # A dry run, and a run before its first result, need none of them.
    from sqlalchemy.exc import SQLAlchemyError

    from gpas_cli.report.recorded import recorded
    from gpas_cli.report.tables.cell_text import sheet
    from gpas_cli.report.tables.grid_table import build
    from gpas_cli.report.tables.sheet import Drawn

    spec = replace(grid.table_spec, published={})
    try:
        with recorded(project, entries, database=False) as known:
            table = build(entries, known.states, known.results, spec)
    except (GpasError, SQLAlchemyError, OSError):
        return None
    return Drawn(replace(sheet(table), notes=()))
