"""The verdict on a claim and on its parts: data that `evaluate` makes, its JSON document, and a sequential test of it.

The sequential test reads the parts of a verdict as evidence in the order of the seeds, valid however many are added.
The evidence is a function of the recorded numbers alone: of the seeds in ascending order, up to the first one that has
no number yet. It is therefore the same after an interruption, and no seed is counted twice.
"""

import math
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace
from itertools import takewhile
from typing import Annotated, Any

from gpas_cli.extensions.claims.measure import Pair
from gpas_cli.extensions.claims.sequential import CONTRADICTED, SUPPORTED, UNDECIDED, Evidence, decide, evidence
from gpas_cli.grid.declared import PAIRED_T, Claim, Comparison, Source
from gpas_cli.grid.document import Label
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.spec.downstream import MOST_SKIPPED, SKIPPED, skipped_note
from gpas_cli.statistics.stats import holm
from gpas_cli.structure import Document, DocumentJson, Frozen, Number
from gpas_cli.words import count

WORDS = (SUPPORTED, CONTRADICTED, UNDECIDED)
_LARGEST_LOG = math.log(sys.float_info.max)
SEQUENTIAL = "sequential"  # the name of the test
_CERTAIN = 1e300  # the e-value of a claim about each run, which is decided without a test
_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", UNDECIDED: "yellow"}


class Part(Frozen):
    """One comparison at one combination of labels."""

    comparison: Comparison
    labels: Mapping[str, Label | None]
    title: str
    pairs: tuple[Pair, ...]
    verdict: str = UNDECIDED
    test: str = "t"
    effect: float | None = None  # the mean over seeds, in units of the value; of ratios, the geometric mean
    interval: tuple[float, float] | None = None  # the 95 % interval of the effect, in its units
    p: float | None = None  # two-sided, for the side of the claimed interval on which the effect is
    adjusted: float | None = None  # by Holm over the parts
    inside: float | None = None
    needed: int | None = None
    """Further seeds with which the test would decide with a probability of 80 %, if effect and spread stay, None for
    more than thousands."""
    needed_range: tuple[int | None, int | None] = (None, None)
    """The same at the ends of the 80 % interval of the effect in standard deviations."""
    printed: Mapping[str, float] = field(default_factory=dict)
    """The effect in each source, by source; under "" the one that the text states."""
    reason: str = ""

    @property
    def published(self) -> float | None:
        """The effect in the first source that has one."""
        return next(iter(self.printed.values()), None)

    @property
    def direction(self) -> str:
        """What an undecided part with one seed shows, which is no verdict: "same sign, 1 seed (-0.74, published -1.2)".

        The sign is compared with the published effect's, without one with the claimed interval; a value, which has no
        sign, lies inside of that or outside.
        """
        if self.verdict != UNDECIDED or self.n != 1 or self.effect is None:
            return ""
        low, high = self.bounds()
        (effect,) = self.effects().values()
        if self.published is None or self.comparison.compare == "value":
            alike = low < effect < high
        else:
            neutral = 1.0 if self.comparison.logarithmic else 0.0
            alike = (self.effect - neutral) * (self.published - neutral) > 0
        words = ("inside", "outside") if self.comparison.compare == "value" else ("same sign", "opposite sign")
        beside = "" if self.published is None else f", published {self.published:.4g}"
        return f"{words[not alike]}, 1 seed ({self.effect:.4g}{beside})"

    @property
    def n(self) -> int:
        """The seeds with an effect."""
        return len(self.effects())

    @property
    def needed_text(self) -> str:
        """The further seeds and their range: "5 (1 to 296)", "306 (10 or more)"; "" if unknown or not needed."""
        fewest, most = self.needed_range
        if self.verdict != UNDECIDED or fewest is None:
            return ""
        limits = f"{fewest} or more" if most is None else f"{fewest} to {most}"
        return limits if self.needed is None else f"{self.needed}" if fewest == most else f"{self.needed} ({limits})"

    def effects(self) -> dict[Hashable, float]:
        """Return the effects by seed on the scale of the test: logarithms of ratios, infinite for a diverged run."""
        return {pair.seed: pair.effect for pair in self.pairs if pair.effect is not None}

    def bounds(self) -> tuple[float, float]:
        """Return the claimed interval on the scale of the test."""
        low, high = self.comparison.low, self.comparison.high
        if not self.comparison.logarithmic:
            return low, high
        return (math.log(low) if low > 0 else -math.inf), (math.log(high) if high < math.inf else math.inf)

    def scale(self) -> float:
        """Return the largest of the compared numbers, or of their logarithms. Its rounding limits the effects."""
        measured = (one.value for pair in self.pairs for one in pair.measured)
        finite = [abs(value) for value in measured if value is not None and math.isfinite(value)]
        if self.comparison.logarithmic:  # a relative error of a number is an absolute one of its logarithm
            finite = [1.0, *(abs(math.log(value)) for value in finite if value)]
        return max(finite, default=0.0)

    def left_out(self) -> str:
        """Return how many seeds are left out because their numbers have no difference or ratio; "" if none are."""
        log = self.comparison.logarithmic
        seeds = 0
        for pair in self.pairs:
            values = [one.value for one in pair.measured if one.value is not None]
            undefined = any(math.isnan(x) or (log and math.isfinite(x) and x <= 0) for x in values)
            seeds += pair.effect is None and undefined
        why = "NaN or not positive" if log else "NaN"
        return f"{count(seeds, 'seed')} left out: the number is {why}" if seeds else ""

    def shown(self, effect: float) -> float:
        """Convert an effect from the scale of the test to units of the value: a logarithm to its ratio."""
        if not self.comparison.logarithmic or effect == math.inf:
            return effect
        return math.exp(min(effect, _LARGEST_LOG))

    def skipped(self) -> str:
        """Return which scored tasks left so many questions out that their scores cannot be compared; "" for none."""
        results = [one.status.result for pair in self.pairs for one in pair.measured]
        counts = [score for known in results if known for score in known.scores if score.metric == SKIPPED]
        many = [one for one in counts if one.value > MOST_SKIPPED * (one.value + one.examples)]
        return "; ".join(dict.fromkeys(skipped_note(one.task, one.value, one.examples) for one in many))

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(one.diverged for pair in self.pairs for one in pair.measured)


