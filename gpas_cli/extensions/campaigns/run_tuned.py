"""`gpas run tuned`: find the best learning rate of each method of a grid."""

import math
from typing import Annotated

import typer

from gpas_cli.cli.console import say
from gpas_cli.cli.options import DryRun, RunOptions, Where, complete_grid, with_grouped_options
from gpas_cli.cli.running import plan_for
from gpas_cli.cli.views.plan import headline
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extensions.campaigns.tuning import FACTORS, RATE, Search


@with_grouped_options
def run_tuned(
    grid: Annotated[str, typer.Argument(help="A grid.", autocompletion=complete_grid)],
    where: Where = None,
    setting: Annotated[str, typer.Option("--setting", help="The setting to tune: a number above 0.")] = RATE,
    factors: Annotated[
        str, typer.Option("--factors", help="Factors by which the declared value of each method is multiplied.")
    ] = ",".join(f"{factor:g}" for factor in FACTORS),
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Find the best learning rate of each method, all with the same effort, and declare a grid with these.

    Every rate is tried in a training of a quarter of the updates, the best half of six or more rates in half of them,
    and the last two in whole trainings, all with the first seed. If the best rate of a round is its lowest or highest,
    the next one beyond it is tried, too, up to four for each method. The results are in experiments.tuned.yaml, and
    `gpas run GRID-tuned`, `gpas table GRID-tuned` and `gpas claims --tuned` use them. Running it twice is free; trials
    that failed are run again.

    Exit code 0 if each method is tuned, 3 if one is not, 4 if a run failed.

    Example: gpas run tuned quickstart --where norm=pre --factors 0.5,1,2,4
    """
    search = Search(grid, where, setting, _factors(factors), options)
    if dry_run:
        first, _ = search.round(*search.plan[0])
        planned = plan_for(search.scheduler, first)
        say(search.words())
        say(f"The first round: {headline(planned)}")
        search.finish(Exit.DONE)
    code = search.run()
    say(search.table())
    search.finish(code)


def _factors(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(set(found)) < 2 or not all(math.isfinite(factor) and factor > 0 for factor in found):
        raise GpasError(f"--factors: write two or more numbers above 0, such as 0.5,1,2; not '{text}'")
    return found
