"""A claim + what is recorded -> `Verdict`: supported, contradicted or undecided, as a whole and for each part.

A part is one comparison at one combination of the labels on its axes `by`. It is supported if its p value for lying
inside the claimed interval, adjusted by Holm over the parts of the claim, is at most 0.05, and contradicted if its
adjusted p value for lying outside is. The claim is contradicted if a part is. It is supported if the unadjusted p value
of every part is at most 0.05: all must hold, so that this needs no correction (an intersection-union test). One seed
never decides, except where the claim is about each run. Where seeds were added to decide the claim, the test is
`verdict.judged`.

The tests of whether the mean effect lies inside an open interval (low, high), or outside of it:

t          Student's t test against the nearest bound. `inside`: against every finite bound, the larger p counts, as
           in the two one-sided tests of equivalence. `outside`: beyond some bound, with a Bonferroni factor if there
           are two. p values are two-sided, so that p < 0.05 exactly if the 95 % interval is inside (or outside).
sign       the exact sign test, where a run diverged, or never reached what its speed-up is measured by: its effect is
           infinite, so that only the side counts.
spread     of standard deviations over seeds: the t test of a correlation. No seeds are added for it.
each-run   no test: the claim is about every run.

Effects that equal a bound, or each other, up to rounding of the compared numbers are ties; the largest of these numbers
is `scale`. A seed whose number is NaN has no effect.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import correlation, stdev

from gpas_cli.extensions.claims.checks import state_metric
from gpas_cli.extensions.claims.measure import Group, groups
from gpas_cli.extensions.claims.sequential import CONTRADICTED, SUPPORTED, UNDECIDED
from gpas_cli.extensions.claims.verdict import Part, Verdict, has_added_seeds, judged
from gpas_cli.grid.declared import EACH_RUN, PAIRED_T, SPREAD, Claim, Comparison, Entry
from gpas_cli.grid.document import Label
from gpas_cli.report.convergence import length_fault, smooth_losses
from gpas_cli.report.labels import label_title, number_facts, scheme_titles
from gpas_cli.report.papers import published
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.table_place import remedy
from gpas_cli.spec.stage import CONVERGENCE
from gpas_cli.statistics.arrivals import Arrival
from gpas_cli.statistics.stats import Needed, aggregate, holm, mean_interval, needed, paired, same, two_sided_p
from gpas_cli.structure import Frozen

_LEVEL = 0.95
_ALPHA = 0.05
_POWER = 0.8
_MAX_SEEDS = 8  # proposed for `gpas run claims`, or twice the present number
SIGN = "sign"
_LEAST = 1e-16  # of 1 - r^2, which rounding may make 0 or less


def evaluate(claim: Claim, known: Recorded) -> Verdict:
    """Return the verdict on `claim` from the entries, states and results in `known`.

    Raises GpasError where two cells could be the subject or the base of the same seed, or a cell lacks the stage that
    reports the value.
    """
    known = replace(known, entries=tuple(entry for entry in known.entries if entry.grid in claim.grids))
    present = {entry.grid for entry in known.entries}
    absent = [grid for grid in claim.grids if grid not in present]
    if absent:
        return Verdict(claim, UNDECIDED, (), reason=f"no cell of grid {' or '.join(absent)} is declared here")
    speeds = any(comparison.value.metric in CONVERGENCE for comparison in claim.comparisons)
    if speeds and (fault := length_fault(known.entries)):
        return Verdict(claim, UNDECIDED, (), reason=fault)
    losses = smooth_losses(known) if speeds else {}
    titles = scheme_titles(known.entries)
    found = ((comparison, groups(comparison, known, losses)) for comparison in claim.comparisons)
    chosen = _without_first if claim.tuned else lambda group: group
    parts = _decided([_part(comparison, chosen(group), titles) for comparison, own in found for group in own])
    reason = "" if parts else f"no cell of {', '.join(claim.grids)} is a subject of this claim"
    made = Verdict(claim, _whole(claim, parts), tuple(parts), missing(parts), reason=reason)
    if has_added_seeds(made):
        made = judged(made, _ALPHA)
    return replace(made, command=command(made, known.entries))


def _without_first(group: Group) -> Group:
    """Return the group without the effect of its first seed, which has chosen the settings: it favours the method whose
    numbers vary more."""
    first, *others = group.pairs or (None,)
    return replace(group, pairs=(replace(first, effect=None), *others)) if first else group


def _part(comparison: Comparison, group: Group, titles: Mapping[Label, str]) -> Part:
    words = [label_title(axis, label, titles) or f"no {axis}" for axis, label in group.labels.items()]
    title = ", ".join(filter(None, (comparison.says, *words)))
    beside = _published(comparison, group)
    part = Part(comparison, group.labels, title, group.pairs, test=comparison.test, printed=beside)
    if group.unpaired and not group.pairs:
        return replace(part, reason=f"{group.unpaired[0].id} has no base in {', '.join(comparison.grids)}")
    effects = list(part.effects().values())
    if not effects:
        alone = len(part.pairs) == 1 and comparison.test != EACH_RUN
        lone = f"one {comparison.over} is declared, and a test needs two or more" if alone else ""
        return replace(part, reason=part.left_out() or lone)
    if comparison.test == EACH_RUN:
        return _each_run(part)
    low, high = part.bounds()
    finite = all(math.isfinite(effect) for effect in effects)
    scale = part.scale()
    if comparison.test == SPREAD:
        tested = spread_test(part)
    else:
        tested = t_test(effects, low, high, _LEVEL, scale) if finite else sign_test(effects, low, high, scale)
    reason = _reasons(_why_untested(effects, tested), part)
    part = replace(part, test=tested.name, p=tested.p, inside=tested.inside, reason=reason)
    if tested.mean is None:
        return _with_median(part)
    further = _needed(part, tested.mean) if comparison.test == PAIRED_T else None
    return replace(
        part,
        effect=part.shown(tested.mean),
        interval=(part.shown(tested.interval[0]), part.shown(tested.interval[1])) if tested.interval else None,
        needed=further.further if further else None,
        needed_range=(further.fewest, further.most) if further else (None, None),
    )


def _with_median(part: Part) -> Part:
    """Return the part with the median effect and its interval if its runs are compared by when they arrive."""
    own: dict[Hashable, float] = {p.seed: p.own.value for p in part.pairs if isinstance(p.own.value, Arrival)}
    found = paired(own, {p.seed: p.base.value for p in part.pairs if p.base and p.base.value is not None})
    return replace(part, effect=found.mean, interval=found.interval) if found else part


def _reasons(first: str, part: Part) -> str:
    return "; ".join(filter(None, [first, part.left_out(), part.skipped()]))


def _why_untested(effects: Sequence[float], tested: _Assessed) -> str:
    if tested.p is not None:
        return "a run diverged or never got there, so that only signs count" if tested.name == SIGN else ""
    if tested.name == SPREAD:
        return "a standard deviation is tested over three seeds or more, with different numbers and none that diverged"
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
    found = [needed(effects, _ALPHA, _POWER, bound, part.scale()) for bound in crossed]
    known = [one for one in found if one is not None]
    if not known:
        return None  # without a spread, it is unknown for every bound
    return Needed(*(_most(getattr(one, name) for one in known) for name in ("further", "fewest", "most")))


def _most(numbers: Iterable[int | None]) -> int | None:
    """Return the largest number, at least 1; None if one is None."""
    found = list(numbers)
    return None if None in found else max(1, *(number for number in found if number is not None))


def _decided(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with adjusted p values and verdicts."""
    supported = all(part.inside is not None and part.inside <= _ALPHA for part in parts)
    found = []
    for part, adjusted in zip(parts, holm([part.p for part in parts]), strict=True):
        verdict = SUPPORTED if supported else part.verdict
        if not supported and adjusted is not None and adjusted <= _ALPHA:
            verdict = SUPPORTED if part.inside == part.p else CONTRADICTED
        found.append(replace(part, adjusted=adjusted, verdict=verdict))
    return found


