"""The view of text being tokenised: a bar per split on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpas_cli.cli.progress_view import PLAIN_SECONDS
from gpas_cli.words import stopwatch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from gpas_cli.data.prepare import Need
    from gpas_cli.data.shards import Totals


class Pace:
    """What one split has come to since it was first looked at: speed and, where an end is known, the time to it."""

    def __init__(self, need: Need | None, totals: Totals, now: float):
        self.need, self.first, self.began = need, totals, now
        self.last, self.now = totals, now

    def look(self, totals: Totals, now: float) -> None:
        self.last, self.now = totals, now

    @property
    def tokens_per_second(self) -> float:
        """Tokens made since the first look; what was there already does not count."""
        return (self.last.tokens - self.first.tokens) / max(self.now - self.began, 1e-9)

    @property
    def left(self) -> float | None:
        """Seconds to the end, None where it is not known."""
        if self.need is None:
            return None
        done = self.need.of(self.last) - self.need.of(self.first)
        missing = max(0, self.need.amount - self.need.of(self.last))
        return missing * (self.now - self.began) / done if done > 0 else None

    def words(self) -> str:
        """Documents, tokens, tokens per second and the time left."""
        speed = f", {self.tokens_per_second:,.0f} tokens/s" if self.now > self.began else ""
        left = f", {stopwatch(self.left)} left" if self.left is not None else ""
        return f"{self.last.documents:,} documents, {self.last.tokens:,} tokens{speed}{left}"


class TokeniseView:
    """A `Watch` for `gpas_cli.data.prepare.build`: bars where `console` is a terminal, else a line per half minute."""

    def __init__(self, console: Console):
        self.console = console
        self._paces: dict[str, Pace] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        self._next = time.monotonic() + PLAIN_SECONDS

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
        """Something that takes time and cannot be counted."""
        self.console.print(message, markup=False)

    def note(self, message: str) -> None:
        """What a builder tells. Bars and lines show most of it anyway, but not that somebody else is at it."""
        from gpas_cli.data.shards import WAITING

        if message.startswith(WAITING):
            self.notice(message)

    def watch(self, split: str, need: Need | None, totals: Totals) -> None:
        """There is so much of the split by now."""
        now = time.monotonic()
        pace = self._paces.setdefault(split, Pace(need, totals, now))
        pace.look(totals, now)
        if self._progress is not None:
            self._draw(self._progress, split, pace)
        elif now >= self._next:
            self._next = now + PLAIN_SECONDS
            self.console.print(f"{split}: {pace.words()}", markup=False)

    def _draw(self, progress: Progress, split: str, pace: Pace) -> None:
        if split not in self._bars:
            # Without a total the bar only shows that something moves.
            total = pace.need.amount if pace.need else None
            self._bars[split] = progress.add_task(split, total=total, words="")
        done = pace.need.of(pace.last) if pace.need else 0
        progress.update(self._bars[split], completed=done, words=pace.words())
