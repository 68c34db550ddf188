"""`gpas figure`: curves of a grid, its scaling, envelope and convergence, and the figures of the papers."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli import options as shared
from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.drawing import Output, draw_figures
from gpas_cli.cli.selection import cells_or_grids, entries, experiments, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, spelled
from gpas_cli.report.figures.convergence import Speed
from gpas_cli.report.figures.convergence import convergence as convergence_of
from gpas_cli.report.figures.envelope import envelope as envelope_of
from gpas_cli.report.figures.figure import PlotJson, as_json, make_figure, with_growth
from gpas_cli.report.figures.paper_figures import declared_figures
from gpas_cli.report.figures.scaling import Law
from gpas_cli.report.figures.scaling import scaling as scaling_of
from gpas_cli.report.figures.series import CellCurve, Selection, has_labels, ratios, recorded_quantities
from gpas_cli.report.figures.series import curves as curves_of
from gpas_cli.report.quantities import BY_LAYER, OVER_UPDATES, QUANTITIES, quantity
from gpas_cli.structure import FLAT, Document
from gpas_cli.words import count, listed

app = typer.Typer(
    help="Plot curves of a grid's cells, means and standard deviations over seeds, or figures of papers.\n\n"
    "`gpas figure GRID` means `gpas figure curves GRID`.",
    cls=shared.WithUsual,
)

_WHAT = (
    f"A curve over updates ({', '.join(one.name for one in OVER_UPDATES)}) "
    f"or by layer, at the last recorded update ({', '.join(one.name for one in BY_LAYER)})."
)
_Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="AXIS=LABEL",
        help="The cells to compare with, which are otherwise equal: gate=none. Repeat for more axes.",
        autocompletion=shared.complete_where,
    ),
]
_From = Annotated[
    float, typer.Option("--from", metavar="UPDATE", help="The first update to draw.", min=0, show_default=False)
]


class FigureJson(DocumentJson):
    """`gpas figure curves --json` and `gpas figure envelope --json`; a picture is drawn only if --out names a file."""

    plot: PlotJson = field(metadata=FLAT)
    what: str
    files: Annotated[Sequence[Path], "the pictures written"]
    cells: Annotated[Sequence[str], "cells that have recorded the curve"]
    missing: Annotated[Sequence[str], "cells that have not"]


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
    start: _From = 0.0,
    against: _Against = None,
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
    *,
    output: Output,
) -> None:
    """Plot curves of cells, by default to figure.svg and figure.png: means and standard deviations over seeds.

    With --against, draws ratios to the cells with that label. Colours distinguish schemes, line styles gates. Triangles
    mark spikes of the loss and the gradient norm. Importance is drawn as bars if there are at most four series,
    angular_distances as a heat map for each. With --json, prints the numbers and writes a file only if -o is given.

    Example: [bold]gpas figure curves quickstart --what activation_variance -o variance.pdf[/bold]

    [bold]gpas figure quickstart --what activation_variance --layers 1,6,12 --where norm=pre[/bold]
    """
    selection = _selection(what, at, layers, start, heat_map)
    paths = output.files(Path("figure"))
    chosen = cells_or_grids(names, where) if names else entries(names, where)
    _require_layers(selection, chosen)
    base = _base(against, chosen)
    over = {name: grid.table_spec.over for name, grid in experiments().grids.items()}
    with recorded_of(chosen) as known:
        runs = curves_of(known.engine, chosen, selection, lambda entry: over.get(entry.grid, "seed"))
        others = [] if runs else recorded_quantities(known.engine, chosen)
    found = _compared(runs, selection, base, chosen)
    title = _title(selection, chosen)
    if others and (paths or output.terminal):
        raise GpasError(f"{title}: no such curve has been recorded; recorded: {listed(others, 8)}")
    made = make_figure(found, selection, output.titled(title), every_run=every_run, ratio_to=_divisor(base))
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


def _compared(
    runs: Sequence[CellCurve], selection: Selection, base: dict[str, Label], chosen: Sequence[Entry]
) -> Sequence[CellCurve]:
    """Return the curves, or with a base their ratios to it. Raises GpasError if they cannot be drawn or compared."""
    _require_comparable(runs, selection)
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


def _base(against: Sequence[str] | None, chosen: Sequence[Entry]) -> dict[str, Label]:
    """Return the labels of --against by axis. Raises GpasError for a word that is not AXIS=LABEL of a cell."""
    found: dict[str, Label] = {}
    for word in against or ():
        axis, _, label = word.partition("=")
        if not (axis and label):
            raise GpasError(f"--against {word} is not AXIS=LABEL, such as gate=none")
        labels = {spelled(entry.axes[axis]): entry.axes[axis] for entry in chosen if axis in entry.axes}
        found[axis] = labels.get(label, label)
        if not any(has_labels(entry, {axis: found[axis]}) for entry in chosen):
            axes = dict.fromkeys(name for entry in chosen for name in entry.axes)
            unknown = f"no cell has {axis} '{label}'" if labels else f"no axis '{axis}'"
            hint = nearest(label, labels) if labels else nearest(axis, axes)
            raise GpasError(f"--against {word}: {unknown}; {hint}")
    return found


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


def _require_comparable(runs: Sequence[CellCurve], selection: Selection) -> None:
    """Raise GpasError if the figure would show training losses of different objectives."""
    kinds = list(dict.fromkeys(run.entry.cell.objective.kind for run in runs))
    if selection.quantity.name == "loss" and len(kinds) > 1:
        one = f"choose cells of one, such as --where objective.kind={kinds[0]}"
        raise GpasError(f"training losses of the objectives {listed(kinds, 3)} cannot be compared; {one}")


@app.command("paper")
@shared.with_grouped_options
def paper(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...|all",
            help="Figures of papers: gpas-3a, curse-1, spike-4; all of a paper: gpas; or all.",
            autocompletion=shared.offer(lambda: [*declared_figures(experiments().packs), "all"]),
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

    Example: [bold]gpas figure paper gpas-4 --toy[/bold]
    """
    draw_figures(names, grid, toy, output)


