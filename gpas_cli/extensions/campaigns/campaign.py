"""A campaign of `gpas run claims`: the evidence on some claims, and the rounds of runs that add to it.

A round gives each chosen part of a claim its next seeds. A part is chosen if its chance of a decision for each
device-hour is at least half of the best part's, so that parts of equal promise run together and an expensive part waits
until the cheap ones are decided, which may decide the claim.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from gpas_cli.errors import GpasError
from gpas_cli.extensions.campaigns.companions import add_seeds, family_of, with_seeds
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.claims.sequential import UNDECIDED, fewest, log_evidence, possible
from gpas_cli.extensions.claims.verdict import ClaimEvidence, PartEvidence, assess
from gpas_cli.grid.companions import seeds_path
from gpas_cli.grid.declared import PAIRED_T, Claim, Entry, Experiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.select import select
from gpas_cli.plan.estimate import Estimate
from gpas_cli.project import Project
from gpas_cli.report.recorded import Recorded
from gpas_cli.state.locks import locked
from gpas_cli.statistics.stats import aggregate, unit
from gpas_cli.structure import Frozen

_LOCK_NAME = "added-seeds.lock"  # in the run directories; held while the file of added seeds is written
_SIMULATIONS = 1000  # of further seeds, for the chance of a decision
_UNKNOWN_CHANCE = 0.5  # of a part with fewer than two effects
_NEAR = 0.5  # of the best part's chance per hour: parts above are run in the same round
_LEAST_HOURS = 1e-4  # so that a run that costs next to nothing does not divide by zero


class Candidate(Frozen):
    """A part that is undecided, and the seeds that it would get next."""

    at: tuple[int, int]  # the positions of the claim and of the part
    part: PartEvidence
    seeds: tuple[int, ...]
    chances: tuple[float, ...]
    """The probability of a decision after 1, 2, ... further seeds, as simulated with the effects so far."""
    cells: tuple[Entry, ...] = ()  # to run for the seeds
    gpu_hours: float = 0.0  # that the cells take
    core_hours: float = 0.0  # that the cells take

    @property
    def value(self) -> float:
        """The chance of a decision per hour of the GPUs, or without a GPU of the cores."""
        each = max(self.gpu_hours or self.core_hours, _LEAST_HOURS) / len(self.seeds)
        return max(chance / (each * n) for n, chance in enumerate(self.chances, 1))


Round = Sequence[Candidate]


def entries_of(following: Iterable[Candidate]) -> list[Entry]:
    """Return the cells of a round, each once."""
    return list({entry.cell.key: entry for one in following for entry in one.cells}.values())


@dataclass
class Campaign:
    """Claims to decide, the cells to run for them, and what has been added so far."""

    claims: list[Claim]
    where: list[str]  # conditions on the cells to run
    level: float  # of the test
    max_seeds: int  # the most seeds of a part
    project: Project
    experiments: Experiments
    recorded: Callable[[list[Entry]], AbstractContextManager[Recorded]]  # opens what is recorded about some cells
    cost: Callable[[list[Entry]], Estimate]  # of running some cells
    added: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # seeds by grid and cell
    stuck: set[tuple[int, int]] = field(default_factory=set)  # positions (claim, part) whose runs gave no number
    rounds: int = 0  # of runs
    failed: bool = False  # whether a run failed

    def evidence(self, declared: Experiments | None = None) -> list[ClaimEvidence]:
        """Return the evidence on each claim from the recorded results of the cells of `declared`, by default of the
        file.
        """
        with self.recorded(self._cells(declared or self.experiments)) as known:
            return [assess(evaluate(claim, known), self.level) for claim in self.claims]

    def _cells(self, declared: Experiments) -> list[Entry]:
        """Return the cells of all grids that the claims compare."""
        return expand(declared, list(dict.fromkeys(grid for claim in self.claims for grid in claim.grids)))

    def next_round(self, state: Sequence[ClaimEvidence]) -> Round:
        """Return the most decisive runs for their cost: nothing if each claim is decided or no part may have more
        seeds.
        """
        return chosen(self._planned(self._candidates(state)))

    def remaining(self, state: Sequence[ClaimEvidence]) -> list[Entry]:
        """Return every cell that would run if no further part were decided."""
        return entries_of(self._planned(self._candidates(state, self.max_seeds)))

    def _candidates(self, state: Sequence[ClaimEvidence], step: int = 1) -> list[Candidate]:
        """Return the parts that may get further seeds, `step` at a time."""
        found = candidates(state, self.level, self.max_seeds, step)
        return [candidate for candidate in found if candidate.at not in self.stuck]

    def _planned(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Return the parts with the cells that their next seeds need, and their cost, without adding the seeds.

        Parts with a cell that does not match `where`, and parts without a cell to run, are left out.
        """
        if not found:
            return []
        declared = with_seeds(self.experiments, _additions(self.experiments, found))
        ahead = self.evidence(declared)
        matching = {entry.id for entry in select(self._cells(declared), self.where)}
        planned = []
        for candidate in found:
            claim, part = candidate.at
            waiting = ahead[claim].parts[part].waiting(candidate.seeds)
            cells = tuple({status.entry.cell.key: status.entry for status in waiting}.values())
            if cells and all(entry.id in matching for entry in cells):
                cost = self.cost(list(cells))
                planned.append(replace(candidate, cells=cells, gpu_hours=cost.gpu_hours, core_hours=cost.core_hours))
        return planned

    def add_seeds(self, following: Round) -> None:
        """Write the new seeds of a round to the file beside experiments.yaml, before anything is started."""
        new = _additions(self.experiments, following)
        if not new:
            return
        here = self.project
        try:
            here.runs.mkdir(parents=True, exist_ok=True)
            with locked(here.runs / _LOCK_NAME):
                add_seeds(here.config, new)
        except OSError as error:
            raise GpasError(f"{seeds_path(here.config)}: the seeds cannot be added: {error.strerror}") from error
        self.experiments = with_seeds(self.experiments, new)
        for grid, cells in new.items():
            for name, seeds in cells.items():
                known = self.added.setdefault(grid, {}).setdefault(name, [])
                known.extend(sorted(seeds - set(known)))

    def note_stuck(self, done: Round, before: Sequence[ClaimEvidence], state: Sequence[ClaimEvidence]) -> None:
        """Exclude parts for which a round gave no new number: their runs failed or were skipped."""
        for one in done:
            claim, part = one.at
            if state[claim].parts[part].seeds == before[claim].parts[part].seeds:
                self.stuck.add(one.at)

    def stuck_parts(self, state: Sequence[ClaimEvidence]) -> list[PartEvidence]:
        """Return the parts whose runs gave no number."""
        return [state[claim].parts[part] for claim, part in sorted(self.stuck)]


