"""`gpas table`: results in the layout of the paper; with --missing, the cells without a number and what fills them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, Where, complete_paper, complete_table, offer
from gpas_cli.cli.printed import paper_sections, printed_tables, with_others
from gpas_cli.cli.selection import entries, experiments, project, recorded_of, split_settings, varied_entries
from gpas_cli.cli.views.columns import Columns
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.declared import Entry, TableSpec
from gpas_cli.grid.document import spelled
from gpas_cli.report import papers
from gpas_cli.report.labels import has_labels
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables import render
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.grid_table import beside_published, build, by_metrics, with_bits_per_byte
from gpas_cli.report.tables.paper_table import published_table
from gpas_cli.report.tables.sheet import Drawn
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.table_place import Unfilled, remedies, unfilled
from gpas_cli.spec.extensions import metrics
from gpas_cli.spec.stage import CONVERGENCE
from gpas_cli.state.status import RETRIED
from gpas_cli.structure import Document, DocumentJson

if TYPE_CHECKING:
    from gpas_cli.plan.plan import Plan

_TableNames = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids in experiments.yaml (by default its default grid) and settings for every cell: optim.lr=3e-3; or "
        "tables of a paper: gpas:2.",
        autocompletion=complete_table,
    ),
]
_Source = Annotated[
    str | None,
    typer.Option(
        "--source", help="The paper whose tables to print: gpas, poster, curse ...", autocompletion=complete_paper
    ),
]
_Value = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="METRIC",
        help="Show this recorded number in place of the grid's. Repeat it to show several side by side.",
        autocompletion=offer(metrics),
    ),
]
_Format = Annotated[
    Literal["rich", "markdown", "latex", "html", "csv", "json"], typer.Option("--format", "-f", help="Output format.")
]
_Notes = Annotated[
    Literal["short", "all", "none"] | None,
    typer.Option("--notes", help="Notes below the table; by default short, in other formats than rich all."),
]


def table(
    names: _TableNames = None,
    where: Where = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Print the published and contributed numbers beside ours; --source gpas prints a paper's tables.",
        ),
    ] = False,
    published_only: Annotated[
        bool, typer.Option("--published-only", help="Print the published tables alone, digit by digit.")
    ] = False,
    source: _Source = None,
    value: _Value = None,
    best: Annotated[
        str,
        typer.Option(
            "--best", metavar="AXIS", help="Show per table cell the best of this axis, such as optim.lr, by the mean."
        ),
    ] = "",
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="Print the cells without a number, and the command that runs them with its cost."
        ),
    ] = False,
    noted: _Notes = None,
    form: _Format = "rich",
    as_json: AsJson = False,
) -> None:
    """Print a grid's table; --paper adds the published numbers.

    Each cell is the mean and deviation over seeds, with the difference from the base; best and second best are marked.

    A cell without a result shows its progress. Differences, in parentheses, are means of paired differences over seeds
    with half their 95 % interval. With --missing: exit code 3 if a cell has no number.

    Example: [bold]gpas table quickstart --paper --format markdown[/bold]
    """
    form = "json" if as_json else form
    names, settings = split_settings(names or [])
    if settings and (missing or any(papers.SEPARATOR in name for name in names)):
        raise GpasError(f"{settings[0]} is for tables of grids without --missing; `gpas plan` has the cells to run")
    if published_only or source is not None or any(papers.SEPARATOR in name for name in names):
        if value or best:
            raise GpasError("--value and --best are for the tables of grids: gpas table GRID")
        _print_papers(names, source, where, form, noted, published_only=published_only, missing=missing)
        return
    names = list(dict.fromkeys(names)) or [experiments().default]
    made = []
    for name in names:
        chosen = varied_entries([name, *settings], where)
        declared = experiments().grids[name].table_spec
        spec = declared.tuned(best) if best else declared
        spec = spec if paper else replace(spec, published={})
        made.append(_make(spec, chosen, value or with_bits_per_byte(spec, chosen), form, others=paper and not missing))
    if missing:
        _print_missing(made, form)
    elif form == "json" and len(made) > 1:
        print_json(render.TablesJson(tables=[render.table_json(one) for one in made]))
    else:
        _print_tables(list(zip(names, made, strict=True)), form, "grid", noted)


def _print_papers(
    names: Sequence[str],
    source: str | None,
    where: Sequence[str] | None,
    form: str,
    noted: str | None,
    *,
    published_only: bool,
    missing: bool,
) -> None:
    """Print tables in the layout of their papers, or what is missing in them."""
    parts = printed_tables(names, source)
    if published_only:
        _print_paper_tables([published_table(part) for part in parts], form, noted)
        return
    grids = [name for name in names if not papers.is_printed_name(name)]
    # A page has no room for a further column per size.
    sections = paper_sections(parts, grids, where, declared=form != "latex" and not missing)
    if missing:
        _print_missing([section for section in sections if not section.alone], form)
    else:
        _print_paper_tables(sections, form, noted)


def _make(spec: TableSpec, chosen: Sequence[Entry], values: Sequence[str], form: str, *, others: bool) -> Table:
    """Return the table of the chosen cells. others: with what others have contributed, in columns of its own."""
    converges = any(name in CONVERGENCE for name in (*values, spec.value))
    if converges and spec.best:
        of = f"the best {spec.best} is chosen by a result of the training, not by {', '.join(CONVERGENCE)}"
        raise GpasError(f"{of}; select one: --where {spec.best}={spelled(chosen[0].axes.get(spec.best))}")

    def made(known: Recorded) -> Table:
        if converges:
            from gpas_cli.report.convergence import smooth_losses, with_convergence  # imports SQLAlchemy

            losses = smooth_losses(known)
            known = with_convergence(
                known, lambda entry: has_labels(entry, spec.against), spec.against, spec.title, losses
            )
        if values:
            return by_metrics(known, spec, values)
        if spec.published and form != "latex":  # a page has no room for a further column per size
            return beside_published(known, spec)
        return build(chosen, known.states, known.results, spec)

    with recorded_of(chosen, database=converges) as known:
        table = made(known)
    return with_others(table, chosen, made) if others else table


class _MissingRunJson(Document):
    """A run without a number."""

    name: str
    key: str
    state: str


class _UnfilledJson(Document):
    """A table cell with runs that have no number; diverged runs are results."""

    row: str
    column: str
    runs: Sequence[_MissingRunJson]


class _RemedyJson(Document):
    """A command that fills cells without a number, and what it would cost."""

    command: str
    jobs: int
    gpu_hours: float
    core_hours: float
    wall_hours: Annotated[float | None, "null on SLURM, where jobs wait"]
    refused: Annotated[Mapping[str, int], "cells that cannot run here, by reason"]


class _MissingTableJson(Document):
    """What is missing in one table."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout"]
    title: str
    missing: Sequence[_UnfilledJson]
    commands: Sequence[_RemedyJson]


