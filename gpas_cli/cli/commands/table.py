"""`gpas table`: results in the layout of the paper."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import typer

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, Where, complete_paper, complete_table, offer
from gpas_cli.cli.printed import paper_sections, printed_tables, with_others
from gpas_cli.cli.selection import experiments, recorded_of, split_settings, varied_entries
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry, TableSpec
from gpas_cli.grid.document import spelled
from gpas_cli.report import papers
from gpas_cli.report.labels import has_labels
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.grid_table import beside_published, build, by_metrics, with_bits_per_byte
from gpas_cli.report.tables.paper_table import published_table
from gpas_cli.report.tables.sheet import Drawn
from gpas_cli.report.tables.table import Table
from gpas_cli.spec.extensions import metrics
from gpas_cli.spec.stage import CONVERGENCE

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
    noted: _Notes = None,
    form: _Format = "rich",
    as_json: AsJson = False,
) -> None:
    """Print a grid's table; --paper adds the published numbers.

    Each cell is the mean and deviation over seeds, with the difference from the base; best and second best are marked.

    A cell without a result shows its progress. Differences, in parentheses, are means of paired differences over seeds
    with half their 95 % interval.

    Example: gpas table quickstart --paper --format markdown
    """
    form = "json" if as_json else form
    names, settings = split_settings(names or [])
    if settings and any(map(papers.is_printed_name, names)):
        raise GpasError(f"{settings[0]} is for tables of grids: gpas table GRID")
    if published_only or source is not None or any(map(papers.is_printed_name, names)):
        if value or best:
            raise GpasError("--value and --best are for the tables of grids: gpas table GRID")
        _print_papers(names, source, where, form, noted, published_only=published_only)
        return
    names = list(dict.fromkeys(names)) or [experiments().default]
    made = []
    for name in names:
        chosen = varied_entries([name, *settings], where)
        declared = experiments().grids[name].table_spec
        spec = declared.tuned(best) if best else declared
        spec = spec if paper else replace(spec, published={})
        made.append(_make(spec, chosen, value or with_bits_per_byte(spec, chosen), form, others=paper))
    if form == "json" and len(made) > 1:
        from gpas_cli.report.tables import render

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
) -> None:
    """Print tables in the layout of their papers."""
    parts = printed_tables(names, source)
    if published_only:
        _print_paper_tables([published_table(part) for part in parts], form, noted)
        return
    grids = [name for name in names if not papers.is_printed_name(name)]
    # A page has no room for a further column per size.
    _print_paper_tables(paper_sections(parts, grids, where, declared=form != "latex"), form, noted)


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


def _print_paper_tables(tables: Sequence[Table], form: str, noted: str | None) -> None:
    """Print tables as their papers do, with our numbers first and the published ones beside them."""
    if form == "json":
        from gpas_cli.report.tables import render

        alone = [render.printed_json(table) for table in tables if table.alone]
        ours = [render.table_json(table) for table in tables if not table.alone]
        print_json(render.PaperTablesJson(tables=ours, published=alone))
    else:
        _print_tables([(table.printed, table) for table in tables], form, "table", noted)


def _print_tables(tables: Sequence[tuple[str, Table]], form: str, name: str, noted: str | None) -> None:
    """Print named tables for a terminal or as text; in CSV, the column `name` has their names if there are several."""
    if form != "rich":
        from gpas_cli.report.tables import render

        # In Markdown, an empty line ends a table.
        texts = (render.render(table, form, noted or "all").rstrip("\n") for _, table in tables)
        print(render.together(name, tables) if form == "csv" and tables[1:] else "\n\n".join(texts) + "\n", end="")
        return
    for place, (_, table) in enumerate(tables):
        if place:
            say("")
        say(Drawn(sheet(table), noted or "short"))
