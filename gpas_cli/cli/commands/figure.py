"""`gpas figure`: plot curves of a grid or the scaling of its loss, or draw the figures of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from gpas_cli.cli.commands.figure_output import Output, print_plots
from gpas_cli.cli.commands.figure_paper import draw_figures
from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.options import AsJson, CellsOrGrids, Where, complete_from, complete_grid
from gpas_cli.cli.selection import cells_or_grids, entries, experiments, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.report.figures.curves import Selection, curves, ratios
from gpas_cli.report.figures.figure import Figure, PlotJson, as_json, make_figure, with_growth
from gpas_cli.report.figures.paper_figures import declared_figures
from gpas_cli.report.figures.plot import Sheet, check_formats, save
from gpas_cli.report.figures.scaling import Law, PowerLaw, Scaling, scaling
from gpas_cli.report.figures.series import BY_LAYER, OVER_UPDATES, QUANTITIES, CellCurve, quantity
from gpas_cli.words import count, listed

DEFAULT = Path("figure")


WHAT = (
    f"A curve over updates ({', '.join(one.name for one in OVER_UPDATES)}) "
    f"or by layer, at the last recorded update ({', '.join(one.name for one in BY_LAYER)})."
)


FROM_DATA = "Curves"


FROM_PAPERS = "Figures of the papers"


Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write, in the format of its suffix (.pdf, .svg, .png); without a suffix, SVG and PNG. "
        "Repeat for more files. By default figure.svg and figure.png. With --paper, the folder to write to, by default "
        "figures, or the file of a single figure.",
    ),
]


What = Annotated[
    str,
    typer.Option("--what", help=WHAT, autocompletion=complete_from(QUANTITIES), rich_help_panel=FROM_DATA),
]


At = Annotated[
    str,
    typer.Option("--at", metavar="UPDATE,...", help="Draw layers at these updates.", rich_help_panel=FROM_DATA),
]


Layers = Annotated[
    str,
    typer.Option(
        "--layers", metavar="LAYER,...|all", help="Draw these layers over updates.", rich_help_panel=FROM_DATA
    ),
]


Map = Annotated[bool, typer.Option("--map", help="Draw layers over updates as a heat map.", rich_help_panel=FROM_DATA)]


Start = Annotated[
    float,
    typer.Option(
        "--from",
        metavar="UPDATE",
        help="The first update to draw.",
        min=0,
        show_default=False,
        rich_help_panel=FROM_DATA,
    ),
]


Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="AXIS=LABEL",
        help="Draw ratios to the cells with this label that are otherwise equal: gate=none. Repeat for more axes.",
        rich_help_panel=FROM_DATA,
    ),
]


EveryRun = Annotated[
    bool,
    typer.Option(
        "--every-run",
        help="Draw a line per run instead of the mean and standard deviation over seeds.",
        rich_help_panel=FROM_DATA,
    ),
]


WithGrowth = Annotated[
    bool,
    typer.Option(
        "--growth",
        help="Add the law by which values grow over layers, power or exponential, whichever fits better.",
        rich_help_panel=FROM_DATA,
    ),
]


class FigureJson(DocumentJson, PlotJson):
    """`gpas figure --json`; a picture is drawn only if --out names a file."""

    what: str
    files: Annotated[list[str], "the pictures written"]
    cells: Annotated[list[str], "cells that have recorded the curve"]
    missing: Annotated[list[str], "cells that have not"]


def complete_paper(incomplete: str) -> list[str]:
    """Return the figures of the papers that begin with `incomplete`."""
    return [name for name in (*declared_figures(), "all") if name.startswith(incomplete)]


Paper = Annotated[
    list[str] | None,
    typer.Option(
        "--paper",
        metavar="NAME|all",
        help="Draw a figure of a paper: gpas-3a, curse-1, spike-4; all of a paper: gpas; or all.",
        autocompletion=complete_paper,
        rich_help_panel=FROM_PAPERS,
    ),
]


GridOption = Annotated[
    str,
    typer.Option(
        "--grid",
        help="Draw it from the cells of this grid instead of the paper's.",
        autocompletion=complete_grid,
        rich_help_panel=FROM_PAPERS,
    ),
]


Toy = Annotated[
    bool,
    typer.Option("--toy", help="Draw each from its grid at quickstart size.", rich_help_panel=FROM_PAPERS),
]


ScalingLaws = Annotated[
    bool,
    typer.Option(
        "--scaling",
        help="Draw the loss over parameters and training FLOPs, published and ours, with fitted power laws.",
    ),
]


Terminal = Annotated[
    bool, typer.Option("--terminal", "-t", help="Draw as text here; write files only if -o names them.")
]


Title = Annotated[
    str | None,
    typer.Option("--title", help="Title above the plot; by default what is drawn and the grid's name. '' for none."),
]


Size = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--size",
        help="Width and height in inches. By default 6.4 x 4.0, for few lines a column (3.3 x 2.3), for several panels "
        "two columns (6.8 x 2.4); a long legend adds to it.",
        min=1,
    ),
]


def figure(
    names: CellsOrGrids = None,
    where: Where = None,
    what: What = "loss",
    at: At = "",
    layers: Layers = "",
    heat_map: Map = False,
    start: Start = 0.0,
    against: Against = None,
    every_run: EveryRun = False,
    growth: WithGrowth = False,
    paper: Paper = None,
    grid: GridOption = "",
    toy: Toy = False,
    scaling: ScalingLaws = False,
    terminal: Terminal = False,
    out: Out = None,
    title: Title = None,
    size: Size = None,
    as_json: AsJson = False,
) -> None:
    """Plot curves of a grid's cells, means and standard deviations over seeds, or figures of papers.

    Colours distinguish schemes, line styles gates. Triangles mark spikes of the loss and the gradient norm. Importance
    is drawn as bars if there are at most four series, angular_distances as a heat map for each. With --json, prints
    the numbers and writes a file only if -o is given.

    Example: [bold]gpas figure quickstart --what activation_variance -o variance.pdf[/bold]

    [bold]gpas figure quickstart --what activation_variance --layers 1,6,12 --where norm=pre[/bold]

    [bold]gpas figure --paper gpas-4 --toy[/bold]
    """
    output = Output(out, terminal, title, size, as_json)
    if paper:
        if names or where or at or layers or against or heat_map:
            raise GpasError("--paper draws what the paper shows; to draw it from other cells, name a grid with --grid")
        draw_figures(paper, grid, toy, output)
        return
    if grid or toy:
        raise GpasError("--grid and --toy choose the cells of a figure of a paper: add --paper NAME")
    if scaling:
        draw_scaling(names, where, output)
        return
    selection = _selection(what, at, layers, start, heat_map)
    _plot(names, where, selection, _labels(against), output, every_run=every_run, growth=growth)


def _plot(
    names: Sequence[str] | None,
    where: Sequence[str] | None,
    selection: Selection,
    against: dict[str, str],
    output: Output,
    *,
    every_run: bool,
    growth: bool,
) -> None:

    paths = output.files(DEFAULT)
    check_formats(paths)
    chosen = cells_or_grids(names, where) if names else entries(names, where)
    runs = _runs(chosen, selection)
    recorded = list(dict.fromkeys(run.entry.id for run in runs))
    gateless = [e.id for e in chosen if selection.quantity.of_gates and e.cell.model.gate is None]
    missing = [e.id for e in chosen if e.id not in {*recorded, *gateless}]
    _require_comparable(runs, selection)
    found = ratios(runs, against) if against else runs
    divisor = ", ".join(f"{axis} {label}" for axis, label in against.items())
    made = make_figure(
        found,
        selection,
        output.title if output.title is not None else _title(selection, chosen),
        every_run=every_run,
        ratio_to=divisor,
    )
    if growth:
        made = with_growth(made)
    if output.terminal:
        print_plots([made])
    if paths:
        save(Sheet((made,)), paths, output.size)
        words = f"Wrote {' and '.join(str(path) for path in paths)}: {_drawn(made)} from {count(len(recorded), 'run')}"
        words += f"; {count(len(gateless), 'cell')} without gates" if gateless else ""
        words += f"; {len(missing)} of {len(chosen)} cells have no such curve yet" if missing else ""
        console().print(f"{words}.", soft_wrap=True)
    if output.as_json:
        document: FigureJson = {
            "schema": 1,
            "what": selection.quantity.name,
            "files": [str(path) for path in paths],
            **as_json(made),
            "cells": recorded,
            "missing": missing,
        }
        print_json(document)


def _selection(what: str, at: str, layers: str, start: float, heat_map: bool) -> Selection:

    if sum(map(bool, (at, layers, heat_map))) > 1:
        raise GpasError("--at, --layers and --map exclude each other")
    return Selection(
        quantity(what),
        at=tuple(int(update) for update in _numbers("--at", at)),
        layers=(() if layers == "all" else _numbers("--layers", layers)) if layers else None,
        start=max(start, 1.0) if start else 0.0,
        map=heat_map,
    )


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of a list such as "1,6,12". Raises GpasError for any other word."""
    words = [word.strip() for word in text.split(",")] if text else []
    for word in words:
        if not word.replace(".", "", 1).isdigit():
            raise GpasError(f"{option} {text}: '{word}' is not a number; write {option} 1,6,12")
    return tuple(float(word) for word in words)


