"""The figures of the papers, by number: declared as data, drawn from the cells of a grid.

    figures.yaml of a pack  a figure: its grids, cells, panels
    `declared_figures`      -> `FigureSpec`s, by the names gpas-3a, curse-1, spike-4
    `request`               the entries that a figure needs, of the paper's grid, its toy grid or any other
    `make`                  what is recorded of them -> `PaperFigure`, plots as data

Keys of a figure in YAML: `title`; `grid` and `where`, the paper's grid and the labels that select its cells; `toy`, the
grid at quickstart size, if there is one; `cells`, the labels of the drawn cells in any grid; `methods`, titled groups
of cells; `panels`; `each`, the axes with a panel for each of their labels; `against`, the labels of the cells that
others are divided by; `planned`, the number of updates that `at` refers to; `size`, the size that the title names in
the paper's grid; `y`, the title of the y axis. Keys of a panel:
`title`, `cells`, `what` (one quantity or several), `otherwise` (the quantity to draw of cells that have not recorded
`what`), `at`, `layers`, `every`, `from`, `log`, as of `Selection`; `growth`, to draw the law by which values grow over
layers.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.extensions.curves.series import CellCurve, Selection, curves, of_part, ratios
from gpas_cli.extensions.figures.figure import Figure, Line, make_figure, with_growth
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.document import Label, spelled
from gpas_cli.grid.expand import expand
from gpas_cli.grid.packs import Pack, including
from gpas_cli.report.labels import has_labels
from gpas_cli.report.quantities import quantity
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.shapes import checked
from gpas_cli.report.tables.table_place import remedy
from gpas_cli.spec.model import SIZES
from gpas_cli.state.status import RETRIED
from gpas_cli.structure import HIDDEN, Frozen
from gpas_cli.words import listed

_SHAPES = Path(__file__).with_name("shapes.yaml")
_BOUND = "bound"  # a quantity that is computed, not recorded
_BOUND_AXIS = "upper bound of the Jacobian's norm"
_TOY_SIZES = ("quickstart",)
_METHOD_AXES = ("norm", "gate", "embed", "init", "family")  # whose labels the title of a method replaces
_SHOWN = 6  # missing cells that a message names

_Labels = tuple[tuple[str, Label], ...]
_Bounds = Callable[["Entry"], Sequence[float]]


class FigureSpec(Frozen):
    """A figure as declared. The other fields are as in the module's text."""

    name: str  # such as gpas-3a
    paper: str  # its title in a sentence
    title: str
    grid: str
    panels: tuple[Mapping[str, Any], ...]
    where: Mapping[str, Label]
    cells: Mapping[str, Any]
    toy: str = ""
    methods: tuple[Mapping[str, Any], ...] = ()
    each: str | tuple[str, ...] = ()
    against: Mapping[str, Label] | None = None
    planned: int = 0
    size: str = ""
    y: str = ""

    @property
    def number(self) -> str:
        """The number in the paper: "3a"."""
        return self.name.rpartition("-")[2]

    def draws(self, entry: Entry) -> bool:
        """Return whether a cell belongs to the figure, if it belongs to the grid."""
        groups = [method["cells"] for method in self.methods] or [{}]
        panels = [panel.get("cells", {}) for panel in self.panels]
        return (
            has_labels(entry, self.cells)
            and any(has_labels(entry, group) for group in groups)
            and any(has_labels(entry, panel) for panel in panels)
        )


