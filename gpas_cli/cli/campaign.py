"""A campaign of `gpas run claims`: the evidence on some claims, and the rounds of runs that add to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpas_cli.cli.selection import project, recorded_of
from gpas_cli.errors import GpasError

if TYPE_CHECKING:
    from gpas_cli.grid.claim import Claim
    from gpas_cli.grid.declared import Experiments
    from gpas_cli.grid.entry import Entry
    from gpas_cli.plan.estimate import Estimate
    from gpas_cli.report.claims.rounds import Candidate
    from gpas_cli.report.claims.sequential import ClaimEvidence, PartEvidence
    from gpas_cli.schedule.scheduler import Scheduler

LOCK_NAME = "added-seeds.lock"  # in the run directories; held while the file of added seeds is written


@dataclass(frozen=True)
class Rules:
    """The level of the test, the seeds of each part, those that a round adds, and whether only declared ones run."""

    level: float
    max_seeds: int
    step: int
    declared_only: bool


@dataclass(frozen=True)
class Planned:
    """The next seeds of one part of a claim, the cells to run for them, and their cost."""

    part: Candidate
    cells: tuple[Entry, ...]
    cost: Estimate

    @property
    def hours(self) -> float:
        """The GPU-hours, or without a GPU the core-hours."""
        return self.cost.gpu_hours or self.cost.core_hours


Round = Sequence[Planned]


def entries_of(following: Iterable[Planned]) -> list[Entry]:
    """Return the cells of a round, each once."""
    return list({entry.cell.key: entry for one in following for entry in one.cells}.values())


@dataclass
class Campaign:
    """Claims to decide, the cells to run for them, and what has been added so far.

    where: conditions on the cells to run. added: seeds by grid and cell. stuck: positions (claim, part) whose runs gave
    no number. rounds: of runs. failed: whether a run failed.
    """

    claims: list[Claim]
    where: list[str]
    rules: Rules
    experiments: Experiments
    added: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    stuck: set[tuple[int, int]] = field(default_factory=set)
    rounds: int = 0
    failed: bool = False

    def look(self, declared: Experiments | None = None) -> list[ClaimEvidence]:
        """Return the evidence on each claim from the recorded results of the cells of `declared`, by default of the
        file.
        """
        from gpas_cli.report.claims.evaluate import evaluate
        from gpas_cli.report.claims.sequential import assess

        with recorded_of(self.cells(declared or self.experiments)) as known:
            return [assess(evaluate(claim, known), self.rules.level) for claim in self.claims]

    def cells(self, declared: Experiments) -> list[Entry]:
        """Return the cells of all grids that the claims compare."""
        from gpas_cli.grid.expand import expand

        return expand(declared, list(dict.fromkeys(grid for claim in self.claims for grid in claim.grids)))

    def next_round(self, state: Sequence[ClaimEvidence], scheduler: Scheduler) -> Round:
        """Return the most decisive runs for their cost: nothing if each claim is decided or no part may have more
        seeds.
        """
        from gpas_cli.report.claims.rounds import chosen

        every = self.planned(self.candidates(state, self.rules.step), scheduler)
        best = chosen([one.part for one in every], [one.hours for one in every])
        order = {candidate.at: place for place, candidate in enumerate(best)}
        return sorted((one for one in every if one.part.at in order), key=lambda one: order[one.part.at])

    def remaining(self, state: Sequence[ClaimEvidence], scheduler: Scheduler) -> list[Entry]:
        """Return every cell that would run if no further part were decided."""
        return entries_of(self.planned(self.candidates(state, self.rules.max_seeds), scheduler))

    def candidates(self, state: Sequence[ClaimEvidence], step: int) -> list[Candidate]:
        """Return the parts that may get further seeds, `step` at a time."""
        from gpas_cli.report.claims.rounds import candidates

        rules = self.rules
        found = candidates(state, rules.level, rules.max_seeds, step, rules.declared_only)
        return [candidate for candidate in found if candidate.at not in self.stuck]

    def planned(self, found: Sequence[Candidate], scheduler: Scheduler) -> list[Planned]:
        """Return the cells that the next seeds of these parts need, and their cost, without adding the seeds.

        Parts with a cell that does not match `where` are left out, and so are those without a cell to run.
        """
        from gpas_cli.cli.planning import plan_for
        from gpas_cli.grid.seeds import with_seeds
        from gpas_cli.grid.select import select
        from gpas_cli.report.claims.rounds import additions

        if not found:
            return []
        declared = with_seeds(self.experiments, additions(self.experiments, found))
        ahead = self.look(declared)
        matching = {entry.id for entry in select(self.cells(declared), self.where)}
        planned = []
        for candidate in found:
            claim, part = candidate.at
            waiting = ahead[claim].parts[part].waiting(candidate.seeds)
            cells = tuple({status.entry.cell.key: status.entry for status in waiting}.values())
            if cells and all(entry.id in matching for entry in cells):
                planned.append(Planned(candidate, cells, plan_for(scheduler, list(cells)).estimate))
        return planned

    def add_seeds(self, following: Round) -> None:
        """Write the new seeds of a round to the file beside experiments.yaml, before anything is started."""
        from gpas_cli.grid.seeds import add_seeds, seeds_path, with_seeds
        from gpas_cli.report.claims.rounds import additions
        from gpas_cli.state.locks import locked

        new = additions(self.experiments, [one.part for one in following])
        if not new:
            return
        here = project()
        try:
            here.runs.mkdir(parents=True, exist_ok=True)
            with locked(here.runs / LOCK_NAME):
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
            claim, part = one.part.at
            if state[claim].parts[part].seeds == before[claim].parts[part].seeds:
                self.stuck.add(one.part.at)

    def stuck_parts(self, state: Sequence[ClaimEvidence]) -> list[PartEvidence]:
        """Return the parts whose runs gave no number."""
        return [state[claim].parts[part] for claim, part in sorted(self.stuck)]