class Verdict(Frozen):
    """The verdict on a claim. `missing`: runs without the number; `command` runs them, or further seeds."""

    claim: Claim
    verdict: str
    parts: tuple[Part, ...]
    missing: tuple[EntryStatus, ...] = ()
    command: str = ""
    reason: str = ""

    @property
    def n(self) -> tuple[int, int]:
        """The smallest and the largest number of seeds of a part."""
        counts = [part.n for part in self.parts]
        return min(counts, default=0), max(counts, default=0)

    @property
    def direction(self) -> str:
        """The direction of its only part, or how many parts have which: "3 same sign, 1 opposite sign, 1 seed"."""
        found = [part.direction for part in self.parts if part.direction]
        counts = Counter(words.partition(",")[0] for words in found)
        each = ", ".join(f"{number} {words}" for words, number in counts.most_common())
        return found[0] if len(self.parts) == 1 and found else f"{each}, 1 seed" if found else ""

    @property
    def effects(self) -> tuple[float, float] | None:
        """The smallest and the largest effect of a part, None for effects of several kinds: differences and ratios."""
        found = [part.effect for part in self.parts if part.effect is not None]
        alike = len({part.comparison.compare for part in self.parts}) == 1
        return (min(found), max(found)) if found and alike else None

    @property
    def p(self) -> float | None:
        """The p value of the verdict.

        If supported, the largest of the parts', all of which must hold; if contradicted, the smallest adjusted one that
        speaks against a part. An undecided claim has the p value of its only part, and none with several parts.
        """
        if self.verdict == CONTRADICTED:
            against = [part.adjusted for part in self.parts if part.verdict == CONTRADICTED]
            return min((p for p in against if p is not None), default=None)
        if self.verdict == SUPPORTED:
            found = [part.inside for part in self.parts if part.inside is not None]
            return max(found) if len(found) == len(self.parts) else None
        return self.parts[0].p if len(self.parts) == 1 else None

    @property
    def needed(self) -> int | None:
        """Further seeds with which every part would be decided; None if that is unknown."""
        wanted = [part.needed for part in self.parts if part.verdict == UNDECIDED]
        return None if any(number is None for number in wanted) else max((n for n in wanted if n), default=None)

    def counts(self) -> dict[str, int]:
        """Return the number of parts by verdict."""
        return {word: sum(part.verdict == word for part in self.parts) for word in WORDS}


VerdictWord = Annotated[str, ("supported", "contradicted", "undecided")]


class _ClaimSeedJson(Document):
    """One seed of one part."""

    seed: Annotated[Any, "the label on the axis of seeds"]
    own: Annotated[Number | None, "the number of the subject; inf or -inf for a run that diverged"]
    base: Annotated[Number | None, "the number of the base; null too if values are compared"]
    effect: Annotated[Number | None, "difference, ratio or value; null if a number is missing or both runs diverged"]
    cells: Annotated[
        Sequence[str],
        "grid/name of the subject, of the base, of the cells that `best` compares them with, and the same for `across`",
    ]
    states: Sequence[str]


