"""`gpas theory`: the papers' theoretical results, computed and shown beside the printed ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import print_json, say, working
from gpas_cli.cli.options import AsJson, Cell, Cells, with_grouped_options
from gpas_cli.cli.selection import find_cells, project
from gpas_cli.cli.views.columns import Cell as Shown
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.states import CellNameJson
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extensions.figures.drawing import Output
from gpas_cli.extensions.figures.figure import Figure, Line, PlotJson, as_json
from gpas_cli.extensions.theory.results import Change, Growth, Law, LengthPoint
from gpas_cli.extensions.theory.tables import depth_remarks, depth_results, depth_table, print_theory
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.cell import Cell as Specification
from gpas_cli.store.rundir import checkpoints_of
from gpas_cli.structure import FLAT, Document, DocumentJson

if TYPE_CHECKING:  # torch
    from gpas_cli.extensions.theory.initialisation import Theory

app = typer.Typer(help="Compute the papers' theorems beside their printed values.", no_args_is_help=True)

_Layers = Annotated[int, typer.Option("--layers", help="The depth of the deepest network.", min=8, max=512)]
_Dimension = Annotated[int, typer.Option("--dimension", help="The width d of the networks.", min=2, max=2000)]
_Updates = Annotated[int, typer.Option("--updates", help="The number of updates of each network.", min=1, max=100)]
_BUILDING = "building the network in float64"
_Points = Sequence[tuple[float, float]]
_TITLES = {"norm": "norm of the output", "psi": "Psi", "gap": "gap"}


class _StatementJson(Document):
    """A statement of the paper about one kind of network."""

    statement: str
    network: str
    tau: Annotated[float, "the share of the matrix that all layers have in common"]
    laws: Sequence[Law]


class _CellBoundsJson(Document):
    """A cell with its bounds."""

    cell_name: CellNameJson = field(metadata=FLAT)
    bounds: Annotated[Mapping[str, Any], "gpas_cli/extensions/theory/initialisation.py explains each number"]


class BoundsJson(DocumentJson):
    """`gpas theory bounds --json`."""

    cells: Sequence[_CellBoundsJson]


class StabilityJson(DocumentJson):
    """`gpas theory stability --json`."""

    layers: int
    dimension: int
    statements: Sequence[_StatementJson]
    panels: Sequence[PlotJson]


class NormsJson(DocumentJson):
    """`gpas theory norms --json`."""

    cell: str
    growths: Sequence[Growth]
    panels: Sequence[PlotJson]


class LengthJson(DocumentJson):
    """`gpas theory length --json`."""

    cell: str
    points: Sequence[LengthPoint]
    exponent: Annotated[float, "of the length in the measured variance"]
    panels: Sequence[PlotJson]


class DepthJson(DocumentJson):
    """`gpas theory depth --json`. gpas_cli/extensions/theory/depth_bounds.py explains each number."""

    cell: str
    depth: Annotated[Mapping[str, Any] | None, "the bounds of The Curse of Depth, null where it derives none"]
    stages: Annotated[Mapping[str, Any], "both sides of RaPTr's theorem 4.2"]
    remarks: Annotated[Sequence[str], "where the bounds do not apply, and slips in equations computed as printed"]
    panels: Sequence[PlotJson]


class CoordinatesJson(DocumentJson):
    """`gpas theory coordinates --json`."""

    cell: str
    updates: int
    changes: Sequence[Change]
    panels: Sequence[PlotJson]


@app.command("bounds")
def bounds(cells: Cells, as_json: AsJson = False) -> None:
    """Compute upper bounds of a cell at initialisation, beside measured values.

    They are those of Spike No More, in float64; `gpas theory depth` has those of The Curse of Depth and RaPTr. With
    gates they include how much of the gradient GPAS preserves (GPAS, appendix B).

    Example: gpas theory bounds mix-gpas-s1
    """
    found = find_cells(cells)
    theories = [_theory_of(entry.cell) for entry in found]
    if as_json:
        listed = [
            _CellBoundsJson(cell_name=CellNameJson.of(entry), bounds=_as_mapping(theory))
            for entry, theory in zip(found, theories, strict=True)
        ]
        print_json(BoundsJson(cells=listed))
        return
    for entry, theory in zip(found, theories, strict=True):
        say(entry.id, style="bold")
        print_theory(theory)


@app.command("stability")
@with_grouped_options
def stability(layers: _Layers = 64, dimension: _Dimension = 100, *, output: Output) -> None:
    """Simulate how stable linear networks are when a layer is dropped (RaPTr, lemmas 4.3 and G.2, Figure 3).

    Prints the exponents fitted to the simulation beside the paper's: of the norm of the output and of the gap over the
    depth L, and of Psi, the change of the output without layer l, over L / l. Needs neither a cell nor torch.

    Example: gpas theory stability -o figure3.pdf
    """
    # More threads than one wait for each other: the products are small. numpy reads it when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gpas_cli.extensions.theory.stability import BOTH, laws, simulate, statements

    cases = {(one.kind.title, one.tau): one.kind for one in statements()}
    known: dict[tuple[str, float], Any] = {}
    with working("simulating") as show:
        for number, ((title, tau), kind) in enumerate(cases.items(), start=1):
            show(f"{title}, tau {tau:g}; {number} of {len(cases)}")
            known[title, tau] = simulate(kind, tau, layers=layers, dimension=dimension)
    rows = [(one, laws(one, known[one.kind.title, one.tau])) for one in statements()]
    figures = _stability_figures({tau: found for (kind, tau), found in known.items() if kind == BOTH.title})
    documents = [
        _StatementJson(statement=one.name, network=one.kind.title, tau=one.tau, laws=found) for one, found in rows
    ]
    heads = ("statement", "network", *(f"{title}: fitted" for title in _TITLES.values()), "printed")
    lines = [
        [one.name, one.kind.title, *(f"{law.fitted:.2f}" for law in found),
         ", ".join("-" if law.printed is None else str(law.printed) for law in found)]
        for one, found in rows
    ]  # fmt: skip
    note = (
        "Exponents of L; for Psi, of L / l. Without norm, norm and Psi grow as 2 to the power of exponent x L. "
        f"Depths up to {layers}, d = {dimension}, 100 inputs, one draw of the weights."
    )
    document = StabilityJson(
        layers=layers, dimension=dimension, statements=documents, panels=list(map(as_json, figures))
    )
    _show(figures, output, document, Columns(heads, lines, right=frozenset(heads[2:-1])), note)


@app.command("norms")
@with_grouped_options
def norms(cell: Cell, *, output: Output) -> None:
    """Measure how the residual stream of a cell grows at initialisation (RaPTr, theorem 2.3).

    Squared norms over d, entering layer 1 and after each layer: of the network of the proof, of the cell's network, and
    of random paths through it with and without square-root scaling, which keeps the growth of the whole network.

    Example: gpas theory norms quickstart-raptr/raptr-s1
    """
    with _measuring(cell, _BUILDING) as (entry, _):
        from gpas_cli.extensions.theory.growth import growths

        found = growths(entry.cell)
    lines = {one.title: list(enumerate(one.squares)) for one in found}
    figures = [_figure("|y|^2 / d at initialisation", "layer", "|y|^2 / d", lines)]
    rows = [
        [one.title, f"{one.squares[0]:.3f}", f"{one.squares[-1]:.3f}", f"{one.slope:.4f}", f"{one.fit:.3f}"]
        for one in found
    ]
    heads = ("network", "|x|^2 / d", "after the last layer", "a layer adds", "R^2 of a line")
    note = "Theorem 2.3: every layer adds the same order of d; in the proof's network between 1 and 2 (F.10)."
    document = NormsJson(cell=entry.id, growths=found, panels=list(map(as_json, figures)))
    _show(figures, output, document, Columns(heads, rows, right=frozenset(heads[1:])), note)


@app.command("length")
@with_grouped_options
def length(cell: Cell, *, output: Output) -> None:
    """Measure the standard deviation of attention's output over the length of its input (Spike No More, equation 48).

    The first layer's attention at initialisation, on normal inputs, at its last token.

    Example: gpas theory length quickstart-spike/plain-small-lr0.008-s1
    """
    with _measuring(cell, _BUILDING) as (entry, _):
        from gpas_cli.extensions.theory.growth import length_law

        found = length_law(entry.cell)
    lines = {
        "equation (48)": [(point.length, point.predicted) for point in found.points],
        "measured": [(point.length, point.measured) for point in found.points],
    }
    figures = [_figure("Attention's output at initialisation", "length", "standard deviation", lines, log=True)]
    rows = [[f"{p.length}", f"{p.predicted:.5f}", f"{p.measured:.5f}", f"{p.measured / p.predicted:.3f}"]
            for p in found.points]  # fmt: skip
    heads = ("length", "equation (48)", "measured", "ratio")
    note = f"The variance falls as length^{found.exponent:.2f}; equation (48) has -1."
    document = LengthJson(
        cell=entry.id, points=found.points, exponent=found.exponent, panels=list(map(as_json, figures))
    )
    _show(figures, output, document, Columns(heads, rows, right=frozenset(heads[1:])), note)


@app.command("depth")
@with_grouped_options
def depth(cell: Cell, *, output: Output) -> None:
    """Compute the bounds of a cell at initialisation that depend on its depth (The Curse of Depth, RaPTr).

    For the gradient: equations (25), (34) to (37), with LNS (54) and (55). For the difference that a random layer makes
    to the loss: theorem 4.2, with both sides.

    Example: gpas theory depth quickstart-curse/pre-normal-s1
    """
    here = project()
    with _measuring(cell, _BUILDING) as (entry, show):
        from gpas_cli.extensions.theory.initialisation import depth_theory

        bound, stages = depth_theory(entry.cell, here.cache, here.config.parent, lambda layer: show(f"without {layer}"))
    drawn = {"Psi / |F|": list(enumerate(stages.relative, start=1))}
    if bound:
        drawn["(54) of LNS" if bound.lns else "(25)"] = [(i.layer, i.feed_forward * i.attention) for i in bound.layers]
    figures = [_figure(f"{name} at initialisation", "layer", name, {name: points}) for name, points in drawn.items()]
    remarks = depth_remarks(entry.cell, bound)
    document = DepthJson(
        cell=entry.id, depth=asdict(bound) if bound else None, stages=asdict(stages), remarks=remarks,
        panels=list(map(as_json, figures)),
    )  # fmt: skip
    note = "\n".join([*depth_results(bound, stages), *remarks])
    _show(figures, output, document, depth_table(bound, stages), note)


@app.command("coordinates")
@with_grouped_options
def coordinates(cell: Cell, updates: _Updates = 5, *, output: Output) -> None:
    """Check whether a cell's scheme keeps its activations over width and depth (Tensor Programs V, appendix D.1).

    Small networks with the cell's scheme, gate and recipe train for a few updates. In muP the change of the stream and
    of the logits does not depend on the width, in CompleteP not on the depth either; in the standard parametrisation it
    grows. The logits show this growth over the width only after some tens of updates (--updates 25); before, their
    change falls. Exit code 4 if the stream is not flat where it should be.

    Example: gpas theory coordinates quickstart/pre-gpas-s1
    """
    here = project()
    with _measuring(cell, "training small networks") as (entry, show):
        from gpas_cli.extensions.theory.growth import coordinates as trained

        found = trained(entry.cell, here.cache, here.config.parent, updates, show)
    figures, whole = [], max(one.place for one in found if one.place != "logits")
    for over in ("width", "depth"):
        chosen = [one for one in found if one.over == over and one.place in ("logits", whole)]
        lines = {f"{one.parametrisation}, {_place(one.place)}": list(zip(one.at, one.changes, strict=True))
                 for one in chosen}  # fmt: skip
        figures.append(_figure(f"Change after {updates} updates", over, "root mean square", lines, log=True))
    verdicts: dict[bool | None, Shown] = {True: ("flat", "green"), False: ("not flat", "red"), None: ""}
    rows: list[list[Shown]] = []
    for one in found:
        measured = [*(f"{change:.3g}" for change in one.changes), *[""] * (4 - len(one.at)), f"{one.exponent:.2f}"]
        rows.append([one.over, one.parametrisation, _place(one.place), *measured, verdicts[one.flat]])
    heads = ("over", "parametrisation", "change of", "x 1", "x 2", "x 4", "x 8", "exponent", "verdict")
    sizes = " and ".join(f"{over}s {', '.join(map(str, next(one.at for one in found if one.over == over)))}"
                         for over in ("width", "depth"))  # fmt: skip
    note = f"Root mean squares after {updates} updates, for {sizes}. The exponent is a power law's; 0 is flat."
    document = CoordinatesJson(cell=entry.id, updates=updates, changes=found, panels=list(map(as_json, figures)))
    _show(figures, output, document, Columns(heads, rows, right=frozenset(heads[3:-1])), note)
    if any(one.flat is False for one in found):
        raise typer.Exit(Exit.FAILED)


def _place(place: str) -> str:
    return place if place == "logits" else f"stream, layer {place}" if place != "0" else "embedding"


@contextmanager
def _measuring(name: str, first: str) -> Iterator[tuple[Entry, Callable[[str], None]]]:
    """Yield the cell of this name and a function that shows what is computed.

    Raises GpasError without torch, and for a cell with an encoder.
    """
    (entry,) = find_cells([name])
    if entry.cell.model.family.encoder:
        raise GpasError("these laws are only for decoders; the cell is of family encoder-decoder")
    with working(first) as show:
        show(first)
        try:
            yield entry, show
        except ImportError as error:
            raise GpasError(f"this needs torch, which cannot be imported: {error}") from error


def _stability_figures(known: dict[float, Any]) -> list[Figure]:
    """Return Figure 3: norms by depth, Psi by layer and gaps by depth, with a line for each tau."""
    panels = [("norms", "L", "|F|"), ("psi", "layer", "Psi"), ("gaps", "L", "mean of Psi / |F|")]
    return [
        _figure("", x, y, {f"tau {tau:g}": list(getattr(found, name)) for tau, found in known.items()}, log=True)
        for name, x, y in panels
    ]


def _figure(title: str, x: str, y: str, lines: Mapping[str, _Points], *, log: bool = False) -> Figure:
    drawn = [Line(name, tuple(points), colour=number) for number, (name, points) in enumerate(lines.items())]
    return Figure(title, x, y, lines=tuple(drawn), log=log, log_x=log)


def _show(figures: list[Figure], output: Output, document: DocumentJson, table: Columns, note: str) -> None:
    """Draw the panels to the named files, and as text if requested, and print the numbers."""
    output.draw(figures, output.out or (), output.titled(""))
    if output.as_json:
        print_json(document)
        return
    say(table)
    say(note, soft_wrap=True)


def _theory_of(cell: Specification) -> Theory:
    """Return the bounds of a cell and how much of the gradient its gates preserve.

    Raises GpasError without torch or enough memory.
    """
    try:
        from gpas_cli.extensions.theory.initialisation import examine
    except ImportError as error:
        raise GpasError(f"this needs torch, which cannot be imported: {error}") from error
    here = project()
    teacher = cell.teacher() if cell.model.gate and cell.model.gate.from_trained else None
    # The one with the most updates first, then those that the cell's gates are copied from.
    keys = [cell.stages[0].key, *([teacher.stages[0].key] if teacher else [])]
    checkpoints = [path for key in keys for path in checkpoints_of(here.runs, key)]
    with working("computing the bounds") as show:
        return examine(cell, here.cache, here.config.parent, checkpoints, show)


def _as_mapping(theory: Theory) -> dict[str, Any]:
    """Return the fields of `Theory` and the products of equation (7), for `--json`."""
    layers = [{**asdict(layer), "bound": layer.bound} for layer in theory.layers]
    totals = {"log10_bound": theory.log10_bound, "log10_gradient_ratio": theory.log10_gradient_ratio}
    return {**asdict(theory), "layers": layers, **totals}