def _whole(claim: Claim, parts: Sequence[Part]) -> str:
    verdicts = {part.verdict for part in parts}
    if CONTRADICTED in verdicts:
        return CONTRADICTED
    compared = {id(part.comparison) for part in parts}
    complete = all(id(comparison) in compared for comparison in claim.comparisons)
    # A part after Holm is decided too strictly for the whole: all parts must hold.
    holds = [part.verdict == SUPPORTED or (part.inside is not None and part.inside <= _ALPHA) for part in parts]
    return SUPPORTED if parts and complete and all(holds) else UNDECIDED


def _published(comparison: Comparison, group: Group) -> dict[str, float]:
    """Return the effect that each source's table gives, by source; under "" the one that the text states."""
    if comparison.printed is not None:
        return {"": comparison.printed}
    found: dict[str, float] = {}
    if comparison.across is not None or comparison.value.along or not group.pairs:
        return found
    own, base = group.pairs[0].own, group.pairs[0].base
    for pack, name in comparison.published.items():
        table = published(pack, name)
        number = "std" if comparison.test == SPREAD else "value"
        cells = [table.cell(_facts(one.status.entry, comparison)) for one in (own, base) if one]
        value, other = (*(getattr(cell, number, None) for cell in cells), 0.0)[:2]
        if value is not None and other is not None:
            found[pack.name] = value / other if comparison.logarithmic else round(value - other, 6)
    return found


def _facts(entry: Entry, comparison: Comparison) -> dict[str, Label]:
    """Return the labels by which papers print the number: of the cell, and the task that it is measured on."""
    what = state_metric(comparison.value, {stage.declared for stage in entry.cell.stages})
    _, slash, task = comparison.value.metric.partition("/")
    return number_facts(entry, what, task if slash else None)


