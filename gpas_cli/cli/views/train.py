"""The progress of `gpas train`: the journal of its job, line by line, above the newest numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpas_cli.cli.views.events import line, measured
from gpas_cli.cli.views.progress import PlainReporter, headline, live_view, sparkline
from gpas_cli.events import Outcome, Started, Step
from gpas_cli.period import Period
from gpas_cli.words import stopwatch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from gpas_cli.plan.stage_jobs import StageJob
    from gpas_cli.schedule.summary import RunSnapshot
    from gpas_cli.state.progress import Progress
    from gpas_cli.state.status import StageStatus
    from gpas_cli.store.rundir import AttemptDir

NUMBERS_SECONDS = 10.0  # between two lines of numbers where there is no terminal
SHOWN = (Started, Step, Outcome)  # events that the first line, the numbers and the last line show already


@contextmanager
def make_train_reporter(console: Console) -> Iterator[TrainReporter]:
    """Yield a reporter of one cell for `console`, with a live view if it is a terminal."""
    with live_view(console) as live:
        yield TrainReporter(console, live)


class TrainReporter(PlainReporter):
    """A reporter that prints the events of the newest attempt's journal."""

    def __init__(self, console: Console, live: Live | None = None):
        super().__init__(console)
        self.live = live
        self._numbers = Period(NUMBERS_SECONDS, at_once=True)
        self._attempt: AttemptDir | None = None
        self._offset = 0

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        super().started(job, attempt)
        self.say(f"run directory {attempt.path}")
        self._attempt = attempt
        self._offset = 0

    def finished(self, job: StageJob, status: StageStatus) -> None:
        self._tell()
        if status.progress and self.live is None:
            self.say(numbers(status.progress))
        super().finished(job, status)

    def tick(self, board: RunSnapshot) -> None:
        self._tell()
        seen = [status.progress for _, status in board.running if status.progress]
        stepping = [progress for progress in seen if progress.step is not None]
        if self.live is not None:
            self.live.update(view(board, seen, time.monotonic() - self.began))
        elif (stepping or board.starved) and self._numbers.is_over():
            self.say(numbers(stepping[0]) if stepping else waiting(board))

    def _tell(self) -> None:
        """Print a line for each new event that is shown."""
        from gpas_cli.store.journal import read

        if self._attempt is None:
            return
        try:
            lines, self._offset, _ = read(self._attempt.journal_path, self._offset)
        except OSError:
            return
        for found in lines:
            text = line(found.event) if not isinstance(found.event, SHOWN) else ""
            if text:
                self.say(text)


def numbers(progress: Progress) -> str:
    """Return the newest numbers in one line."""
    if progress.step is None:
        return progress.phase
    left = [f"{stopwatch(progress.eta)} left"] if progress.eta else []
    return "  ".join([*measured(progress), *left])


def waiting(board: RunSnapshot) -> str:
    """Return why nothing is running yet."""
    return "waiting for a slot: other jobs hold them" if board.starved else "starting"


def view(board: RunSnapshot, seen: list[Progress], elapsed: float) -> RenderableType:
    """Return the numbers, the losses as bars, and the elapsed time."""
    from rich.console import Group
    from rich.text import Text

    lines = [part for p in seen for part in (numbers(p), sparkline(p.losses, 60)) if part]
    return Group(*(Text(line, style="cyan") for line in lines or [waiting(board)]), Text(headline(board, elapsed)))
