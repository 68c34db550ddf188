"""A verdict's parts read as a sequential test: evidence in the order of the seeds, valid however many are added.

The evidence is a function of the recorded numbers alone: of the seeds in ascending order, up to the first one that
has no number yet. It is therefore the same after an interruption, and no seed is counted twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from gpas_cli.grid.claim import EACH_RUN, Claim
from gpas_cli.report.claims.measure import Pair
from gpas_cli.report.claims.verdict import Part, Verdict
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.statistics.sequential import CONTRADICTED, SUPPORTED, UNDECIDED, Evidence, decide, evidence
from gpas_cli.statistics.stats import holm

_SEED = "seed"  # the axis whose labels can be added to
SEQUENTIAL = "sequential"  # the name of the test
_CERTAIN = 1e300  # the e-value of a claim about each run, which is decided without a test


@dataclass(frozen=True)
class PartEvidence:
    """The evidence on one part of a claim.

    seeds: those that are used, in order. pending: later seeds that the grid has, in order. effects: one for each of
    `seeds`, on the scale of the test, None if both runs diverged.
    """

    part: Part
    evidence: Evidence
    seeds: tuple[int, ...]
    effects: tuple[float | None, ...]
    pending: tuple[int, ...]
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

    @property
    def can_grow(self) -> bool:
        """Whether further seeds can be added: the effects are over seeds, and there is a pair to take them from."""
        return self.part.comparison.over == _SEED and bool(self.part.pairs)

    def waiting(self, seeds: Sequence[int]) -> list[EntryStatus]:
        """Return the runs of these seeds that have no number yet."""
        return [
            one.status for pair in self.part.pairs if pair.seed in seeds for one in pair.measured if not one.settled
        ]


@dataclass(frozen=True)
class ClaimEvidence:
    """The sequential verdict on a claim, and the evidence on its parts. `reason` is why nothing can be said."""

    claim: Claim
    verdict: str
    parts: tuple[PartEvidence, ...]
    reason: str = ""


def assess(verdict: Verdict, level: float = 0.05) -> ClaimEvidence:
    """Return what the sequential test at `level` says of the claim of `verdict`, by the numbers that it has."""
    parts = [_part(part, level) for part in verdict.parts]
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
    if found.part.comparison.test == EACH_RUN:
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


def _part(part: Part, level: float) -> PartEvidence:
    ordered = sorted((pair for pair in part.pairs if _number(pair) is not None), key=lambda pair: _number(pair) or 0)
    used = list(takewhile(lambda pair: all(one.settled for one in pair.measured), ordered))
    effects = tuple(pair.effect for pair in used)
    low, high = part.bounds()
    if part.comparison.test == EACH_RUN:
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
