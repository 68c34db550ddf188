"""`gpas run claims`: run further seeds until claims are decided."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer

from gpas_cli.cli.console import STATE, say
from gpas_cli.cli.options import DryRun, RunOptions, Where, with_grouped_options
from gpas_cli.cli.running import confirm_start, exit_with, plan_for, run_to_end
from gpas_cli.cli.selection import experiments, project, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import occupied
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extensions.campaigns.campaign import Campaign, Round, entries_of
from gpas_cli.extensions.campaigns.run_tuned import tune
from gpas_cli.extensions.claims.declared import select_claims, tuned_claims
from gpas_cli.extensions.claims.options import Tuned, complete_claim
from gpas_cli.extensions.claims.verdict import ClaimEvidence, PartEvidence, VerdictWord, styled
from gpas_cli.grid.declared import Claim
from gpas_cli.schedule.scheduler import Scheduler, choose
from gpas_cli.state.status import ALIVE
from gpas_cli.structure import Document, DocumentJson, Number
from gpas_cli.words import count, listed

_NAMED = 6  # cells in one line


class _EvidencePartJson(Document):
    """The evidence on one part of a claim."""

    title: str
    labels: Annotated[Mapping[str, Any], "the labels on the axes `by`"]
    verdict: VerdictWord
    seeds: Annotated[Sequence[int], "the seeds that the evidence is made of, in order"]
    effects: Annotated[Sequence[Number | None], "of these seeds; null if both runs diverged"]
    effect: Annotated[float | None, "the mean of the finite effects; of ratios, the geometric mean"]
    interval: Annotated[Sequence[float] | None, "the confidence sequence; null: still unbounded"]
    e_for: Annotated[float, "e-value for the claimed interval; the part is supported from 1 / level on"]
    e_against: Annotated[float, "e-value against it"]
    pending: Annotated[Sequence[int], "further seeds of the grids that are not all recorded"]


class _EvidenceJson(Document):
    """The evidence on one claim."""

    name: str
    statement: str
    toy: bool
    verdict: VerdictWord
    reason: str
    parts: Sequence[_EvidencePartJson]


class _NextSeedsJson(Document):
    """What the next round would run for one part."""

    claim: str
    part: str
    seeds: Sequence[int]
    cells: Sequence[str]
    gpu_hours: float
    core_hours: float
    chances: Annotated[Sequence[float], "of a decision after 1, 2, ... further seeds, by the effects so far"]


class RunClaimsJson(DocumentJson):
    """The document of `gpas run claims`."""

    exit_code: int
    level: Annotated[float, "the probability of a wrong verdict, at most"]
    max_seeds: int
    rounds: Annotated[int, "rounds of runs in this invocation"]
    claims: Sequence[_EvidenceJson]
    added: Annotated[Mapping[str, Mapping[str, Sequence[int]]], "seeds added by this invocation, by grid and cell"]
    next: Annotated[Sequence[_NextSeedsJson], "of --dry-run"]


@with_grouped_options
def run_claims(
    names: Annotated[list[str], typer.Argument(help="Claims, as in `gpas claims`.", autocompletion=complete_claim)],
    max_seeds: Annotated[int, typer.Option("--max-seeds", min=2, help="The most seeds of each part of a claim.")] = 8,
    level: Annotated[
        float,
        typer.Option(
            "--level", min=0.0001, max=0.5, help="Upper bound on the probability of a wrong verdict on a claim."
        ),
    ] = 0.05,
    toy: Annotated[
        bool | None, typer.Option("--toy/--paper-size", help="The claims at toy size, or at the size of the paper.")
    ] = None,
    tuned: Tuned = False,
    where: Where = None,
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Run seeds where they decide most, until each claim is supported or contradicted or has --max-seeds.

    After each round of runs, a sequential test judges all seeds so far. A claim gets a wrong verdict with a probability
    of at most --level, however many rounds there are and whenever they stop. The command waits for its runs, also on
    SLURM.

    Seeds that the grids do not declare are written to experiments.seeds.yaml, and are then cells of the grids. After an
    interruption, the same command resumes from what is recorded.

    With --where, only the parts whose cells match run further seeds; the verdict is on the whole claim. With --dry-run,
    prints the evidence and what the next round would run.

    With --tuned, each method is compared at its own best learning rate: grids that are not tuned are tuned first, as by
    `gpas run tuned`.

    Exit code 0 if each claim is decided, 3 if one is not, 4 if a run failed.

    Example: gpas run claims gpas-lowers-perplexity --toy --max-seeds 8
    """
    STATE.check_reports = True
    chosen = _claims(names, toy)
    if tuned:
        code = Exit.DONE if dry_run else tune([grid for claim in chosen for grid in claim.grids], options)
        if code is not Exit.DONE:
            raise typer.Exit(code)
        chosen = tuned_claims(experiments(), chosen)
    scheduler, note = choose(options.executor, project().runs)
    if note:
        say(note)
    campaign = Campaign(
        chosen, list(where or []), level, max_seeds, project(), experiments(), recorded_of,
        lambda cells: plan_for(scheduler, cells).estimate,
    )  # fmt: skip
    _run(campaign, scheduler, options, dry_run=dry_run)