@app.command("envelope")
@shared.with_grouped_options
def envelope(
    names: shared.Names = None,
    where: shared.Where = None,
    axis: Annotated[str, typer.Option("--over", metavar="AXIS", help="An axis of numbers.")] = "optim.lr",
    *,
    output: Output,
) -> None:
    """Plot the metric of a grid's table over an axis of numbers, with the best of each method marked.

    Example: [bold]gpas figure envelope quickstart-lr --over optim.lr[/bold]
    """
    paths = output.files(Path("envelope"))
    chosen = entries(names, where)
    spec = experiments().grids[chosen[0].grid].table_spec
    with recorded_of(chosen, database=False) as known:
        made, missing = envelope_of(known, axis, spec.value, spec.over, output.titled(spec.title))
    if not made.drawn:
        raise GpasError(f"none of the {count(len(chosen), 'cell')} has a number yet; `gpas status` shows them")
    output.draw([made], paths)
    if output.as_json:
        cells = [entry.id for entry in chosen if entry.id not in missing]
        print_json(FigureJson(plot=as_json(made), what=spec.value, files=paths, cells=cells, missing=missing))
        return
    for line in made.lines:
        say(line.title)
    _say_missing(missing, chosen, "a result")


def _say_missing(missing: Sequence[str], chosen: Sequence[Entry], what: str) -> None:
    if missing:
        say(f"{count(len(missing), 'cell')} of {len(chosen)} without {what}.")


class ConvergenceJson(DocumentJson):
    """`gpas figure convergence --json`."""

    files: Sequence[Path]
    panels: Sequence[PlotJson]
    speeds: Sequence[Speed]
    missing: Annotated[Sequence[str], "cells without a finished training"]


@app.command("convergence")
@shared.with_grouped_options
def convergence(
    names: shared.Names = None,
    where: shared.Where = None,
    against: _Against = None,
    start: _From = 0.0,
    *,
    output: Output,
) -> None:
    """Plot smoothed training losses beside the final loss of their base, and how much sooner each method reaches it.

    The base is `against` of the grid's table, or --against.

    Example: [bold]gpas figure convergence quickstart[/bold]
    """
    paths = output.files(Path("convergence"))
    chosen = entries(names, where)
    spec = experiments().grids[chosen[0].grid].table_spec
    base = _base(against, chosen) or spec.against
    if not base:
        grid = chosen[0].grid
        raise GpasError(f"the table of '{grid}' declares no `against`; name the base with --against AXIS=LABEL")
    title = output.titled(f"Convergence, {chosen[0].grid}")
    with recorded_of(chosen) as known:
        made, speeds, missing = convergence_of(known, base, spec.over, title, start)
    if not made:
        none = f"none of the {count(len(chosen), 'cell')} has a finished training whose base has finished too"
        raise GpasError(f"{none}; `gpas status` shows them")
    output.draw(made, paths, title)
    if output.as_json:
        panels = [as_json(one) for one in made]
        print_json(ConvergenceJson(files=paths, panels=panels, speeds=speeds, missing=missing))
        return
    for speed in speeds:
        say(f"{speed.words}.", soft_wrap=True)
    _say_missing(missing, chosen, "a finished training")


class _LawJson(Document):
    """The law of one method."""

    law: Law = field(metadata=FLAT)
    words: str


class ScalingJson(DocumentJson):
    """`gpas figure scaling --json`."""

    files: Sequence[Path]
    panels: Sequence[PlotJson]
    laws: Sequence[_LawJson]
    missing: Annotated[Sequence[str], "cells without a result"]


@app.command("scaling")
@shared.with_grouped_options
def scaling(names: shared.Names = None, where: shared.Where = None, *, output: Output) -> None:
    """Plot the loss over parameters and training FLOPs, published and ours, with fitted power laws.

    Example: [bold]gpas figure scaling quickstart-scaling[/bold]
    """
    paths = output.files(Path("scaling"))
    chosen = entries(names, where)
    grids = [experiments().grids[name] for name in names or [experiments().default]]
    published = {pack: name for grid in grids if grid.table for pack, name in grid.table.published.items()}
    with recorded_of(chosen, database=False) as known:
        made = scaling_of(chosen, known, published)
    if not made.panels:
        raise GpasError("no cell has a result and no published table has its perplexity: nothing to draw")
    output.draw(made.panels, paths, output.titled("Scaling of the validation loss"))
    if output.as_json:
        laws = [_LawJson(law=law, words=law.words) for law in made.laws]
        print_json(ScalingJson(files=paths, panels=list(map(as_json, made.panels)), laws=laws, missing=made.missing))
    else:
        rows = [(law.source, law.method, law.over, *_exponent(law), str(law.sizes)) for law in made.laws]
        headers = ("numbers", "method", "loss over", "exponent", "95 % interval", "sizes")
        say(Columns(headers, rows, right=frozenset(headers[3:])))
    _say_missing(made.missing, chosen, "a result")


def _exponent(law: Law) -> tuple[str, str]:
    if law.law is None:
        return "-", "too few sizes"
    low, high = law.law.interval
    return f"{law.law.exponent:.4f}", f"{low:.4f} to {high:.4f}"
