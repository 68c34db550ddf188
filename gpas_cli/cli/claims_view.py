"""Verdicts on claims as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gpas_cli.report.claims.verdict import Verdict

STYLES = {"supported": "green", "contradicted": "red", "undecided": "yellow"}


def overview(verdicts: Sequence[Verdict]) -> Iterator[RenderableType]:
    """Yield a table with a line for each claim."""
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("claim", "verdict", "parts", "effect", "p", "seeds"):
        drawn.add_column(title)
    for verdict in verdicts:
        name = verdict.claim.name + (" (toy size)" if verdict.claim.toy else "")
        counts = verdict.counts()
        parts = f"{counts['supported']}/{len(verdict.parts)}" if verdict.parts else "-"
        low, high = verdict.effects or (None, None)
        effect = "-" if low is None or high is None else f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        p = "-" if verdict.p is None else f"{verdict.p:.2g}"
        fewest, most = verdict.n
        seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        drawn.add_row(name, Text(verdict.verdict, STYLES[verdict.verdict]), parts, effect, p, seeds)
    yield drawn


def detailed(verdicts: Sequence[Verdict]) -> Iterator[RenderableType]:
    """Yield each claim with its parts."""
    yield from overview(verdicts)
    for verdict in verdicts:
        for part in verdict.parts:
            yield f"{part.title}: {part.verdict} {part.effect} {part.interval} p {part.p} {part.adjusted} {part.needed}"
        yield verdict.command