def _run(campaign: Campaign, scheduler: Scheduler, options: RunOptions, *, dry_run: bool) -> NoReturn:
    """Run rounds until every claim is decided or nothing can be added, and exit."""
    state = _shown(campaign)
    following = campaign.next_round(state)
    if dry_run:
        say(_round_lines(following, state))
        _finish(campaign, state, options, following)
    if following:
        _ask(campaign, state, scheduler, options.yes)
    while following:
        say(_round_lines(following, state))
        before = state
        stopped = _run_round(campaign, following, scheduler, options)
        state = _shown(campaign)
        if stopped:
            say("Run the same command to resume from what is recorded.")
            break
        campaign.note_stuck(following, before, state)
        following = campaign.next_round(state)
    _finish(campaign, state, options)


def _shown(campaign: Campaign) -> list[ClaimEvidence]:
    state = campaign.evidence()
    say(_evidence_table(state, campaign))
    return state


def _ask(campaign: Campaign, state: Sequence[ClaimEvidence], scheduler: Scheduler, yes: bool) -> None:
    """Print the most that the campaign can cost, and ask for confirmation if that is much."""
    planned = plan_for(scheduler, campaign.remaining(state))
    guess = planned.estimate
    jobs = count(len(planned.jobs), "job")
    say(f"At most {jobs}, about {occupied(guess.gpu_hours, guess.core_hours)}, if nothing is decided earlier.")
    confirm_start(planned, f"Start up to {jobs}?", yes)


def _run_round(campaign: Campaign, following: Round, scheduler: Scheduler, options: RunOptions) -> bool:
    """Add the seeds of a round and run its cells to their ends. Return whether the user stopped it."""
    campaign.add_seeds(following)
    summary = run_to_end(scheduler, project(), entries_of(following), options)
    campaign.rounds += 1
    campaign.failed = campaign.failed or bool(summary.failed)
    continuing = any(item.status.state in ALIVE for item in summary.skipped)  # without this process
    return bool(summary.interrupted) or continuing


def _finish(campaign: Campaign, state: Sequence[ClaimEvidence], options: RunOptions, following: Round = ()) -> NoReturn:
    """Print the outcome and exit."""
    undecided = any(claim.verdict == "undecided" for claim in state)
    code = Exit.FAILED if campaign.failed else Exit.INCOMPLETE if undecided else Exit.DONE
    for line in _conclusions(state, campaign):
        say(line)
    words = ", ".join(f"{claim.claim.name} {claim.verdict}" for claim in state)
    exit_with(_document(campaign, state, following, code), code, options.notify, f"gpas: {words}")


def _claims(names: Sequence[str], toy: bool | None) -> list[Claim]:
    """Return the named claims at one size each. Raises GpasError if a name has both sizes and `toy` is None."""
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


def _evidence_table(claims: Sequence[ClaimEvidence], campaign: Campaign) -> Columns:
    """Return a row for each claim and each of its parts: seeds, mean effect, interval and e-values."""
    rows: list[tuple[Any, ...]] = []
    for claim in claims:
        whole = styled(claim.verdict)
        if len(claim.parts) == 1:
            rows.append((claim.claim.name, *_numbers(claim.parts[0], campaign), whole))
            continue
        rows.append((claim.claim.name, "", "", "", "", "", whole))
        for part in claim.parts:
            rows.append((f"  {part.part.title}", *_numbers(part, campaign), styled(part.verdict)))
    percent = f"{100 * (1 - campaign.level):g} % interval"
    headers = ("claim", "seeds", "effect", percent, "for", "against", "verdict")
    return Columns(headers, rows, right=frozenset(("seeds", "effect", "for", "against")))


