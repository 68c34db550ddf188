"""A claim + what is recorded -> `Verdict`: supported, contradicted or undecided, as a whole and for each part.

A part is one comparison at one combination of the labels on its axes `by`. It is supported if its p value for lying
inside the claimed interval, adjusted by Holm over the parts of the claim, is at most 0.05, and contradicted if that for
lying outside is. The claim is contradicted if a part is. It is supported if the own p value of every part is at most
0.05: all must hold, so that this needs no correction (an intersection-union test). One seed never decides, except where
the claim is about each run. Where seeds were added to decide the claim, the test is `report.claims.sequential`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpas_cli.grid.claim import EACH_RUN, Claim, Comparison
from gpas_cli.grid.document import Label
from gpas_cli.report.claims.commands import command, missing
from gpas_cli.report.claims.measure import state_metric
from gpas_cli.report.claims.pairs import Group, groups
from gpas_cli.report.claims.sequential import has_added_seeds, judged
from gpas_cli.report.claims.significance import SIGN, Assessed, is_inside, sign_test, t_test
from gpas_cli.report.claims.verdict import CONTRADICTED, SUPPORTED, UNDECIDED, Part, Verdict
from gpas_cli.report.labels import facts, label_title, measured, scheme_titles
from gpas_cli.report.papers import published
from gpas_cli.report.recorded import Recorded
from gpas_cli.statistics.stats import Needed, holm, needed

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8


def evaluate(claim: Claim, known: Recorded) -> Verdict:
    """Return the verdict on `claim` from the entries, states and results in `known`.

    Raises GpasError where two cells could be the subject or the base of the same seed, or a cell has not the stage that
    reports the value.
    """
    known = replace(known, entries=tuple(entry for entry in known.entries if entry.grid in claim.grids))
    present = {entry.grid for entry in known.entries}
    absent = [grid for grid in claim.grids if grid not in present]
    if absent:
        return Verdict(claim, UNDECIDED, (), reason=f"no cell of grid {' or '.join(absent)} is declared here")
    parts = [_part(comparison, group, known) for comparison in claim.comparisons for group in groups(comparison, known)]
    parts = _titled(_decided(parts), known)
    verdict = _whole(claim, parts)
    lost = missing(parts)
    made = Verdict(claim, verdict, tuple(parts), lost, reason=_reason(claim, parts))
    if has_added_seeds(made):
        made = judged(made, ALPHA)
    return replace(made, command=command(made, known.entries))


def _part(comparison: Comparison, group: Group, known: Recorded) -> Part:
    part = Part(comparison, group.labels, "", group.pairs, test=comparison.test)
    part = replace(part, published=_published(comparison, group))
    if group.unpaired and not group.pairs:
        return replace(part, reason=f"{group.unpaired[0].id} has no base in {', '.join(comparison.grids)}")
    effects = list(part.effects().values())
    if not effects:
        return replace(part, reason=part.left_out())
    if comparison.test == EACH_RUN:
        return _each_run(part)
    low, high = part.bounds()
    finite = all(math.isfinite(effect) for effect in effects)
    scale = part.scale()
    tested = t_test(effects, low, high, LEVEL, scale) if finite else sign_test(effects, low, high, scale)
    reason = _reasons(_why_untested(effects, tested), part)
    part = replace(part, test=tested.name, p=tested.p, inside=tested.inside, reason=reason)
    if tested.mean is None:
        return part
    further = _needed(part, tested.mean)
    return replace(
        part,
        effect=part.shown(tested.mean),
        interval=_interval(part, tested),
        needed=further.further if further else None,
        needed_range=(further.fewest, further.most) if further else (None, None),
    )


def _interval(part: Part, tested: Assessed) -> tuple[float, float] | None:
    if tested.interval is None:
        return None
    low, high = tested.interval
    return part.shown(low), part.shown(high)


def _reasons(first: str, part: Part) -> str:
    return "; ".join(filter(None, [first, part.left_out(), part.skipped()]))


def _why_untested(effects: Sequence[float], tested: Assessed) -> str:
    if tested.p is not None:
        return "a run diverged, so that only signs count" if tested.name == SIGN else ""
    if len(effects) == 1:
        return "one seed: a test needs two or more"
    return "the effects of all seeds are equal, so that their spread is unknown"


def _each_run(part: Part) -> Part:
    """Return the verdict of a claim about every run: one that violates it contradicts it, all of them support it."""
    low, high = part.bounds()
    effects = list(part.effects().values())
    outside = sum(not is_inside(effect, low, high, part.scale()) for effect in effects)
    verdict = CONTRADICTED if outside else SUPPORTED if len(effects) == len(part.pairs) else UNDECIDED
    mean = math.fsum(effects) / len(effects) if all(map(math.isfinite, effects)) else None
    reason = _reasons("decided by each run, without a test", part)
    return replace(part, verdict=verdict, effect=None if mean is None else part.shown(mean), reason=reason)


def _needed(part: Part, mean: float) -> Needed | None:
    """Return the further seeds that a verdict needs, at least 1 each; None if that is unknown."""
    low, high = part.bounds()
    crossed = [bound for bound in (low, high) if math.isfinite(bound)]
    if not low < mean < high:
        crossed = [low if mean <= low else high]
    effects = list(part.effects().values())
    found = [needed(effects, ALPHA, POWER, bound, part.scale()) for bound in crossed]
    known = [one for one in found if one is not None]
    if not known:
        return None  # without a spread, it is unknown for every bound
    return Needed(
        _most(one.further for one in known), _most(one.fewest for one in known), _most(one.most for one in known)
    )


def _most(numbers: Iterable[int | None]) -> int | None:
    """Return the largest number, at least 1; None if one is None."""
    found = list(numbers)
    return None if None in found else max(1, *(number for number in found if number is not None))


def _decided(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with adjusted p values and verdicts."""
    tested = [replace(part, adjusted=p) for part, p in zip(parts, holm([part.p for part in parts]), strict=True)]
    if tested and all(part.inside is not None and part.inside <= ALPHA for part in tested):
        return [replace(part, verdict=SUPPORTED) for part in tested]
    return [replace(part, verdict=_verdict(part)) for part in tested]


