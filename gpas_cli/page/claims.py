"""Verdicts on claims as the page shows them: texts, and for each part a line with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpas_cli.report.claims.declared import select_claims
from gpas_cli.report.claims.evaluate import evaluate
from gpas_cli.report.claims.verdict import UNDECIDED
from gpas_cli.report.papers import load
from gpas_cli.words import count, listed

if TYPE_CHECKING:
    from gpas_cli.grid.claim import Claim
    from gpas_cli.grid.declared import Experiments
    from gpas_cli.report.claims.verdict import Part, Verdict
    from gpas_cli.report.recorded import Recorded

DRAWING_WIDTH = 180.0  # of an interval, in its own units
DRAWING_MARGIN = 0.08  # a fraction of the range of values, on both sides


@dataclass(frozen=True)
class Drawing:
    """Positions from 0 to DRAWING_WIDTH: the claimed range, the effect, its interval, and the published effect."""

    claimed: tuple[float, float]
    effect: float | None
    interval: tuple[float, float] | None
    published: float | None

    @property
    def width(self) -> float:
        return DRAWING_WIDTH


@dataclass(frozen=True)
class PartView:
    """One comparison of a claim. `drawing` is None without a number."""

    title: str
    claimed: str
    verdict: str
    effect: str
    published: str
    p: str
    seeds: int
    remark: str
    drawing: Drawing | None


@dataclass(frozen=True)
class ClaimView:
    """One claim. `command` runs the cells that are missing, or further seeds."""

    name: str
    statement: str
    source: str
    toy: bool
    verdict: str
    summary: str
    reason: str
    parts: tuple[PartView, ...]
    missing: str
    command: str

    @property
    def anchor(self) -> str:
        return f"claim-{self.name}{'-toy' if self.toy else ''}"

    @property
    def claimed(self) -> str:
        """The claimed range, "" if the parts differ in it."""
        found = {part.claimed for part in self.parts}
        return next(iter(found)) if len(found) == 1 else ""

    @property
    def has_numbers(self) -> bool:
        return any(part.seeds for part in self.parts)


def claim_views(experiments: Experiments, known: Recorded, grids: Sequence[str]) -> Iterator[ClaimView]:
    """Yield the claims about these grids alone, whose cells `known` covers."""
    for claim in select_claims(experiments, grids=grids) if grids else ():
        if set(claim.grids) & set(experiments.grids) <= set(grids):
            yield _view(claim, evaluate(claim, known))


def _view(claim: Claim, verdict: Verdict) -> ClaimView:
    counts = [f"{number} of {len(verdict.parts)} parts {word}" for word, number in verdict.counts().items() if number]
    return ClaimView(
        name=claim.name,
        statement=claim.statement,
        source=_source(claim),
        toy=claim.toy,
        verdict=verdict.verdict,
        summary=", ".join(counts) if len(verdict.parts) > 1 else "",
        reason=verdict.reason,
        parts=tuple(_part(part, verdict.parts) for part in verdict.parts),
        missing=_missing(verdict),
        command=verdict.command,
    )


def _source(claim: Claim) -> str:
    paper = str(load(claim.source.paper)["short"]) if claim.source.paper else "experiments.yaml"
    return f"{paper}, {claim.source.where}" if claim.source.where else paper


def _missing(verdict: Verdict) -> str:
    names = list(dict.fromkeys(one.entry.id for one in verdict.missing))
    return f"{count(len(names), 'cell')} without this number: {listed(names)}" if names else ""


def _part(part: Part, parts: Sequence[Part]) -> PartView:
    alike = [other for other in parts if _scale(other) == _scale(part)]
    needed = (
        f"about {count(part.needed, 'more seed')} would decide" if part.needed and part.verdict == UNDECIDED else ""
    )
    return PartView(
        title=part.title,
        claimed=f"{part.comparison.value.title}, {_compared(part)}",
        verdict=part.verdict,
        effect=_effect(part),
        published=_short(part.published),
        p=_short(part.adjusted),
        seeds=part.n,
        remark=part.reason or needed,
        drawing=_drawing(part, _range(alike)) if part.effect is not None and math.isfinite(part.effect) else None,
    )


def _scale(part: Part) -> tuple[str, str]:
    """Return what parts have in common that are drawn on one scale."""
    return part.comparison.compare, part.comparison.value.title


def _compared(part: Part) -> str:
    """Return the claimed range in words: "difference below 0"."""
    low, high = part.comparison.low, part.comparison.high
    if math.isinf(low):
        return f"{part.comparison.compare} below {high:g}"
    if math.isinf(high):
        return f"{part.comparison.compare} above {low:g}"
    return f"{part.comparison.compare} between {low:g} and {high:g}"


def _effect(part: Part) -> str:
    if part.effect is None:
        return ""
    interval = f" [{_short(part.interval[0])}, {_short(part.interval[1])}]" if part.interval else ""
    return f"{_short(part.effect)}{interval}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def _range(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the lowest and highest number to draw of these parts, with a margin."""
    found: list[float] = []
    for part in parts:
        found += [part.comparison.low, part.comparison.high, *(part.interval or ())]
        found += [value for value in (part.effect, part.published) if value is not None]
    finite = [value for value in found if math.isfinite(value)]
    room = (max(finite) - min(finite) or 1.0) * DRAWING_MARGIN
    return min(finite) - room, max(finite) + room


def _drawing(part: Part, span: tuple[float, float]) -> Drawing:
    def place(value: float) -> float:
        return round(DRAWING_WIDTH * (min(max(value, span[0]), span[1]) - span[0]) / (span[1] - span[0]), 1)

    return Drawing(
        claimed=(place(part.comparison.low), place(part.comparison.high)),
        effect=None if part.effect is None else place(part.effect),
        interval=(place(part.interval[0]), place(part.interval[1])) if part.interval else None,
        published=None if part.published is None else place(part.published),
    )