def _numbers(part: PartEvidence, campaign: Campaign) -> tuple[str, str, str, str, str]:
    effect = "" if part.effect is None else f"{part.effect:+.4g}"
    limits = part.interval
    interval = "" if limits is None else f"{limits[0]:+.4g} to {limits[1]:+.4g}"
    seeds = f"{len(part.seeds)}/{max(campaign.max_seeds, len(part.seeds))}"
    return seeds, effect, interval, _e(part.evidence.inside), _e(part.evidence.outside)


def _e(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0e}" if value < 1e300 else "certain"


def _round_lines(following: Round, state: Sequence[ClaimEvidence]) -> str:
    """Return what a round runs: a line for each part that gets seeds."""
    lines = []
    for one in following:
        number = len(one.seeds)
        name = ", ".join(filter(None, (state[one.at[0]].claim.name, one.part.part.title)))
        hours = (one.gpu_hours, one.core_hours)  # 0 if all jobs are queued, running or over
        cost = f"about {occupied(*hours)}" if any(hours) else "no new job"
        seeds = f"{'seed' if number == 1 else 'seeds'} {listed([str(seed) for seed in one.seeds], _NAMED)}"
        lines.append(
            f"{name}: {seeds}, {count(len(one.cells), 'cell')}, "
            f"{cost}; decides it with a chance of {100 * one.chances[number - 1]:.0f} %"
        )
    return "\n".join(["Next:", *(f"  {line}" for line in lines)] if lines else ["Nothing to run."])


def _conclusions(claims: Sequence[ClaimEvidence], campaign: Campaign) -> Iterator[str]:
    """Yield a sentence for each claim, and what prevents parts from getting more seeds."""
    most = campaign.max_seeds
    for claim in claims:
        name = claim.claim.name
        if claim.reason:
            yield f"{name}: {claim.reason}"
        elif claim.verdict != "undecided":
            yield f"{name} is {claim.verdict}, by a test that errs with a probability of at most {campaign.level:g}."
        elif all(len(part.seeds) >= most for part in claim.parts if part.verdict == "undecided"):
            yield f"{name} is undecided with {most} seeds; --max-seeds {2 * most} continues."
        else:
            yield f"{name} is undecided."
    for part in campaign.stuck_parts(claims):
        blocking = {status.entry.id: status.state for status in part.waiting(part.pending[:1])}
        if blocking:
            cells = listed([f"{name} ({state})" for name, state in blocking.items()], _NAMED)
            yield f"{part.part.title or part.part.comparison.says}: no number from {cells}; see `gpas why CELL`"


def _document(campaign: Campaign, claims: Sequence[ClaimEvidence], following: Round, code: Exit) -> RunClaimsJson:
    return RunClaimsJson(
        exit_code=int(code),
        level=campaign.level,
        max_seeds=campaign.max_seeds,
        rounds=campaign.rounds,
        claims=[
            _EvidenceJson(
                name=one.claim.name, statement=one.claim.statement, toy=one.claim.toy, verdict=one.verdict,
                reason=one.reason, parts=list(map(_part_json, one.parts)),
            )
            for one in claims
        ],
        added=campaign.added,
        next=[
            _NextSeedsJson(
                claim=claims[one.at[0]].claim.name, part=one.part.part.title, seeds=one.seeds,
                cells=[entry.id for entry in one.cells], gpu_hours=one.gpu_hours, core_hours=one.core_hours,
                chances=one.chances,
            )
            for one in following
        ],
    )  # fmt: skip


def _part_json(part: PartEvidence) -> _EvidencePartJson:
    return _EvidencePartJson(
        title=part.part.title, labels=part.part.labels, verdict=part.verdict, seeds=part.seeds, effects=part.shown,
        effect=part.effect, interval=part.interval, e_for=part.evidence.inside, e_against=part.evidence.outside,
        pending=part.pending,
    )  # fmt: skip