class MissingJson(DocumentJson):
    """`gpas table --missing --json`."""

    tables: Sequence[_MissingTableJson]


def _print_missing(tables: Sequence[Table], form: str) -> None:
    """Print the cells without a number and the commands that fill them, and exit with code 3 if there is one."""
    found = [(table, unfilled(table)) for table in tables]
    if form == "json":
        print_json(MissingJson(tables=[_json(table, missing) for table, missing in found]))
    else:
        for table, missing in found:
            _print(table, missing)
    if any(missing for _, missing in found):
        raise typer.Exit(Exit.INCOMPLETE)


def _print(table: Table, missing: Sequence[Unfilled]) -> None:
    say(table.spec.title, style="italic")
    if not missing:
        say("Every cell has its numbers.")
        return
    by_row: dict[tuple[str, str], list[str]] = {}
    for cell in missing:
        counts = Counter(run.state for run in cell.runs)
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        by_row.setdefault((cell.row, states), []).append(cell.column)
    rows = [(row, ", ".join(columns), states) for (row, states), columns in by_row.items()]
    say(Columns(("row", "column", "runs without a number"), rows))
    from gpas_cli.cli.views.plan import headline, refusals

    for command, planned in _remedies(missing):
        say(command, style="bold")
        for line in (headline(planned), *refusals(planned)) if planned else ():
            say(f"  {line}")


def _remedies(missing: Sequence[Unfilled]) -> Iterator[tuple[str, "Plan | None"]]:
    """Yield the commands that fill cells, and what they would run and cost; None for one that runs nothing or trains
    cells again."""
    from gpas_cli.cli.running import plan_for  # it and the schedulers take a quarter of a table
    from gpas_cli.schedule.scheduler import choose

    scheduler, _ = choose("auto", project().runs)
    runs = [(run.state, run.entry) for cell in missing for run in cell.runs]
    for command, cells in remedies(runs, entries(list(dict.fromkeys(entry.grid for _, entry in runs)))):
        yield command, plan_for(scheduler, cells, RETRIED) if cells else None


def _json(table: Table, missing: Sequence[Unfilled]) -> _MissingTableJson:
    commands = [_remedy_json(*remedy) for remedy in _remedies(missing)]
    shown = [
        _UnfilledJson(
            row=one.row, column=one.column,
            runs=[_MissingRunJson(name=run.entry.name, key=run.key, state=run.state) for run in one.runs],
        )
        for one in missing
    ]  # fmt: skip
    return _MissingTableJson(name=table.printed or None, title=table.spec.title, missing=shown, commands=commands)


def _remedy_json(command: str, planned: "Plan | None") -> _RemedyJson:
    if planned is None:
        return _RemedyJson(command=command, jobs=0, gpu_hours=0.0, core_hours=0.0, wall_hours=0.0, refused={})
    cost = planned.estimate
    return _RemedyJson(
        command=command, jobs=len(planned.jobs), gpu_hours=cost.gpu_hours, core_hours=cost.core_hours,
        wall_hours=cost.wall_hours, refused=planned.refused,
    )  # fmt: skip


class PaperTablesJson(DocumentJson):
    """`gpas table --json` of a paper's tables."""

    tables: Annotated[Sequence[render.TableJson], "tables with our numbers, in the paper's layout"]
    published: Annotated[Sequence[render.PrintedTableJson], "as printed: tables for which no grid has a cell, settings"]


def _print_paper_tables(tables: Sequence[Table], form: str, noted: str | None) -> None:
    """Print tables as their papers do, with our numbers first and the published ones beside them."""
    if form == "json":
        alone = [render.printed_json(table) for table in tables if table.alone]
        ours = [render.table_json(table) for table in tables if not table.alone]
        print_json(PaperTablesJson(tables=ours, published=alone))
    else:
        _print_tables([(table.printed, table) for table in tables], form, "table", noted)


def _print_tables(tables: Sequence[tuple[str, Table]], form: str, name: str, noted: str | None) -> None:
    """Print named tables for a terminal or as text; in CSV, the column `name` has their names if there are several."""
    if form == "csv" and len(tables) > 1:
        print(render.together(name, tables), end="")
    elif form != "rich":
        # In Markdown, an empty line ends a table.
        print("\n\n".join(render.render(table, form, noted or "all").rstrip("\n") for _, table in tables))
    else:
        for place, (_, table) in enumerate(tables):
            if place:
                say("")
            say(Drawn(sheet(table), noted or "short"))