def _labels(against: Sequence[str] | None) -> dict[str, str]:
    """Return the labels of --against by axis. Raises GpasError for a word that is not AXIS=LABEL."""
    for word in against or ():
        if not all(word.partition("=")):
            raise GpasError(f"--against {word} is not AXIS=LABEL, such as gate=none")
    return {axis: label for axis, _, label in (word.partition("=") for word in against or ())}


def _title(selection: Selection, chosen: Sequence[Entry]) -> str:
    """Return what is drawn and the names of the grids: "Gradient norm, quickstart"."""
    drawn = selection.quantity.title
    return f"{drawn[:1].upper()}{drawn[1:]}, {listed(list(dict.fromkeys(entry.grid for entry in chosen)), 3)}"


def _runs(chosen: Sequence[Entry], selection: Selection) -> list[CellCurve]:
    """Return the curves of the cells that have recorded one."""
    with recorded_of(chosen) as known:
        return curves(known.engine, chosen, selection, _averaged)


def _require_comparable(runs: Sequence[CellCurve], selection: Selection) -> None:
    """Raise GpasError if the figure would show training losses of different objectives."""
    kinds = list(dict.fromkeys(run.entry.cell.objective.kind for run in runs))
    if selection.quantity.name == "loss" and len(kinds) > 1:
        one = f"choose cells of one, such as --where objective.kind={kinds[0]}"
        raise GpasError(f"training losses of the objectives {listed(kinds, 3)} cannot be compared; {one}")


