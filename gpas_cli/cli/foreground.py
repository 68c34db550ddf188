"""The view of `gpas train`: what its job journals, line by line, above the newest numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpas_cli.cli.live import PlainReporter, clock, headline, live_view, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from gpas_cli.launch.progress import Progress
    from gpas_cli.launch.stages import StageJob
    from gpas_cli.launch.summary import Board
    from gpas_cli.launch.watch import Sighting
    from gpas_cli.store.rundir import AttemptDir

EVERY = 10.0  # seconds between two lines of numbers where there is no terminal


@contextmanager
def make_foreground(console: Console) -> Iterator[Foreground]:
    """A reporter of one cell for `console`: with a live view where it is a terminal."""
    with live_view(console) as live:
        yield Foreground(console, live)


class Foreground(PlainReporter):
    """Follows the journal of the newest attempt."""

    def __init__(self, console: Console, live: Live | None = None):
        super().__init__(console)
        self.live, self.next = live, 0.0
        self._attempt: AttemptDir | None = None
        self._offset = 0

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        super().started(job, attempt)
        self.say(f"run directory {attempt.path}")
        self._attempt, self._offset = attempt, 0

    def finished(self, job: StageJob, sighting: Sighting) -> None:
        self._tell()
        if sighting.progress and self.live is None:
            self.say(numbers(sighting.progress))
        super().finished(job, sighting)

    def tick(self, board: Board) -> None:
        self._tell()
        seen = [sighting.progress for _, sighting in board.running if sighting.progress]
        stepping = [progress for progress in seen if progress.step is not None]
        if self.live is not None:
            self.live.update(view(board, seen, time.monotonic() - self.began))
        elif time.monotonic() >= self.next and (stepping or board.starved):
            self.next = time.monotonic() + EVERY
            self.say(numbers(stepping[0]) if stepping else waiting(board))

    def _tell(self) -> None:
        """A line for each new event that is worth one."""
        from gpas_cli.store.journal import read

        if self._attempt is None:
            return
        try:
            events, self._offset, _ = read(self._attempt.journal_path, self._offset)
        except OSError:
            return
        for event in events:
            if line := told(event):
                self.say(line)


def told(event: Mapping[str, Any]) -> str:
    """An event in a line; "" for those that the numbers show, and for what this version does not know."""
    kind, step = event["kind"], event.get("step")
    if kind == "phase":
        resumed = f" from update {event['resumed_from']}" if event.get("resumed_from") else ""
        return f"{event.get('name')}{resumed}{': ' if event.get('detail') else ''}{event.get('detail', '')}"
    if kind == "spike":
        what = "loss" if event.get("of") == "loss" else "gradient norm"
        return f"spike: {what} {_short(event.get('value'))} at update {step}, usually {_short(event.get('usual'))}"
    if kind == "evaluation":
        loss, perplexity = _short(event.get("loss")), _short(event.get("perplexity"))
        return f"update {step}: validation loss {loss}, perplexity {perplexity}"
    if kind == "profile":
        return f"profiled {event.get('updates')} updates: {event.get('trace')}\n{event.get('operators')}"
    if kind == "checkpoint":
        return f"update {step} saved"
    return f"warning: {event.get('message')}" if kind == "warning" else ""


def numbers(progress: Progress) -> str:
    """The newest numbers in one line."""
    if progress.step is None:
        return progress.phase
    parts = [f"{progress.step}/{progress.steps}"]
    for label, value in (("loss", progress.loss), ("lr", progress.lr), ("gradient", progress.grad_norm)):
        parts += [f"{label} {_short(value)}"] if value is not None else []
    parts += [f"{progress.tokens_per_second:,.0f} tokens/s"] if progress.tokens_per_second else []
    parts += [f"MFU {progress.mfu:.1%}"] if progress.mfu else []
    parts += [f"{clock(progress.eta)} left"] if progress.eta else []
    return "  ".join(parts)


def waiting(board: Board) -> str:
    """Why nothing runs yet."""
    return "waiting for a slot: other jobs hold them" if board.starved else "starting"


def view(board: Board, seen: list[Progress], elapsed: float) -> RenderableType:
    """The numbers, the losses as bars, and how long it has been going on."""
    from rich.console import Group
    from rich.text import Text

    lines = [part for p in seen for part in (numbers(p), sparkline(p.losses, 60)) if part]
    return Group(*(Text(line, style="cyan") for line in lines or [waiting(board)]), Text(headline(board, elapsed)))


def _short(value: object) -> str:
    """A journalled number in four digits; the word of one that is not finite."""
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