def _verdict(part: Part) -> str:
    if part.p is None or part.adjusted is None or part.adjusted > ALPHA:
        return part.verdict
    return SUPPORTED if part.inside == part.p else CONTRADICTED


def _whole(claim: Claim, parts: Sequence[Part]) -> str:
    verdicts = {part.verdict for part in parts}
    if CONTRADICTED in verdicts:
        return CONTRADICTED
    compared = {id(part.comparison) for part in parts}
    complete = all(id(comparison) in compared for comparison in claim.comparisons)
    # A part after Holm is decided too strictly for the whole: all parts must hold.
    holds = [part.verdict == SUPPORTED or (part.inside is not None and part.inside <= ALPHA) for part in parts]
    return SUPPORTED if parts and complete and all(holds) else UNDECIDED


def _reason(claim: Claim, parts: Sequence[Part]) -> str:
    if not parts:
        return f"no cell of {', '.join(claim.grids)} is a subject of this claim"
    return ""


def _titled(parts: Sequence[Part], known: Recorded) -> list[Part]:
    titles = scheme_titles(known.entries)
    return [replace(part, title=_title(part, titles)) for part in parts]


def _title(part: Part, titles: Mapping[Label, str]) -> str:
    words = [label_title(axis, label, titles) or f"no {axis}" for axis, label in part.labels.items()]
    return ", ".join([*([part.comparison.says] if part.comparison.says else []), *words])


def _published(comparison: Comparison, group: Group) -> float | None:
    """Return the effect that the source states, or that its table's numbers give."""
    if comparison.printed is not None or not group.pairs or comparison.across is not None:
        return comparison.printed
    own, base = group.pairs[0].own, group.pairs[0].base
    for source, name in comparison.published.items():
        table = published(source, name)
        value = table.value(_facts(own.status.entry, comparison))
        if base is None or value is None:
            return value
        other = table.value(_facts(base.status.entry, comparison))
        if other is None:
            return None
        return round(value - other, 6) if comparison.compare == "difference" else value / other
    return None


def _facts(entry: Entry, comparison: Comparison) -> dict[str, Label]:
    """Return the labels by which papers print the number: those of the cell, and the task that it is measured on."""
    feature = comparison.value
    what = state_metric(feature, {stage.declared for stage in entry.cell.stages})
    _, by_task, task = feature.metric.partition("/")
    return {**facts(entry), **measured(entry, task, what, by_task=bool(by_task))}