def _averaged(entry: Entry) -> str:
    """Return the axis that the table of the entry's grid averages."""
    grid = experiments().grids.get(entry.grid)
    return grid.table_spec.over if grid else "seed"


def _drawn(made: Figure) -> str:
    """Return the number of lines or maps: "4 lines"."""
    lines = sum(len(series.runs) for series in made.series) if made.every_run else len(made.series)
    return count(len(made.series), "map") if made.heat_map else count(lines, "line")


USUAL = Path("scaling")


class LawJson(TypedDict):
    """The law of one method."""

    source: Annotated[str, "ours, or the source of the published numbers"]
    method: str
    over: Annotated[str, ("parameters", "flops")]
    sizes: int
    law: Annotated[PowerLaw | None, "null for fewer than 3 sizes"]
    words: str


class ScalingJson(DocumentJson):
    """`gpas figure --scaling --json`."""

    files: list[str]
    panels: list[PlotJson]
    laws: list[LawJson]
    missing: Annotated[list[str], "cells without a result"]


def draw_scaling(names: Sequence[str] | None, where: Sequence[str] | None, output: Output) -> None:
    """Draw the scaling figure of the named grids and print the exponents of its laws."""
    paths = output.files(USUAL)
    check_formats(paths)
    chosen = entries(names, where)
    with recorded_of(chosen, database=False) as known:
        made = scaling(chosen, known, _published(names))
    if not made.panels:
        raise GpasError("no cell has a result and no published table has its perplexity; --scaling has nothing to draw")
    if output.terminal:
        print_plots(made.panels)
    title = "Scaling of the validation loss" if output.title is None else output.title
    if paths:
        save(Sheet(made.panels, title), paths, output.size)
        console().print(f"Wrote {' and '.join(map(str, paths))}.", soft_wrap=True)
    if output.as_json:
        laws: list[LawJson] = [
            {"source": law.source, "method": law.method, "over": law.over, "sizes": law.sizes, "law": law.law,
             "words": law.words}
            for law in made.laws
        ]  # fmt: skip
        panels = [as_json(panel) for panel in made.panels]
        files = [str(path) for path in paths]
        print_json(ScalingJson(schema=1, files=files, panels=panels, laws=laws, missing=list(made.missing)))
    else:
        console().print(_exponents(made))
    if made.missing:
        console().print(f"{count(len(made.missing), 'cell')} of {len(chosen)} without a result.")


def _published(names: Sequence[str] | None) -> dict[str, str]:
    """Return the published tables of the grids by source."""
    grids = [experiments().grids[name] for name in names or [experiments().default]]
    return {source: name for grid in grids if grid.table for source, name in grid.table.published.items()}


def _exponents(made: Scaling) -> Columns:
    rows = [(law.source, law.method, law.over, *_exponent(law), str(law.sizes)) for law in made.laws]
    headers = ("numbers", "method", "loss over", "exponent", "95 % interval", "sizes")
    return Columns(headers, rows, right=frozenset(headers[3:]))


def _exponent(law: Law) -> tuple[str, str]:
    if law.law is None:
        return "-", "too few sizes"
    low, high = law.law.interval
    return f"{law.law.exponent:.4f}", f"{low:.4f} to {high:.4f}"
