"""The progress of tokenising: a bar per split on a terminal, plain lines when piped."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpas_cli.cli.views.progress import PLAIN_SECONDS
from gpas_cli.period import Period
from gpas_cli.words import stopwatch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from gpas_cli.data.prepare import Need
    from gpas_cli.data.shards import Totals


class Pace:
    """The speed of tokenising one split since the first observation and, where the total is known, the time left."""

    def __init__(self, need: Need | None, totals: Totals, now: float):
        self.need = need
        self.began = now
        self.first = totals
        self.update(totals, now)

    def update(self, totals: Totals, now: float) -> None:
        """Record the totals of the split at time `now`."""
        self.last = totals
        self.now = now

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second since the first observation; earlier tokens do not count."""
        return (self.last.tokens - self.first.tokens) / max(self.now - self.began, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds left, None if unknown."""
        if self.need is None:
            return None
        done = self.need.of(self.last) - self.need.of(self.first)
        missing = max(0, self.need.amount - self.need.of(self.last))
        return missing * (self.now - self.began) / done if done > 0 else None

    def words(self) -> str:
        """Return documents, tokens, tokens per second and the time left, as text."""
        speed = f", {self.tokens_per_second:,.0f} tokens/s" if self.now > self.began else ""
        left = f", {stopwatch(self.left)} left" if self.left is not None else ""
        return f"{self.last.documents:,} documents, {self.last.tokens:,} tokens{speed}{left}"


class TokeniseView:
    """A `Watch` for `gpas_cli.data.prepare.build`: bars if `console` is a terminal, else a line every 30 seconds."""

    def __init__(self, console: Console):
        self.console = console
        self._paces: dict[str, Pace] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        self._lines = Period(PLAIN_SECONDS, at_once=False)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def notice(self, message: str) -> None:
        """Print that something takes time and has no progress to show."""
        self.console.print(message, markup=False)

    def note(self, message: str) -> None:
        """Print a builder's message that another process holds the split; bars and lines show the others already."""
        from gpas_cli.data.shards import WAITING

        if message.startswith(WAITING):
            self.notice(message)

    def watch(self, split: str, need: Need | None, totals: Totals) -> None:
        """Show the totals of a split."""
        now = time.monotonic()
        pace = self._paces.setdefault(split, Pace(need, totals, now))
        pace.update(totals, now)
        if self._progress is not None:
            self._draw(self._progress, split, pace)
        elif self._lines.is_over():
            self.console.print(f"{split}: {pace.words()}", markup=False)

    def _draw(self, progress: Progress, split: str, pace: Pace) -> None:
        if split not in self._bars:
            # Without a total, the bar only shows activity.
            total = pace.need.amount if pace.need else None
            self._bars[split] = progress.add_task(split, total=total, words="")
        done = pace.need.of(pace.last) if pace.need else 0
        progress.update(self._bars[split], completed=done, words=pace.words())