def candidates(claims: Sequence[ClaimEvidence], level: float, max_seeds: int, step: int = 1) -> list[Candidate]:
    """Return the parts of undecided claims that may get further seeds, `step` at a time, up to `max_seeds` each.

    With fewer seeds than any decision needs, a part gets the missing ones at once.
    """
    found = []
    for i, claim in enumerate(claims):
        if claim.verdict != UNDECIDED:
            continue
        for j, part in enumerate(claim.parts):
            seeds = _next(part, level, max_seeds, step) if part.verdict == UNDECIDED else ()
            if seeds:
                room = max(max_seeds - len(part.seeds), len(seeds))
                found.append(Candidate((i, j), part, seeds, chances(part, level, len(claim.parts), room)))
    return found


def _next(part: PartEvidence, level: float, max_seeds: int, step: int) -> tuple[int, ...]:
    if part.part.comparison.test != PAIRED_T:
        return part.pending
    wanted = min(max(step, fewest(level) - len(part.seeds)), max_seeds - len(part.seeds))
    if wanted <= 0:
        return ()
    if part.part.comparison.over != "seed" or not part.part.pairs:  # nothing to take further seeds from
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
        return tuple(_UNKNOWN_CHANCE * n / further for n in range(1, further + 1))
    one = unit(max(map(abs, filter(math.isfinite, (*part.finite, *bounds, scale)))))
    effects = np.array(part.finite) / one
    spread = float(((effects - effects.mean()) ** 2).sum())
    random = np.random.default_rng(0)
    deviation = np.sqrt(spread / random.chisquare(effects.size - 1, _SIMULATIONS))
    mean = random.normal(effects.mean(), deviation / math.sqrt(effects.size))
    future = random.normal(mean[:, None], deviation[:, None], (_SIMULATIONS, further))
    past = np.broadcast_to(effects, (_SIMULATIONS, effects.size))
    low, high = (bound / one for bound in bounds)
    inside, outside = log_evidence(np.concatenate([past, future], axis=1), low, high, scale / one)
    can_support, can_contradict = possible([x for x in part.effects if x is not None], *bounds)
    supported = (inside >= -math.log(level)) & can_support
    decided = supported | ((outside >= -math.log(level / parts)) & can_contradict)
    hits = decided[:, effects.size :].sum(axis=0)
    return tuple(float(hit + 1) / (_SIMULATIONS + 2) for hit in hits)  # never 0 or 1, so that parts keep an order


def chosen(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates to run in the next round, the most promising first."""
    best = max((candidate.value for candidate in found), default=0.0)
    near = [candidate for candidate in found if candidate.value >= _NEAR * best]
    return sorted(near, key=lambda candidate: -candidate.value)


def _additions(experiments: Experiments, found: Iterable[Candidate]) -> dict[str, dict[str, set[int]]]:
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
