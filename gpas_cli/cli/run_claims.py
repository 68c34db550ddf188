"""`gpas run claims`: run further seeds until claims are decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gpas_cli.cli.claims import complete_claim
from gpas_cli.cli.console import STATE, complete_where, confirm, console, experiments, print_json, project
from gpas_cli.cli.outcome import run_notify
from gpas_cli.cli.run import ASK_ABOVE_HOURS, print_reasons, run_request
from gpas_cli.cli.run_options import RunOptions, with_run_options
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.words import count, listed

if TYPE_CHECKING:
    from gpas_cli.grid.claim import Claim
    from gpas_cli.grid.declared import Experiments
    from gpas_cli.grid.entry import Entry
    from gpas_cli.plan.estimate import Estimate
    from gpas_cli.report.claims.rounds import Candidate
    from gpas_cli.report.claims.sequential import ClaimEvidence
    from gpas_cli.schedule.scheduler import Scheduler
    from gpas_cli.schedule.summary import RunSummary

DECIDED = "decided"
DECLARED = "declared"
LOCK_NAME = "added-seeds.lock"  # in the run directories; held while the file of added seeds is written

OnlyRun = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Run only parts whose cells match, such as size=71m; the verdict is on the whole claim. Repeat to narrow.",
        autocompletion=complete_where,
    ),
]


@with_run_options
def run_claims(
    names: Annotated[list[str], typer.Argument(help="Claims, as in `gpas claims`.", autocompletion=complete_claim)],
    until: Annotated[
        str, typer.Option("--until", help="decided: add seeds; declared: only run the seeds that the grids declare.")
    ] = DECIDED,
    max_seeds: Annotated[int, typer.Option("--max-seeds", min=2, help="Seeds of each part of a claim, at most.")] = 8,
    level: Annotated[
        float, typer.Option("--level", min=0.0001, max=0.5, help="Probability of a wrong verdict on a claim, at most.")
    ] = 0.05,
    step: Annotated[int, typer.Option("--step", min=1, help="Seeds that a round adds to a part.")] = 1,
    toy: Annotated[
        bool | None, typer.Option("--toy/--paper-size", help="The claims at toy size, or at the size of the paper.")
    ] = None,
    where: OnlyRun = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only print the evidence and what the next round would run.")
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Run seeds where they decide most, until each claim is supported or contradicted or has --max-seeds.

    After each round of runs, a sequential test judges all seeds so far. However often it looks and whenever it stops, a
    claim gets a wrong verdict with a probability of at most --level. The command waits for its runs, on SLURM too.

    Seeds that the grids do not declare are written to experiments.seeds.yaml, and are then cells of the grids. After an
    interruption, the same command resumes from what is recorded.

    Exit code 0 if each claim is decided, 3 if one is not, 4 if a run failed.

    Example: [bold]gpas run claims gpas-lowers-perplexity --toy --until decided --max-seeds 8[/bold]
    """
    if until not in (DECIDED, DECLARED):
        raise GpasError(f"--until: unknown word '{until}'; {nearest(until, (DECIDED, DECLARED))}")
    rules = Rules(level, max_seeds, step, until == DECLARED)
    campaign = Campaign(_claims(names, toy), list(where or []), rules, experiments(), options)
    campaign.run(dry_run=dry_run)


@dataclass(frozen=True)
class Rules:
    """The level of the test, the seeds of each part, those that a round adds, and whether only declared ones run."""

    level: float
    max_seeds: int
    step: int
    declared_only: bool


@dataclass(frozen=True)
class Round:
    """The parts that get seeds next, the cells to run for each, and what they cost."""

    parts: tuple[Candidate, ...] = ()
    cells: tuple[tuple[Entry, ...], ...] = ()
    costs: tuple[Estimate, ...] = ()

    @staticmethod
    def of(rows: Sequence[tuple[Candidate, tuple[Entry, ...], Estimate]]) -> Round:
        """Return the round of these parts, each with its cells and their cost."""
        return Round(tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows))

    def rows(self) -> list[tuple[Candidate, tuple[Entry, ...], Estimate]]:
        """Return each part with its cells and their cost."""
        return list(zip(self.parts, self.cells, self.costs, strict=True))

    @property
    def entries(self) -> list[Entry]:
        """The cells of all parts, each once."""
        return list({entry.cell.key: entry for cells in self.cells for entry in cells}.values())


