"""`gpas run tuned`: find the best learning rate of each method of a grid; for `gpas run claims --tuned`, too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NoReturn

import typer

from gpas_cli.cli.console import say, warn
from gpas_cli.cli.options import DryRun, RunOptions, Where, complete_grid, with_grouped_options
from gpas_cli.cli.running import confirm_start, exit_with, plan_for, run_to_end
from gpas_cli.cli.selection import entries, experiments, project, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import headline
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extensions.campaigns.companions import write_tuned
from gpas_cli.extensions.campaigns.halving import Method, Trial, methods_of, rounds, settings_of
from gpas_cli.extensions.claims.measure import measure
from gpas_cli.grid.companions import tuned_name, tuned_path
from gpas_cli.grid.declared import Entry, Feature
from gpas_cli.grid.variant import vary
from gpas_cli.schedule.scheduler import choose
from gpas_cli.state.locks import locked
from gpas_cli.state.status import RETRIED
from gpas_cli.structure import Document, DocumentJson, Number
from gpas_cli.words import count, listed, significant

_RATE = "optim.lr"
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_LOCK_NAME = "tuned.lock"  # in the run directories; held while the file of tuned settings is written


class _TrialJson(Document):
    """A value and the validation perplexity, "inf" for a training that diverged."""

    value: float
    updates: Annotated[str, "of the cell's: all, 1/2 or 1/4"]
    perplexity: Number


class _MethodJson(Document):
    """The trials of one method."""

    cell: Annotated[str, "its name without the seed"]
    best: float | None
    at_edge: Annotated[bool, "whether the best is the smallest or largest value of the last round"]
    trainings: Annotated[float, "the cost of its trials, in whole trainings"]
    trials: Sequence[_TrialJson]


class RunTunedJson(DocumentJson):
    """The document of `gpas run tuned`."""

    exit_code: Annotated[int, (0, 3, 4)]
    grid: Annotated[str, "the grid that has each method at its best value"]
    setting: str
    trainings: Annotated[float, "the cost of the requested values for each method, in whole trainings"]
    methods: Sequence[_MethodJson]


@dataclass
class _Search:
    """The search for the best value of a setting for each method of a grid."""

    grid: str
    where: list[str] | None
    setting: str
    factors: tuple[float, ...]
    options: RunOptions

    def __post_init__(self) -> None:
        self.project = project()
        self.scheduler, _ = choose(self.options.executor, self.project.runs)
        self.methods = methods_of(experiments(), entries([self.grid], self.where), self.setting, self.factors)
        self.plan = rounds(len(set(self.factors)))

    def words(self) -> str:
        """Return what each method gets: "11 methods, each with 5 values of optim.lr: 5 in 1/4 of the updates, ..."."""
        parts = (
            f"{number} in {f'1/{share} of the updates' if share > 1 else 'whole trainings'}"
            for number, share in self.plan
        )
        values = f"{count(len(self.methods), 'method')}, each with {len(set(self.factors))} values of {self.setting}"
        return f"{values}: {', '.join(parts)}"

    def round(self, number: int, share: int) -> tuple[list[Entry], list[tuple[Method, float]]]:
        """Return the cells of a round, and the method and the value of each."""
        tried = [(method, value) for method in self.methods for value in method.ranked()[:number]]
        return self._cells(tried, share), tried

    def _cells(self, tried: Sequence[tuple[Method, float]], share: int) -> list[Entry]:
        cells = []
        for method, value in tried:
            (cell,) = vary(experiments(), [method.entry], settings_of(method, self.setting, value, share))
            cells.append(replace(cell, cell=replace(cell.cell, later=())))
        return cells

    def run(self) -> Exit:
        """Run all rounds and write the best values. Return the code to exit with."""
        say(self.words())
        for number, share in self.plan:
            cells, tried = self.round(number, share)
            if share == self.plan[0][1]:
                confirm_start(plan_for(self.scheduler, cells, RETRIED), "Start the first round?", self.options.yes)
            while tried:
                code = self._try(cells, tried, share)
                if code is not Exit.DONE:
                    say("Run the same command to resume from what is recorded; it runs failed trials again.")
                    return code
                tried = [(method, value) for method in self.methods if (value := method.beyond()) is not None]
                cells = self._cells(tried, share)
        self._write()
        return Exit.DONE

    def _try(self, cells: list[Entry], tried: Sequence[tuple[Method, float]], share: int) -> Exit:
        """Run trials and add them to their methods."""
        summary = run_to_end(self.scheduler, self.project, cells, self.options, RETRIED)
        with recorded_of(cells) as known:
            found = measure(cells, Feature(metric="perplexity"), "seed", known)
        numbers = [found[cell.id].value for cell in cells]
        if any(number is None for number in numbers):
            return Exit.FAILED if summary.failed else Exit.INCOMPLETE
        for (method, value), perplexity in zip(tried, numbers, strict=True):
            method.trials.append(Trial(value, share, math.inf if perplexity is None else perplexity))
        return Exit.DONE

    def _write(self) -> None:
        config = self.project.config
        best = {method.name: method.best for method in self.methods if method.best is not None}
        try:
            with locked(self.project.runs / _LOCK_NAME):
                write_tuned(config, self.grid, self.setting, best)
        except OSError as error:
            raise GpasError(f"{tuned_path(config)}: cannot be written: {error.strerror}") from error
        experiments.cache_clear()
        if edges := [method.name for method in self.methods if method.at_edge]:
            warn(f"{listed(edges, 4)}: the best value is still at the end of the range; widen it with --factors")

    def table(self) -> Columns:
        """Return a row for each method: the last perplexity of each value, and the best value."""
        lasts = [
            {float(f"{value / method.declared:.4g}"): trial for value, trial in method.last().items()}
            for method in self.methods
        ]
        factors = sorted({factor for last in lasts for factor in last} | set(self.factors))
        headers = ("method", *(f"x {factor:g}" for factor in factors), "best", "trainings")
        rows = []
        for method, last in zip(self.methods, lasts, strict=True):
            cells = [_shown(last.get(factor)) for factor in factors]
            best = "" if method.best is None else f"{method.best:g}"
            rows.append((method.name, *cells, best, f"{method.cost:g}"))
        title = f"Validation perplexity by {self.setting}, as a multiple of the declared one"
        return Columns(headers, rows, title=title, right=frozenset(headers[1:]))

    def finish(self, code: Exit) -> NoReturn:
        """Print the document and exit."""
        made = RunTunedJson(
            exit_code=code.value, grid=tuned_name(self.grid), setting=self.setting,
            trainings=sum(number / share for number, share in self.plan),
            methods=list(map(_method_json, self.methods)),
        )  # fmt: skip
        if code is Exit.DONE and any(method.trials for method in self.methods):
            say(f"Next: gpas run {tuned_name(self.grid)}, then gpas table {tuned_name(self.grid)}")
        exit_with(made, code, self.options.notify, f"gpas: {self.grid} {'tuned' if code is Exit.DONE else 'not tuned'}")


def _method_json(method: Method) -> _MethodJson:
    trials = [_TrialJson(value=one.value, updates=one.updates, perplexity=one.perplexity) for one in method.trials]
    return _MethodJson(
        cell=method.name, best=method.best, at_edge=method.at_edge, trainings=method.cost, trials=trials
    )  # fmt: skip


def _shown(trial: Trial | None) -> str:
    if trial is None:
        return ""
    text = significant(trial.perplexity, 4) if math.isfinite(trial.perplexity) else "diverged"
    return text if trial.share == 1 else f"{text} ({trial.updates})"


def tune(grids: Sequence[str], options: RunOptions) -> Exit:
    """Tune the learning rate in grids that have no tuned cells. Return the code of the first one that fails."""
    for grid in grids:
        if tuned_name(grid) not in experiments().grids:
            search = _Search(grid, None, _RATE, _FACTORS, options)
            code = search.run()
            say(search.table())
            if code is not Exit.DONE:
                return code
    return Exit.DONE


@with_grouped_options
def run_tuned(
    grid: Annotated[str, typer.Argument(help="A grid.", autocompletion=complete_grid)],
    where: Where = None,
    setting: Annotated[str, typer.Option("--setting", help="The setting to tune: a number above 0.")] = _RATE,
    factors: Annotated[
        str, typer.Option("--factors", help="Factors by which the declared value of each method is multiplied.")
    ] = ",".join(f"{factor:g}" for factor in _FACTORS),
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
    search = _Search(grid, where, setting, _factors(factors), options)
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