class ClaimPartJson(Document):
    """One comparison at one combination of labels."""

    title: str
    labels: Annotated[Mapping[str, Any], "the labels on the axes `by`"]
    compare: Annotated[str, ("difference", "ratio", "value", "spread")]
    value: Annotated[str, "the number that is compared, in words"]
    low: Annotated[float | None, "the claimed interval of the effect; null: unbounded"]
    high: float | None
    verdict: VerdictWord
    test: Annotated[str, ("t", "sign", "spread", "each-run", "sequential"), "sequential: seeds were added to decide"]
    effect: Annotated[float | None, "the mean over seeds; of ratios, the geometric mean"]
    interval: Annotated[tuple[float, float] | None, "its 95 % interval"]
    p: Annotated[float | None, "two-sided, for the side of the claimed interval on which the effect is"]
    adjusted_p: Annotated[float | None, "by Holm over the parts of the claim"]
    n: Annotated[int, "seeds with an effect"]
    needed: Annotated[int | None, "further seeds that decide with a probability of 80 % at today's effect and spread"]
    needed_range: Annotated[tuple[int | None, int | None], "the same at the ends of the effect's 80 % interval"]
    diverged: Annotated[int, "runs that diverged"]
    published: Annotated[float | None, "the effect in the source"]
    published_by: Annotated[Mapping[str, float], "the same by source, for every source that has one"]
    direction: Annotated[str, "of one seed, which is no verdict: whether its effect has the published sign, and both"]
    reason: Annotated[str, "why there is no test, or how it was decided without one"]
    seeds: Sequence[_ClaimSeedJson]


class _MissingRunJson(Document):
    """A run without the number."""

    cell: str
    key: str
    state: str


class ClaimJson(Document):
    """One claim at one size."""

    name: str
    statement: str
    source: Source
    toy: Annotated[bool, "whether the cells are of toy size, whatever the claim is about"]
    grids: Sequence[str]
    verdict: VerdictWord
    reason: str
    p: Annotated[
        float | None, "the largest p of the parts, all of which must hold; if contradicted, the smallest adjusted"
    ]
    needed: Annotated[int | None, "further seeds with which every part would be decided"]
    parts: Sequence[ClaimPartJson]
    missing: Sequence[_MissingRunJson]
    command: Annotated[str, "brings the claim nearer to a verdict; empty if it is decided or its runs are under way"]


class ClaimsJson(DocumentJson):
    """`gpas claims --json`."""

    claims: Sequence[ClaimJson]


def claim_json(verdict: Verdict) -> ClaimJson:
    """Return the verdict on a claim for JSON."""
    claim = verdict.claim
    return ClaimJson(
        name=claim.name, statement=claim.statement, source=claim.source, toy=claim.toy, grids=claim.grids,
        verdict=verdict.verdict, reason=verdict.reason, p=verdict.p, needed=verdict.needed,
        parts=list(map(_part, verdict.parts)),
        missing=[_MissingRunJson(cell=run.entry.id, key=run.key, state=run.state) for run in verdict.missing],
        command=verdict.command,
    )  # fmt: skip


def _part(part: Part) -> ClaimPartJson:
    comparison = part.comparison
    return ClaimPartJson(
        title=part.title, labels=part.labels, compare=comparison.compare, value=comparison.value.title,
        low=comparison.low if math.isfinite(comparison.low) else None,
        high=comparison.high if math.isfinite(comparison.high) else None,
        verdict=part.verdict, test=part.test, effect=part.effect, interval=part.interval, p=part.p,
        adjusted_p=part.adjusted, n=part.n, needed=part.needed, needed_range=part.needed_range,
        diverged=part.diverged, published=part.published, published_by=part.printed, direction=part.direction,
        reason=part.reason,
        seeds=[_seed(part, pair) for pair in part.pairs],
    )  # fmt: skip


def _seed(part: Part, pair: Pair) -> _ClaimSeedJson:
    return _ClaimSeedJson(
        seed=pair.seed, own=pair.own.value, base=pair.base.value if pair.base else None,
        effect=None if pair.effect is None else part.shown(pair.effect),
        cells=[one.status.entry.id for one in pair.measured], states=[one.status.state for one in pair.measured],
    )  # fmt: skip