@dataclass
class Campaign:
    """Rounds of runs for some claims. `stuck` are parts whose runs gave no number; `failed`: a run failed."""

    claims: list[Claim]
    where: list[str]
    rules: Rules
    experiments: Experiments
    options: RunOptions
    stuck: set[tuple[int, int]] = field(default_factory=set)
    added: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    rounds: int = 0
    failed: bool = False

    def run(self, *, dry_run: bool) -> NoReturn:
        """Run rounds until every claim is decided or nothing can be added, and exit."""
        from gpas_cli.cli.evidence_view import evidence_table, round_lines
        from gpas_cli.schedule.scheduler import choose, scheduler_named

        choice = choose(self.options.executor)
        scheduler = scheduler_named(choice.name, project().runs)
        if choice.note:
            console().print(choice.note, markup=False)
        state = self.look(self.experiments)
        console().print(evidence_table(state, self.rules))
        following = self.next_round(state, scheduler)
        if dry_run:
            console().print(round_lines(following, state), markup=False)
            self.finish(state, following)
        if following.parts:
            self.ask(state, scheduler)
        while following.parts:
            console().print(round_lines(following, state), markup=False)
            before = state
            stopped = self.run_round(following, scheduler)
            state = self.look(self.experiments)
            console().print(evidence_table(state, self.rules))
            if stopped:
                console().print("Run the same command to resume from what is recorded.")
                break
            self.note_stuck(following, before, state)
            following = self.next_round(state, scheduler)
        self.finish(state, Round())

    def look(self, declared: Experiments) -> list[ClaimEvidence]:
        """Return the evidence on each claim by what is recorded of the cells of `declared`."""
        from gpas_cli.report.claims.evaluate import evaluate
        from gpas_cli.report.claims.sequential import assess
        from gpas_cli.report.recorded import recorded

        with recorded(project(), self.cells(declared)) as known:
            if known.problem:
                console().print(known.problem, style="yellow", markup=False)
            return [assess(evaluate(claim, known), self.rules.level) for claim in self.claims]

    def cells(self, declared: Experiments) -> list[Entry]:
        """Return the cells of all grids that the claims compare."""
        from gpas_cli.grid.expand import expand

        return expand(declared, list(dict.fromkeys(grid for claim in self.claims for grid in claim.grids)))

    def next_round(self, state: Sequence[ClaimEvidence], scheduler: Scheduler) -> Round:
        """Return what decides most for its cost: nothing if each claim is decided or no part may have more seeds."""
        from gpas_cli.report.claims.rounds import candidates, chosen

        rules = self.rules
        found = candidates(state, rules.level, rules.max_seeds, rules.step, rules.declared_only)
        every = self.planned([candidate for candidate in found if candidate.at not in self.stuck], scheduler)
        best = {candidate.at for candidate in chosen(every.parts, [_hours(cost) for cost in every.costs])}
        return Round.of([one for one in every.rows() if one[0].at in best])

    def planned(self, found: Sequence[Candidate], scheduler: Scheduler) -> Round:
        """Return the cells that the next seeds of these parts need, and their cost, without adding the seeds.

        Parts with a cell that does not match --where are left out, and so are those without a cell to run.
        """
        from gpas_cli.cli.plan import plan_for
        from gpas_cli.grid.seeds import with_seeds
        from gpas_cli.grid.select import select
        from gpas_cli.report.claims.rounds import additions

        if not found:
            return Round()
        declared = with_seeds(self.experiments, additions(self.experiments, found))
        ahead = self.look(declared)
        matching = {entry.id for entry in select(self.cells(declared), self.where)}
        rows = []
        for candidate in found:
            claim, part = candidate.at
            waiting = ahead[claim].parts[part].waiting(candidate.seeds)
            cells = tuple({status.entry.cell.key: status.entry for status in waiting}.values())
            if cells and all(entry.id in matching for entry in cells):
                rows.append((candidate, cells, plan_for(scheduler, list(cells)).estimate))
        return Round.of(rows)

    def ask(self, state: Sequence[ClaimEvidence], scheduler: Scheduler) -> None:
        """Print what the campaign costs at most, and ask for confirmation if that is much."""
        from gpas_cli.cli.plan import cost, plan_for
        from gpas_cli.report.claims.rounds import candidates

        rules = self.rules
        most = candidates(state, rules.level, rules.max_seeds, rules.max_seeds, rules.declared_only)
        planned = plan_for(scheduler, self.planned(most, scheduler).entries)
        guess = planned.estimate
        jobs = count(len(planned.jobs), "job")
        console().print(f"At most {jobs}, about {cost(guess)}, if nothing is decided earlier.", markup=False)
        for warning in planned.warnings:
            console().print(warning, style="yellow", markup=False)
        if (guess.gpu_hours + guess.core_hours if guess.wall_hours is None else guess.wall_hours) > ASK_ABOVE_HOURS:
            confirm(f"Start up to {jobs}?", self.options.yes)

    def run_round(self, following: Round, scheduler: Scheduler) -> bool:
        """Add the seeds of a round and run its cells to their ends. Return whether the user stopped it."""
        from gpas_cli.schedule.scheduler import RunRequest
        from gpas_cli.store.refresh import ingest

        here = project()
        self.add(following)
        request = RunRequest(
            project=here, entries=following.entries, at_once=self.options.jobs, ingest=lambda: ingest(here)
        )
        _, summary = run_request(scheduler, request, wait=True)
        assert summary is not None  # waited for
        self.rounds += 1
        self.failed = self.failed or bool(summary.failed)
        print_reasons(summary)
        return bool(summary.interrupted) or _unended(summary)

    def add(self, following: Round) -> None:
        """Write the new seeds of a round to the file beside experiments.yaml, before anything is started."""
        from gpas_cli.grid.seeds import add_seeds, seeds_path, with_seeds
        from gpas_cli.report.claims.rounds import additions
        from gpas_cli.state.locks import locked

        new = additions(self.experiments, following.parts)
        if not new:
            return
        here = project()
        here.runs.mkdir(parents=True, exist_ok=True)
        path = seeds_path(here.config)
        try:
            with locked(here.runs / LOCK_NAME):
                add_seeds(here.config, new)
        except OSError as error:
            raise GpasError(f"{path}: the seeds cannot be added: {error.strerror}") from error
        self.experiments = with_seeds(self.experiments, new)
        for grid, cells in new.items():
            for name, seeds in cells.items():
                known = self.added.setdefault(grid, {}).setdefault(name, [])
                known.extend(sorted(seeds - set(known)))

    def note_stuck(self, done: Round, before: Sequence[ClaimEvidence], state: Sequence[ClaimEvidence]) -> None:
        """Leave out parts that a round brought no further: their runs failed, or were skipped."""
        for candidate in done.parts:
            claim, part = candidate.at
            if state[claim].parts[part].seeds == before[claim].parts[part].seeds:
                self.stuck.add(candidate.at)

    def finish(self, state: Sequence[ClaimEvidence], following: Round) -> NoReturn:
        """Print the outcome and exit."""
        from gpas_cli.cli.evidence_view import as_mapping, conclusions

        undecided = any(claim.verdict == "undecided" for claim in state)
        code = Exit.FAILED if self.failed else Exit.INCOMPLETE if undecided else Exit.DONE
        stuck = [state[claim].parts[part] for claim, part in sorted(self.stuck)]
        for line in conclusions(state, stuck, self.rules):
            console().print(line, markup=False)
        document = as_mapping(self, state, following, code)
        if STATE.as_json:
            print_json(**document)
        if self.options.notify:
            words = ", ".join(f"{claim.claim.name} {claim.verdict}" for claim in state)
            run_notify(self.options.notify, document, f"gpas: {words}")
        raise typer.Exit(code)


def _claims(names: Sequence[str], toy: bool | None) -> list[Claim]:
    """Return the named claims at one size each. Raises GpasError if a name has both and none is asked for."""
    from gpas_cli.report.claims.declared import select_claims

    chosen = select_claims(experiments(), names, toy=toy)
    for name in names:
        sizes = [claim for claim in chosen if claim.name == name]
        if not sizes:
            raise GpasError(f"claim {name} is not declared at {'toy' if toy else 'paper'} size")
        if len(sizes) > 1:
            raise GpasError(f"claim {name} is declared at paper size and at toy size; add --paper-size or --toy")
        absent = [grid for grid in sizes[0].grids if grid not in experiments().grids]
        if absent:
            raise GpasError(f"claim {name} needs {listed(absent, 4)}, which {project().config.name} does not declare")
    return chosen


def _hours(cost: Estimate) -> float:
    return cost.gpu_hours or cost.core_hours


def _unended(summary: RunSummary) -> bool:
    """Return whether runs go on elsewhere: this process stopped waiting for them."""
    return any(item.status.state in ("queued", "running") for item in summary.skipped)