def missing(parts: Iterable[Part]) -> tuple[EntryStatus, ...]:
    """Return the runs without the number that the parts need, each once. A diverged run is an observation."""
    measured = [one for part in parts for pair in part.pairs for one in pair.measured]
    found: dict[str, EntryStatus] = {}
    for one in measured:
        if not one.settled:
            found.setdefault(one.status.entry.cell.key, one.status)
    return tuple(found.values())


def command(verdict: Verdict, entries: Sequence[Entry]) -> str:
    """Return the command that brings the claim nearer to a verdict, "" if it is decided or its runs are under way.

    `entries` are all cells of its grids.
    """
    if verdict.verdict != UNDECIDED or not verdict.parts:
        return ""
    if verdict.missing:
        return remedy(((status.state, status.entry) for status in verdict.missing), entries)
    claim = verdict.claim
    size = " --toy" if claim.toy else " --paper-size" if claim.source.paper else ""
    tuned = " --tuned" if claim.tuned else ""
    seeds = max(_MAX_SEEDS, 2 * verdict.n[0])
    return f"gpas run claims {shlex.quote(claim.name)}{size}{tuned} --max-seeds {seeds}"


class _Assessed(Frozen):
    """A test by name, two-sided p values for lying inside and outside the bounds (None without a test), the mean effect
    and its interval. `inside` and `outside` are at most 1 together with what speaks against them."""

    name: str
    inside: float | None = None
    outside: float | None = None
    mean: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def p(self) -> float | None:
        """The p value of the side on which the effect is."""
        return None if self.inside is None or self.outside is None else min(self.inside, self.outside)


def t_test(effects: Sequence[float], low: float, high: float, level: float, scale: float = 0.0) -> _Assessed:
    """Test finite effects. Without a spread (one effect, or equal ones) there is a mean but no p value."""
    summary = aggregate(effects, scale)
    covered = mean_interval(summary, level)
    if not summary.std:
        return _Assessed("t", mean=summary.mean, interval=covered)
    within, beyond = [], []  # two-sided p values for the mean being on the inner, and on the outer side of each bound
    for bound in (bound for bound in (low, high) if math.isfinite(bound)):
        t = (summary.mean - bound) / summary.std * math.sqrt(summary.n)
        p = two_sided_p(t, summary.n - 1)
        inner = (t > 0) == (bound == low)
        within.append(p if inner else 1.0)
        beyond.append(1.0 if inner else p)
    outside = min(1.0, min(beyond, default=0.0) * len(beyond))
    return _Assessed("t", max(within, default=0.0), outside, summary.mean, covered)


def sign_test(effects: Sequence[float], low: float, high: float, scale: float = 0.0) -> _Assessed:
    """Test effects, some of them infinite, by the number that lies inside; ties with a bound are left out."""
    sides = [side for effect in effects if (side := is_inside(effect, low, high, scale)) is not None]
    inside, n = sum(sides), len(sides)
    return _Assessed(SIGN, _two_sided(inside, n), _two_sided(n - inside, n))


def spread_test(part: Part) -> _Assessed:
    """Test the standard deviation of the subject minus that of its base: by the correlation of sums and differences of
    their numbers, which is positive if the subject's varies more (Pitman 1939, Morgan 1939)."""
    effects = part.effects()
    measured = [pair.measured for pair in part.pairs if pair.seed in effects]
    pairs = [(own.value or 0.0, base.value or 0.0) for own, base in measured]
    if len(pairs) < 2 or not all(map(math.isfinite, effects.values())):
        return _Assessed(SPREAD)
    own, base = (stdev(numbers) for numbers in zip(*pairs, strict=True))
    sums, differences = [a + b for a, b in pairs], [a - b for a, b in pairs]
    if len(pairs) < 3 or 0 in (own, base, stdev(sums), stdev(differences)):
        return _Assessed(SPREAD, mean=own - base)
    r, freedom = correlation(sums, differences), len(pairs) - 2
    p = two_sided_p(r * math.sqrt(freedom / max(1 - r * r, _LEAST)), freedom)
    holds = (r < 0) == (part.comparison.low < 0)
    return _Assessed(SPREAD, p if holds else 1.0, 1.0 if holds else p, own - base)


def is_inside(effect: float, low: float, high: float, scale: float) -> bool | None:
    """Return whether an effect lies in (low, high), None for a finite one that ties with a bound."""
    if math.isfinite(effect) and (same(effect, low, scale) or same(effect, high, scale)):
        return None
    return low < effect < high or (math.isinf(effect) and effect in (low, high))


def _two_sided(successes: int, n: int) -> float:
    """Return the two-sided p of at least `successes` of `n` at probability 1/2."""
    tail = sum(math.comb(n, k) for k in range(successes, n + 1))
    return min(1.0, 2 * tail / float(2**n))
