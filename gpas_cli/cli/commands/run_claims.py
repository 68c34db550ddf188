"""`gpas run claims`: run further seeds until claims are decided."""

from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from gpas_cli.cli.commands.claims import Tuned, complete_claim
from gpas_cli.cli.commands.run import app, confirm_start, print_reasons, run_request
from gpas_cli.cli.commands.run_tuned import tune
from gpas_cli.cli.console import STATE, print_json, say
from gpas_cli.cli.options import complete_where
from gpas_cli.cli.running import RunOptions, plan_for, run_notify, with_run_options
from gpas_cli.cli.selection import experiments, project, recorded_of
from gpas_cli.cli.views.claims import conclusions, document, evidence_table, round_lines
from gpas_cli.cli.views.plan import occupied
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.grid.declared import Claim
from gpas_cli.report.claims.campaign import Campaign, Round, Rules, entries_of
from gpas_cli.report.claims.declared import select_claims, tuned_claims
from gpas_cli.report.claims.verdict import ClaimEvidence
from gpas_cli.schedule.scheduler import RunRequest, Scheduler, choose, scheduler_named
from gpas_cli.state.status import ALIVE
from gpas_cli.store.refresh import ingest
from gpas_cli.words import count, listed

_DECIDED = "decided"
_DECLARED = "declared"

_OnlyRun = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Run only parts whose cells match, such as size=71m; the verdict is on the whole claim. Repeat to narrow.",
        autocompletion=complete_where,
    ),
]


@app.command("claims")
@with_run_options
def run_claims(
    names: Annotated[list[str], typer.Argument(help="Claims, as in `gpas claims`.", autocompletion=complete_claim)],
    until: Annotated[
        str, typer.Option("--until", help="decided: add seeds; declared: only run the seeds that the grids declare.")
    ] = _DECIDED,
    max_seeds: Annotated[int, typer.Option("--max-seeds", min=2, help="The most seeds of each part of a claim.")] = 8,
    level: Annotated[
        float,
        typer.Option(
            "--level", min=0.0001, max=0.5, help="Upper bound on the probability of a wrong verdict on a claim."
        ),
    ] = 0.05,
    step: Annotated[
        int,
        typer.Option(
            "--step",
            min=1,
            help="Seeds that a round adds to a part; if it needs more for any decision, it gets these at once.",
        ),
    ] = 1,
    toy: Annotated[
        bool | None, typer.Option("--toy/--paper-size", help="The claims at toy size, or at the size of the paper.")
    ] = None,
    tuned: Tuned = False,
    where: _OnlyRun = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only print the evidence and what the next round would run.")
    ] = False,
    *,
    options: RunOptions,
) -> None:
    """Run seeds where they decide most, until each claim is supported or contradicted or has --max-seeds.

    After each round of runs, a sequential test judges all seeds so far. A claim gets a wrong verdict with a probability
    of at most --level, however many rounds there are and whenever they stop. The command waits for its runs, also on
    SLURM.

    Seeds that the grids do not declare are written to experiments.seeds.yaml, and are then cells of the grids. After an
    interruption, the same command resumes from what is recorded.

    With --tuned, each method is compared at its own best learning rate: grids that are not tuned are tuned first, as by
    `gpas run tuned`.

    Exit code 0 if each claim is decided, 3 if one is not, 4 if a run failed.

    Example: [bold]gpas run claims gpas-lowers-perplexity --toy --until decided --max-seeds 8[/bold]
    """
    if until not in (_DECIDED, _DECLARED):
        raise GpasError(f"--until: unknown word '{until}'; {nearest(until, (_DECIDED, _DECLARED))}")
    rules = Rules(level, max_seeds, step, until == _DECLARED)
    chosen = _claims(names, toy)
    if tuned:
        chosen = _tuned(chosen, options, dry_run=dry_run)
    _run(chosen, list(where or []), rules, options, dry_run=dry_run)


