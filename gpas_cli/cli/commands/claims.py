"""`gpas claims`: what the results say about the papers' claims and the user's own."""

from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, complete_grid, offer
from gpas_cli.cli.selection import entries, experiments, recorded_of
from gpas_cli.cli.views.claims import detailed, overview
from gpas_cli.grid.declared import Claim
from gpas_cli.report.claims.declared import all_claims, select_claims, tuned_claims, undeclared_claims
from gpas_cli.report.claims.evaluate import evaluate
from gpas_cli.report.claims.verdict import ClaimsJson, Verdict, claim_json
from gpas_cli.spec.stage import CONVERGENCE

Tuned = Annotated[
    bool, typer.Option("--tuned", help="Compare each method at its own best learning rate, as `gpas run tuned` found.")
]
complete_claim = offer(lambda: all_claims(experiments()))


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Claims to show in detail; by default, a line for each.", autocompletion=complete_claim),
    ] = None,
    grids: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", "-g", help="Only claims about this grid. Repeat for more.", autocompletion=complete_grid
        ),
    ] = None,
    sources: Annotated[
        list[str] | None, typer.Option("--source", help="Only claims of this paper: gpas, curse_of_depth, ...")
    ] = None,
    toy: Annotated[
        bool | None, typer.Option("--toy/--paper-size", help="Only claims at toy size, or only at paper size.")
    ] = None,
    tuned: Tuned = False,
    as_json: AsJson = False,
) -> None:
    """Say for each claim whether the results support or contradict it, or leave it undecided.

    You declare claims in experiments.yaml under `claims`; those of the papers are built in.

    Example: [bold]gpas claims gpas-lowers-perplexity --toy[/bold]
    """
    chosen = select_claims(experiments(), names or (), grids=grids or (), sources=sources or (), toy=toy)
    if tuned:
        chosen = tuned_claims(experiments(), chosen)
    verdicts = _verdicts(chosen) if chosen else []
    if as_json:
        print_json(ClaimsJson(schema=1, claims=[claim_json(verdict) for verdict in verdicts]))
        return
    shown = detailed(verdicts) if names else overview(verdicts, undeclared_claims(experiments()))
    for part in shown:
        say(part)


def _verdicts(chosen: list[Claim]) -> list[Verdict]:
    declared = experiments().grids
    grids = [grid for claim in chosen for grid in claim.grids if grid in declared]
    values = [comparison.value for claim in chosen for comparison in claim.comparisons]
    curves = any(value.curve or value.metric in CONVERGENCE for value in values)
    with recorded_of(entries(list(dict.fromkeys(grids))), database=curves) as known:
        return [evaluate(claim, known) for claim in chosen]