class PartEvidence(Frozen):
    """The evidence on one part of a claim."""

    part: Part
    evidence: Evidence
    seeds: tuple[int, ...]  # the seeds that are used, in order
    effects: tuple[float | None, ...]  # one for each of `seeds`, on the scale of the test, None if both runs diverged
    pending: tuple[int, ...]  # later seeds of the grid, in order
    verdict: str = UNDECIDED

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence sequence of the mean effect, in units of the value."""
        found = self.evidence.interval
        return None if found is None else (self.part.shown(found[0]), self.part.shown(found[1]))

    @property
    def effect(self) -> float | None:
        """The mean of the finite effects that are used, in units of the value."""
        finite = self.finite
        return self.part.shown(math.fsum(finite) / len(finite)) if finite else None

    @property
    def shown(self) -> list[float | None]:
        """The effects in units of the value."""
        return [None if effect is None else self.part.shown(effect) for effect in self.effects]

    @property
    def finite(self) -> list[float]:
        """The finite effects that are used, on the scale of the test."""
        return [effect for effect in self.effects if effect is not None and math.isfinite(effect)]

    def waiting(self, seeds: Sequence[int]) -> list[EntryStatus]:
        """Return the runs of these seeds that have no number yet."""
        return [
            one.status for pair in self.part.pairs if pair.seed in seeds for one in pair.measured if not one.settled
        ]


class ClaimEvidence(Frozen):
    """The sequential verdict on a claim, and the evidence on its parts. `reason` is why there is none."""

    claim: Claim
    verdict: str
    parts: tuple[PartEvidence, ...]
    reason: str = ""


def assess(verdict: Verdict, level: float = 0.05) -> ClaimEvidence:
    """Return what the sequential test at `level` says about the claim of `verdict`, by the numbers that it has."""
    parts = [_assessed(part, level) for part in verdict.parts]
    whole, verdicts = decide([part.evidence for part in parts], level)
    decided = tuple(replace(part, verdict=word) for part, word in zip(parts, verdicts, strict=True))
    compared = {id(part.comparison) for part in verdict.parts}
    complete = all(id(comparison) in compared for comparison in verdict.claim.comparisons)
    return ClaimEvidence(
        verdict.claim, whole if complete or whole == CONTRADICTED else UNDECIDED, decided, verdict.reason
    )


def has_added_seeds(verdict: Verdict) -> bool:
    """Return whether a run of the claim has a seed that was added to decide a claim."""
    entries = (one.status.entry for part in verdict.parts for pair in part.pairs for one in pair.measured)
    return any(entry.declared is not None and entry.declared.added for entry in entries)


def judged(verdict: Verdict, level: float = 0.05) -> Verdict:
    """Return the verdict by the sequential test: p values, intervals and words that hold when seeds were added.

    The adjusted p value of a part is Holm's for what speaks against the claim, and unadjusted for what speaks for it.
    """
    found = assess(verdict, level)
    against = holm([part.evidence.p_outside for part in found.parts])
    parts = [_judged(part, p) for part, p in zip(found.parts, against, strict=True)]
    return replace(verdict, verdict=found.verdict, parts=tuple(parts))


def _judged(found: PartEvidence, against: float | None) -> Part:
    if found.part.comparison.test != PAIRED_T:
        return found.part
    inside, outside = found.evidence.p_inside, found.evidence.p_outside
    return replace(
        found.part,
        verdict=found.verdict,
        test=SEQUENTIAL,
        effect=found.effect,
        interval=found.interval,
        p=min(inside, outside) if found.effects else None,
        adjusted=(inside if inside <= outside else against) if found.effects else None,
        inside=inside if found.effects else None,
        needed=None,
        needed_range=(None, None),
        reason="seeds were added: a sequential test" if found.part.reason == "" else found.part.reason,
    )


def _assessed(part: Part, level: float) -> PartEvidence:
    ordered = sorted((pair for pair in part.pairs if _number(pair) is not None), key=lambda pair: _number(pair) or 0)
    used = list(takewhile(lambda pair: all(one.settled for one in pair.measured), ordered))
    effects = tuple(pair.effect for pair in used)
    low, high = part.bounds()
    if part.comparison.test != PAIRED_T:
        inside = _CERTAIN if part.verdict == SUPPORTED else 1.0
        outside = _CERTAIN if part.verdict == CONTRADICTED else 1.0
        found = Evidence(len(effects), inside, outside)
    else:
        found = evidence([effect for effect in effects if effect is not None], low, high, level, part.scale())
    return PartEvidence(
        part=part,
        evidence=found,
        seeds=tuple(_number(pair) or 0 for pair in used),
        effects=effects,
        pending=tuple(_number(pair) or 0 for pair in ordered[len(used) :]),
    )


def _number(pair: Pair) -> int | None:
    return pair.seed if isinstance(pair.seed, int) and not isinstance(pair.seed, bool) else None


def styled(verdict: str) -> tuple[str, str]:
    """Return a verdict and its colour in a terminal."""
    return verdict, _STYLES[verdict]