def _tuned(claims: list[Claim], options: RunOptions, *, dry_run: bool) -> list[Claim]:
    """Return the claims about tuned cells, after tuning what is not tuned. Exit if that does not end."""
    grids = list(dict.fromkeys(grid for claim in claims for grid in claim.grids))
    if not dry_run:
        code = tune(grids, options)
        if code is not Exit.DONE:
            raise typer.Exit(code)
    return tuned_claims(experiments(), claims)


def _run(claims: list[Claim], where: list[str], rules: Rules, options: RunOptions, *, dry_run: bool) -> NoReturn:
    """Run rounds until every claim is decided or nothing can be added, and exit."""
    choice = choose(options.executor, project().runs)
    scheduler = scheduler_named(choice.name, project().runs)
    if choice.note:
        say(choice.note)
    campaign = Campaign(
        claims, where, rules, project(), experiments(), recorded_of, lambda cells: plan_for(scheduler, cells).estimate
    )
    state = _shown(campaign)
    following = campaign.next_round(state)
    if dry_run:
        say(round_lines(following, state))
        _finish(campaign, state, options, following)
    if following:
        _ask(campaign, state, scheduler, options.yes)
    while following:
        say(round_lines(following, state))
        before = state
        stopped = _run_round(campaign, following, scheduler, options.jobs)
        state = _shown(campaign)
        if stopped:
            say("Run the same command to resume from what is recorded.")
            break
        campaign.note_stuck(following, before, state)
        following = campaign.next_round(state)
    _finish(campaign, state, options)


def _shown(campaign: Campaign) -> list[ClaimEvidence]:
    state = campaign.evidence()
    say(evidence_table(state, campaign.rules))
    return state


def _ask(campaign: Campaign, state: Sequence[ClaimEvidence], scheduler: Scheduler, yes: bool) -> None:
    """Print the most that the campaign can cost, and ask for confirmation if that is much."""
    planned = plan_for(scheduler, campaign.remaining(state))
    guess = planned.estimate
    jobs = count(len(planned.jobs), "job")
    say(f"At most {jobs}, about {occupied(guess.gpu_hours, guess.core_hours)}, if nothing is decided earlier.")
    confirm_start(planned, f"Start up to {jobs}?", yes)


def _run_round(campaign: Campaign, following: Round, scheduler: Scheduler, at_once: int | None) -> bool:
    """Add the seeds of a round and run its cells to their ends. Return whether the user stopped it."""
    here = project()
    campaign.add_seeds(following)
    request = RunRequest(project=here, entries=entries_of(following), at_once=at_once, ingest=lambda: ingest(here))
    _, summary = run_request(scheduler, request, wait=True)
    assert summary is not None  # waited for
    campaign.rounds += 1
    campaign.failed = campaign.failed or bool(summary.failed)
    print_reasons(summary)
    continuing = any(item.status.state in ALIVE for item in summary.skipped)  # without this process
    return bool(summary.interrupted) or continuing


def _finish(campaign: Campaign, state: Sequence[ClaimEvidence], options: RunOptions, following: Round = ()) -> NoReturn:
    """Print the outcome and exit."""
    undecided = any(claim.verdict == "undecided" for claim in state)
    code = Exit.FAILED if campaign.failed else Exit.INCOMPLETE if undecided else Exit.DONE
    for line in conclusions(state, campaign.stuck_parts(state), campaign.rules):
        say(line)
    made = document(campaign, state, following, code)
    if STATE.as_json:
        print_json(made)
    if options.notify:
        words = ", ".join(f"{claim.claim.name} {claim.verdict}" for claim in state)
        run_notify(options.notify, made, f"gpas: {words}")
    raise typer.Exit(code)


def _claims(names: Sequence[str], toy: bool | None) -> list[Claim]:
    """Return the named claims at one size each. Raises GpasError if a name has both and none is asked for."""
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
