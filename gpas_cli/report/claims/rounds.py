"""Choose the seeds that `gpas run claims` runs next: where a decision is likeliest per device-hour.

A round gives each chosen part of a claim its next seeds. A part is chosen if its chance of a decision for each
device-hour is at least half of the best part's, so that parts of equal promise run together and an expensive part waits
until the cheap ones are decided, which may decide the claim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpas_cli.grid.claim import EACH_RUN
from gpas_cli.grid.expand import family_of
from gpas_cli.report.claims.sequential import ClaimEvidence, PartEvidence
from gpas_cli.report.claims.verdict import UNDECIDED
from gpas_cli.statistics.sequential import fewest, log_evidence, possible
from gpas_cli.statistics.stats import aggregate, unit

if TYPE_CHECKING:
    from gpas_cli.grid.declared import Experiments

SIMULATIONS = 1000  # of further seeds, for the chance of a decision
UNKNOWN_CHANCE = 0.5  # of a part with fewer than two effects
NEAR = 0.5  # of the best part's chance per hour: parts above are run in the same round
LEAST_HOURS = 1e-4  # so that a run that costs next to nothing does not divide by zero


@dataclass(frozen=True)
class Candidate:
    """A part that is undecided, and the seeds that it would get next.

    at: the positions of the claim and of the part. chances: the probability of a decision after 1, 2, ... further
    seeds, as simulated with the effects so far.
    """

    at: tuple[int, int]
    part: PartEvidence
    seeds: tuple[int, ...]
    chances: tuple[float, ...]

    def value(self, hours: float) -> float:
        """Return the chance of a decision per device-hour, where the next seeds cost `hours` in all."""
        each = max(hours, LEAST_HOURS) / len(self.seeds)
        return max(chance / (each * n) for n, chance in enumerate(self.chances, 1))


def candidates(
    claims: Sequence[ClaimEvidence], level: float, max_seeds: int, step: int = 1, declared_only: bool = False
) -> list[Candidate]:
    """Return the parts of undecided claims that may get further seeds, `step` at a time, up to `max_seeds` each.

    With fewer seeds than any decision needs, a part gets the missing ones at once.
    """
    found = []
    for i, claim in enumerate(claims):
        if claim.verdict != UNDECIDED:
            continue
        for j, part in enumerate(claim.parts):
            seeds = _next(part, level, max_seeds, step, declared_only) if part.verdict == UNDECIDED else ()
            if seeds:
                room = max(max_seeds - len(part.seeds), len(seeds))
                found.append(Candidate((i, j), part, seeds, chances(part, level, len(claim.parts), room)))
    return found


def _next(part: PartEvidence, level: float, max_seeds: int, step: int, declared_only: bool) -> tuple[int, ...]:
    if part.part.comparison.test == EACH_RUN or declared_only:
        return part.pending
    wanted = min(max(step, fewest(level) - len(part.seeds)), max_seeds - len(part.seeds))
    if wanted <= 0:
        return ()
    if not part.can_grow:
        return part.pending[:wanted]
    last = max((*part.seeds, *part.pending), default=0)
    return (*part.pending, *range(last + 1, last + 1 + wanted))[:wanted]


def chances(part: PartEvidence, level: float, parts: int, further: int) -> tuple[float, ...]:
    """Return the probability of a decision after 1, 2, ... `further` seeds, of one part of `parts`.

    Simulated with the mean and variance of the effects so far and their uncertainty: variance ~ spread / chi-squared
    with n - 1 degrees of freedom, mean ~ Gaussian around the sample mean (the posterior under the prior 1 / variance).
    """
    import numpy as np

    scale, bounds = part.part.scale(), part.part.bounds()
    if not part.finite or not aggregate(part.finite, scale).std:
        return tuple(UNKNOWN_CHANCE * n / further for n in range(1, further + 1))
    one = unit(max(map(abs, filter(math.isfinite, (*part.finite, *bounds, scale)))))
    effects = np.array(part.finite) / one
    spread = float(((effects - effects.mean()) ** 2).sum())
    random = np.random.default_rng(0)
    deviation = np.sqrt(spread / random.chisquare(effects.size - 1, SIMULATIONS))
    mean = random.normal(effects.mean(), deviation / math.sqrt(effects.size))
    future = random.normal(mean[:, None], deviation[:, None], (SIMULATIONS, further))
    past = np.broadcast_to(effects, (SIMULATIONS, effects.size))
    low, high = (bound / one for bound in bounds)
    inside, outside = log_evidence(np.concatenate([past, future], axis=1), low, high, scale / one)
    can_support, can_contradict = possible([x for x in part.effects if x is not None], *bounds)
    supported = (inside >= -math.log(level)) & can_support
    decided = supported | ((outside >= -math.log(level / parts)) & can_contradict)
    hits = decided[:, effects.size :].sum(axis=0)
    return tuple(float(hit + 1) / (SIMULATIONS + 2) for hit in hits)  # never 0 or 1, so that parts keep an order


def chosen(found: Sequence[Candidate], hours: Sequence[float]) -> list[Candidate]:
    """Return the candidates to run in the next round, the most promising first; `hours` has the cost of each."""
    values = {candidate.at: candidate.value(cost) for candidate, cost in zip(found, hours, strict=True)}
    best = max(values.values(), default=0.0)
    near = [candidate for candidate in found if values[candidate.at] >= NEAR * best]
    return sorted(near, key=lambda candidate: -values[candidate.at])


def additions(experiments: Experiments, found: Iterable[Candidate]) -> dict[str, dict[str, set[int]]]:
    """Return the seeds to add so that the grids have the runs of the candidates' next seeds: by grid and cell."""
    added: dict[str, dict[str, set[int]]] = {}
    for candidate in found:
        present: Collection[int] = {*candidate.part.seeds, *candidate.part.pending}
        new = [seed for seed in candidate.seeds if seed not in present]
        for one in candidate.part.part.pairs[0].measured if new else ():
            family = family_of(experiments, one.status.entry)
            if family is not None:
                added.setdefault(family[0], {}).setdefault(family[1], set()).update(new)
    return added
