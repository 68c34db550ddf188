"""`gpas figure`: curves of a grid, and the figures of the papers."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli import options as shared
from gpas_cli.cli.console import print_json, say, working
from gpas_cli.cli.selection import cells_or_grids, entries, experiments, project, recorded_of
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.extensions.curves.series import CellCurve, Selection, ratios, recorded_quantities
from gpas_cli.extensions.curves.series import curves as curves_of
from gpas_cli.extensions.figures import ABOUT, paper_figures
from gpas_cli.extensions.figures.drawing import Against, FigureJson, From, Output, base_of
from gpas_cli.extensions.figures.figure import PlotJson, as_json, make_figure, with_growth, with_smoothing
from gpas_cli.extensions.figures.plot import Sheet, check_formats, save
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, spelled
from gpas_cli.report.quantities import BY_LAYER, OVER_UPDATES, QUANTITIES, quantity
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.extensions import part
from gpas_cli.structure import FLAT, Document, DocumentJson
from gpas_cli.words import count, listed

app = typer.Typer(help=f"{ABOUT}\n\n`gpas figure GRID` means `gpas figure curves GRID`.", cls=shared.WithUsual)

_WHAT = (
    f"A curve over updates ({', '.join(one.name for one in OVER_UPDATES)}) "
    f"or by layer, at the last recorded update ({', '.join(one.name for one in BY_LAYER)})."
)
_Smooth = Annotated[
    float,
    typer.Option(
        "--smooth",
        metavar="W",
        help="Smooth curves over updates by TensorBoard's exponential moving average, which keeps W of itself at each "
        "point: 0.8. What was recorded is drawn faintly behind.",
        min=0,
        max=0.999,
        show_default=False,
    ),
]
_PAPER_FILES = (".pdf", ".svg", ".png")
_SHOWN = 4  # cells that a message names


@app.command("curves")
@shared.with_grouped_options
def curves(
    names: shared.CellsOrGrids = None,
    where: shared.Where = None,
    what: Annotated[str, typer.Option("--what", help=_WHAT, autocompletion=shared.offer_list(QUANTITIES))] = "loss",
    at: Annotated[str, typer.Option("--at", metavar="UPDATE,...", help="Draw layers at these updates.")] = "",
    layers: Annotated[
        str, typer.Option("--layers", metavar="LAYER,...|all", help="Draw these layers over updates.")
    ] = "",
    heat_map: Annotated[bool, typer.Option("--map", help="Draw layers over updates as a heat map.")] = False,
    start: From = 0.0,
    against: Against = None,
    every_run: Annotated[
        bool,
        typer.Option("--every-run", help="Draw a line per run instead of the mean and standard deviation over seeds."),
    ] = False,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth", help="Add the law by which values grow over layers: power or exponential, the better fit."
        ),
    ] = False,
    smooth: _Smooth = 0.0,
    *,
    output: Output,
) -> None:
    """Plot curves of cells, by default to figure.svg and figure.png: means and standard deviations over seeds.

    With --against, draws ratios to the cells with that label. Colours distinguish schemes, line styles gates. Triangles
    mark spikes of the loss and the gradient norm. Importance is drawn as bars if there are at most four series,
    angular_distances as a heat map for each. With --json, prints the numbers and writes a file only if -o is given.

    Example: gpas figure curves quickstart --what activation_variance -o variance.pdf

    Example: gpas figure quickstart --what activation_variance --layers 1,6,12 --where norm=pre
    """
    selection = _selection(what, at, layers, start, heat_map)
    paths = output.files(Path("figure"))
    chosen = cells_or_grids(names, where) if names else entries(names, where)
    _require_layers(selection, chosen)
    base = base_of(against, chosen)
    over = {name: grid.table_spec.over for name, grid in experiments().grids.items()}
    with recorded_of(chosen) as known:
        runs = curves_of(known.engine, chosen, selection, lambda entry: over.get(entry.grid, "seed"))
        instead = "" if runs else _instead(chosen, known)
    found = _compared(runs, selection, base, chosen)
    title = _title(selection, chosen)
    if instead and (paths or output.terminal):
        raise GpasError(f"{title}: no such curve has been recorded; {instead}")
    made = make_figure(found, selection, output.titled(title), every_run=every_run, ratio_to=_divisor(base))
    if smooth:
        made = with_smoothing(made, smooth)
    if growth:
        made = with_growth(made)
    recorded = list(dict.fromkeys(run.entry.id for run in runs))
    gateless = [e.id for e in chosen if selection.quantity.of_gates and e.cell.model.gate is None]
    missing = [e.id for e in chosen if e.id not in {*recorded, *gateless}]
    lines = sum(len(series.runs) for series in made.series) if made.every_run else len(made.series)
    drawn = count(len(made.series), "map") if made.heat_map else count(lines, "line")
    words = f": {drawn} from {count(len(recorded), 'run')}"
    words += f"; {count(len(gateless), 'cell')} without gates" if gateless else ""
    words += f"; {len(missing)} of {len(chosen)} cells have no such curve yet" if missing else ""
    output.draw([made], paths, words=words)
    if output.as_json:
        what = selection.quantity.name
        print_json(FigureJson(plot=as_json(made), what=what, files=paths, cells=recorded, missing=missing))


def _instead(chosen: Sequence[Entry], known: Recorded) -> str:
    """Return what cells without a curve have recorded, or the command that runs them."""
    if others := recorded_quantities(known.engine, chosen):
        return f"recorded: {listed(others, 8)}"
    return f"`{paper_figures.command(chosen, cells_or_grids(None), known)}` runs the cells"


def _compared(
    runs: Sequence[CellCurve], selection: Selection, base: dict[str, Label], chosen: Sequence[Entry]
) -> Sequence[CellCurve]:
    """Return the curves, or with a base their ratios to it. Raises GpasError if they cannot be drawn or compared."""
    first, updates = min(selection.at, default=selection.start), max(entry.cell.optim.updates for entry in chosen)
    if not runs and first > updates:
        raise GpasError(f"no curve reaches update {first:g}; the cells train for {updates:,} updates")
    found = ratios(runs, base) if base else runs
    if runs and not found:
        raise GpasError(f"--against: no recorded curve differs from one with {_divisor(base)} in that alone")
    return found


def _divisor(base: dict[str, Label]) -> str:
    return ", ".join(f"{axis} {spelled(label)}" for axis, label in base.items())


def _selection(what: str, at: str, layers: str, start: float, heat_map: bool) -> Selection:
    if sum(map(bool, (at, layers, heat_map))) > 1:
        raise GpasError("--at, --layers and --map exclude each other")
    drawn = quantity(what)
    if start and drawn.by_layer and not (layers or heat_map):
        raise GpasError(f"--from: {drawn.name} is drawn over layers; --layers draws it over updates")
    return Selection(
        drawn,
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


def _require_layers(selection: Selection, chosen: Sequence[Entry]) -> None:
    """Raise GpasError for a layer that none of the cells has."""
    layers = max(entry.cell.model.size.layers for entry in chosen)
    for layer in selection.layers or ():
        if not 1 <= layer < layers + 1:
            raise GpasError(f"--layers {layer:g}: the cells have the layers 1 to {layers}")


def _title(selection: Selection, chosen: Sequence[Entry]) -> str:
    """Return what is drawn and the names of the grids: "Gradient norm, quickstart"."""
    drawn = selection.quantity.title
    return f"{drawn[:1].upper()}{drawn[1:]}, {listed(list(dict.fromkeys(entry.grid for entry in chosen)), 3)}"


class _PaperFigureJson(Document):
    """A figure of a paper. Without any panel, `problem` is why."""

    figure: paper_figures.PaperFigure = field(metadata=FLAT)
    heading: str
    panels: Sequence[PlotJson]
    files: Annotated[Sequence[Path], "the pictures written"]


class PaperFiguresJson(DocumentJson):
    """`gpas figure paper NAME --json`."""

    figures: Sequence[_PaperFigureJson]


@app.command("paper")
@shared.with_grouped_options
def paper(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...|all",
            help="Figures of papers: gpas-3a, curse-1, spike-4; all of a paper: gpas; or all.",
            autocompletion=shared.offer(lambda: [*paper_figures.declared_figures(experiments().packs), "all"]),
        ),
    ],
    grid: Annotated[
        str,
        typer.Option(
            "--grid",
            help="Draw it from the cells of this grid instead of the paper's.",
            autocompletion=shared.complete_grid,
        ),
    ] = "",
    toy: Annotated[bool, typer.Option("--toy", help="Draw each from its grid at quickstart size.")] = False,
    *,
    output: Output,
) -> None:
    """Draw figures of the papers from your results, by default to the folder figures, as PDF, SVG and PNG.

    Example: gpas figure paper gpas-4 --toy
    """
    asked = paper_figures.named(names, experiments().packs)
    chosen = [spec for spec in asked if spec.toy or not toy]
    if toyless := [spec.name for spec in asked if spec not in chosen]:
        words = f"no grid at quickstart size has the cells of {listed(toyless, 8)}"
        if not chosen:
            raise GpasError(f"{words}; leave out --toy")
        say(f"Left out: {words}.")
    paths = _paths(chosen, output)
    requests = _requests(chosen, grid, toy)
    drawn = {entry.id: entry for request in requests for entry in request.entries}
    with recorded_of(list(drawn.values())) as known:
        made = [paper_figures.make(one, known, _bounds) for one in requests]
    for figure in made:
        if figure.panels and paths:
            heading = figure.heading if output.title is None else output.title or figure.note
            save(Sheet(figure.panels, heading), paths[figure.name], output.size)
        say(_conclusion(figure, paths), soft_wrap=True)
        output.print(figure.panels)
    if output.as_json:
        print_json(PaperFiguresJson(figures=[_json(figure, paths.get(figure.name, [])) for figure in made]))
    if any(not figure.panels for figure in made):
        raise typer.Exit(Exit.INCOMPLETE)


def _paths(chosen: Sequence[paper_figures.FigureSpec], output: Output) -> dict[str, list[Path]]:
    """Return the files of each figure by name. Raises GpasError if several figures would be written to one file."""
    asked = output.places(Path("figures"))
    if not asked:
        return {}
    named_files = [path for path in asked if path.suffix]
    if named_files and len(chosen) > 1:
        raise GpasError(f"{named_files[0]} is one file, and {count(len(chosen), 'figure')} are drawn: name a folder")
    check_formats(named_files)
    folders = [path for path in asked if not path.suffix]
    return {
        spec.name: [*named_files, *(folder / f"{spec.name}{suffix}" for folder in folders for suffix in _PAPER_FILES)]
        for spec in chosen
    }


def _requests(chosen: Sequence[paper_figures.FigureSpec], grid: str, toy: bool) -> list[paper_figures.Request]:
    if grid and toy:
        raise GpasError("--grid and --toy exclude each other")
    if grid and grid not in experiments().grids:
        raise GpasError(f"no grid '{grid}'; {nearest(grid, experiments().grids)}")
    return [paper_figures.request(spec, experiments(), spec.toy if toy else grid) for spec in chosen]


def _conclusion(figure: paper_figures.PaperFigure, paths: dict[str, list[Path]]) -> str:
    """Return what was drawn or why not, and which cells are missing and run by which command."""
    words = [figure.heading + "."]
    if figure.panels and paths:
        words = [f"Wrote {', '.join(map(str, paths[figure.name]))}: {figure.heading}."]
    if figure.problem:
        words.append(f"Not drawn: {figure.problem}.")
    if figure.missing:
        words.append(f"{count(len(figure.missing), 'cell')} without a result: {listed(figure.missing, _SHOWN)}.")
        words.append(f"Run: {figure.command}")
    if not figure.panels and not figure.note and paper_figures.declared_figures(experiments().packs)[figure.name].toy:
        words.append(f"At quickstart size: gpas figure paper {figure.name} --toy")
    if figure.unrecorded:
        words.append(f"No such curve recorded by {listed(figure.unrecorded, _SHOWN)}.")
    return "\n  ".join(words)


def _json(figure: paper_figures.PaperFigure, files: Sequence[Path]) -> _PaperFigureJson:
    panels = list(map(as_json, figure.panels))
    return _PaperFigureJson(figure=figure, heading=figure.heading, panels=panels, files=files if panels else [])


def _bounds(entry: Entry) -> list[float]:
    """Return the bounds of a cell by layer. Raises GpasError without the extension that computes them, or torch."""
    try:
        compute = part("identity_bounds")
    except ImportError as error:
        raise GpasError(f"the bounds of this figure need torch, which cannot be imported: {error}") from error
    here, cell = project(), entry.cell
    doing = f"the bounds of {cell.key} at initialisation"
    with working(doing) as show:
        found: list[float] = compute(cell, here.cache, here.config.parent, lambda layer: show(f"{doing}: {layer}"))
        return found