class Request(Frozen):
    """A figure and the cells to draw it from. `problem`: why there are none, "" if there are."""

    spec: FigureSpec
    grid: str
    entries: tuple[Entry, ...] = ()
    declared: tuple[Entry, ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """How the cells differ from the paper's: "toy size: quickstart"; "" in the paper's own grid."""
        if self.grid == self.spec.grid or not self.entries:
            return ""
        own = [entry for entry in self.entries if entry.cell.network is None]
        sizes = list(dict.fromkeys(str(entry.axes.get("size", "")) for entry in own))
        toy = all(entry.cell.model.size == SIZES[name] for entry in own for name in _TOY_SIZES)
        return f"{'toy size' if toy else 'size'}: {listed(sizes, _SHOWN)}, grid {self.grid}"


class PaperFigure(Frozen):
    """A figure of a paper, as data. Without any panel, `problem` is why."""

    name: str
    paper: str
    number: str
    title: str
    grid: Annotated[str, "the grid whose cells it shows"]
    panels: tuple[Figure, ...] = field(metadata=HIDDEN)  # as JSON they are other documents
    note: Annotated[str, "how the cells differ from the paper's, such as toy size; empty if they do not"] = ""
    missing: Annotated[tuple[str, ...], "cells without a result"] = ()
    unrecorded: Annotated[tuple[str, ...], "cells with a result that have not recorded the curve"] = ()
    command: Annotated[str, "runs the missing cells, or retries those that failed; empty if none is missing"] = ""
    problem: str = ""

    @property
    def heading(self) -> str:
        """The figure's number and title, with its size if that is not the paper's."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.paper}, Figure {self.number}: {self.title}{note}"


def declared_figures(packs: Mapping[str, Pack]) -> dict[str, FigureSpec]:
    """Return the figures of the papers by name."""
    return {name: figure for pack in packs.values() for name, figure in figures_of(pack).items()}


@cache
def figures_of(pack: Pack) -> dict[str, FigureSpec]:
    """Return a paper's figures by name. Raises InvalidExperiments for an invalid file."""
    found: dict[str, FigureSpec] = {}
    document = checked(pack, "figures", _SHAPES).plain()
    for name, figure in document.get("figures", {}).items():
        usual = {"where": {}, "cells": {}, **figure}
        lists = {key: tuple(usual.get(key, ())) for key in ("panels", "methods")}
        grids = {key: pack.outside(usual.get(key, "")) for key in ("grid", "toy")}
        own = FigureSpec(name=pack.prefix + name, paper=document["paper"], **(usual | lists | grids))
        found[own.name] = own
    return found


def named(words: Iterable[str], packs: Mapping[str, Pack]) -> list[FigureSpec]:
    """Return the figures with these names: gpas-3a, gpas:3a, all of a number (gpas-3), a paper (gpas), or "all".

    Raises GpasError with the nearest name for any other.
    """
    known = declared_figures(packs)
    chosen: dict[str, FigureSpec] = {}
    for word in words:
        name = word.lower().replace(":", "-")
        own = {
            spec.name: spec
            for spec in known.values()
            if name in ("all", spec.name, spec.name.partition("-")[0], spec.name.rstrip(string.ascii_lowercase))
        }
        if not own:
            raise GpasError(f"no paper has a figure '{word}'; {nearest(name, known)}")
        chosen |= own
    return [spec for spec in known.values() if spec.name in chosen]


def request(spec: FigureSpec, experiments: Experiments, grid: str = "") -> Request:
    """Return the cells that a figure needs: of the paper's grid, or of another one."""
    grid = grid or spec.grid
    if grid not in experiments.grids:
        problem = "; ".join(filter(None, (f"{experiments.path.name} declares no grid '{grid}'", including(grid))))
        return Request(spec, grid, problem=problem)
    declared = expand(experiments, [grid])
    own = [entry for entry in declared if grid != spec.grid or has_labels(entry, spec.where)]
    others = _variants(spec, own)
    entries = tuple(entry for entry in own if spec.draws(entry) and entry.id not in others)
    problem = "" if entries else f"the grid '{grid}' has no cell that this figure draws"
    return Request(spec, grid, entries, tuple(declared), problem)


def _variants(spec: FigureSpec, entries: Sequence[Entry]) -> set[str]:
    """Return the ids of cells that are other forms of a method, if the grid has cells with the method's own labels."""
    named: set[str] = set()
    alike: set[str] = set()
    for method in spec.methods:
        own = {entry.id for entry in entries if has_labels(entry, method["cells"], named=True)}
        named |= own
        alike |= {entry.id for entry in entries if own and has_labels(entry, method["cells"])}
    return alike - named


def make(request: Request, known: Recorded, bounds: _Bounds | None = None) -> PaperFigure:
    """Return the figure as far as it is recorded. `bounds` computes equation (15) for each layer of a cell."""
    spec = request.spec
    title = f"{spec.title} at {spec.size}" if spec.size and request.grid == spec.grid else spec.title
    blank = PaperFigure(spec.name, spec.paper, spec.number, title, request.grid, (), request.note)
    if request.problem:
        return replace(blank, problem=request.problem)
    if spec.panels[0]["what"] == _BOUND:
        return _with_bounds(blank, request, bounds)
    panels: list[Figure] = []
    drawn: set[str] = set()
    for label, cells in _cells_of_each(request).items():
        for panel in spec.panels:
            made, names = _panel(panel, spec, cells, known, label)
            panels.append(made)
            drawn |= names
    without = [entry for entry in request.entries if entry.id not in drawn]
    missing = [entry for entry in without if not all(stage.key in known.results for stage in entry.cell.stages)]
    filled = [panel for panel in panels if panel.drawn]
    if len(filled) > 1:
        letters = zip(string.ascii_lowercase, filled, strict=False)
        filled = [replace(panel, title=f"({letter}) {panel.title.strip()}") for letter, panel in letters]
    return replace(
        blank,
        panels=tuple(filled),
        missing=tuple(entry.id for entry in missing),
        unrecorded=tuple(entry.id for entry in without if entry not in missing),
        command=command(missing, request.declared, known),
        problem="" if filled else "no cell has recorded it",
    )


def command(missing: Sequence[Entry], declared: Sequence[Entry], known: Recorded) -> str:
    """Return the command that runs missing cells; `gpas retry` where `gpas run` would leave all of them alone."""
    found = []
    for entry in missing:
        states = [known.states.get(stage.key, ("missing", None))[0] for stage in entry.cell.stages]
        found.append((next((state for state in states if state in RETRIED), "missing"), entry))
    return remedy(found, declared)


def _cells_of_each(request: Request) -> dict[_Labels, list[Entry]]:
    """Return the cells by their labels on the axes `each`; next to networks, cells without a label are trained here."""
    axes = (request.spec.each,) if isinstance(request.spec.each, str) else request.spec.each
    found: dict[_Labels, list[Entry]] = {}
    for entry in request.entries:
        labels = tuple((axis, entry.axes[axis]) for axis in axes if axis in entry.axes)
        found.setdefault(labels, []).append(entry)
    return {labels or ((("", "trained here"),) if len(found) > 1 else ()): own for labels, own in found.items()}


def _panel(
    panel: Mapping[str, Any], spec: FigureSpec, entries: Sequence[Entry], known: Recorded, label: _Labels
) -> tuple[Figure, set[str]]:
    """Return a panel and the ids of the cells that have recorded its curves."""
    own = [entry for entry in entries if has_labels(entry, panel.get("cells", {}))]
    runs, selection = _runs(panel, panel["what"], spec, own, known)
    if not runs and "otherwise" in panel:
        runs, selection = _runs(panel, panel["otherwise"], spec, own, known)
    recorded = {run.entry.id for run in runs}
    if spec.against:
        runs = ratios(runs, spec.against)
    words = [(axis.rpartition(".")[2] if axis != "size" else "", spelled(value)) for axis, value in label]
    labels = [f"{axis} {value}".strip() for axis, value in words]
    title = ", ".join([*labels, *filter(None, [panel.get("title")])])
    made = make_figure(runs, selection, title, y=spec.y, log=panel.get("log"))
    if panel.get("growth") and runs:
        made = with_growth(made)
    if "at" in panel and selection.over_layers:
        made = replace(made, title=title or made.x.partition("(")[2].rstrip(")").removeprefix("at "), x="layer")
    return replace(made, level=1.0 if spec.against else None), recorded


def _runs(
    panel: Mapping[str, Any], what: str | list[str], spec: FigureSpec, entries: Sequence[Entry], known: Recorded
) -> tuple[list[CellCurve], Selection]:
    """Return the curves of one quantity, or of several as parts of the network, and the last selection."""
    names = what if isinstance(what, list) else [what]
    layers = panel.get("layers")
    runs: list[CellCurve] = []
    for name in names:
        selection = Selection(
            quantity(name),
            at=(panel["at"],) if "at" in panel else (),
            planned=spec.planned,
            layers=() if layers == "all" else layers,
            every=panel.get("every", 1),
            start=panel.get("from", 0.0),
        )
        found = [_titled(run, spec) for run in curves(known.engine, entries, selection)]
        runs += of_part(found, selection.quantity.part) if len(names) > 1 else found
    return runs, selection


def _titled(run: CellCurve, spec: FigureSpec) -> CellCurve:
    """Return the curve with the title of its method, if the figure names methods.

    A method with the cell's labels in its grid comes before one with the labels that papers use, by which every
    schedule of random paths is `depth: raptr`.
    """
    titles = [
        method["title"]
        for named in (True, False)
        for method in spec.methods
        if has_labels(run.entry, method["cells"], named=named)
    ]
    axes = dict.fromkeys((*_METHOD_AXES, *(axis for method in spec.methods for axis in method["cells"])))
    return replace(run, method=titles[0], method_axes=tuple(axes)) if titles else run


def _with_bounds(blank: PaperFigure, request: Request, bounds: _Bounds | None) -> PaperFigure:
    """Return a figure of bounds at initialisation: a line for each method, of its first cell."""
    if bounds is None:
        return replace(blank, problem="its bounds are computed, not recorded: run `gpas figure paper spike-2`")
    lines = []
    for i, method in enumerate(request.spec.methods):
        cells = [entry for entry in request.entries if has_labels(entry, method["cells"])]
        if cells:
            points = tuple((float(n), value) for n, value in enumerate(bounds(cells[0]), 1))
            lines.append(Line(method["title"], points, colour=i, form="joined"))
    layers = max((len(line.points) for line in lines), default=0)
    panel = Figure("", "layer", _BOUND_AXIS, log=True, layers=layers, lines=tuple(lines))
    return replace(blank, panels=(panel,))
