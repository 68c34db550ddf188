"""`gpas explain`: the equations and the configuration of a cell, and with --bounds the papers' theory for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import typer
import yaml
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say, say_fact, working
from gpas_cli.cli.options import AsJson, Cells
from gpas_cli.cli.selection import experiments, find_cells, project
from gpas_cli.cli.views.bounds import depth_remarks, print_theory
from gpas_cli.documents import CellNameJson, DocumentJson, filled
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.resources import from_site
from gpas_cli.plan.costs import described
from gpas_cli.spec.cell import NETWORK, Cell, Stage
from gpas_cli.spec.equation import depth_lines, description, equations
from gpas_cli.spec.model import conditions, has_large_shortcut, has_small_sublayers, remark, shortcut_std
from gpas_cli.spec.parse import plain
from gpas_cli.store.rundir import checkpoints_of

if TYPE_CHECKING:
    from gpas_cli.evaluate.theory import Theory


class _EquationJson(TypedDict):
    """Layers with the same equation."""

    first: int
    last: int
    equation: str


class _StageKeyJson(TypedDict):
    """A stage of a cell's chain."""

    kind: str
    key: str
    parents: list[str]
    resources: Annotated[dict[str, Any], "what its job asks for"]
    site: Annotated[dict[str, str], "the resources that the site's profile sets, with their places in its file"]


class _ShortcutJson(TypedDict):
    """The stream that enters the first layer, at initialisation, and the two conditions of Spike No More."""

    std: Annotated[float, "standard deviation of the stream, after the stages of the embedding and with positions"]
    large: bool
    small_sublayers: Annotated[bool, "whether output matrices start at 1/sqrt(2L) of the others"]
    remark: Annotated[str, "how it differs from what the names of the settings suggest, empty if it does not"]


class _ExplainedCellJson(CellNameJson):
    """A cell: its equations, stages and configuration."""

    layers: list[_EquationJson]
    shortcut: _ShortcutJson
    depth: Annotated[list[str], "which layers train in each update, in words; empty if all do"]
    stages: list[_StageKeyJson]
    cell: dict[str, Any]
    bounds: NotRequired[Annotated[dict[str, Any], "with --bounds: gpas_cli/evaluate/theory.py explains each number"]]


class ExplainedJson(DocumentJson):
    """`gpas explain --json`."""

    cells: list[_ExplainedCellJson]


def explain(
    cells: Cells,
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds",
            help="Also compute the upper bounds of Spike No More, The Curse of Depth and RaPTr and how much of the "
            "gradient GPAS preserves, at initialisation and in float64, beside measured values. Needs torch.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --bounds: compute them even if it takes minutes or much memory.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the equation of every layer of a cell, its initialisation and its whole configuration.

    In the equations, f is attention, then the feed-forward network; N is a norm; G(x) = x - act(alpha) sg(x).

    Example: [bold]gpas explain mix-gpas-s1[/bold]
    """
    found = find_cells(cells)
    theories = [_theory_of(entry.cell, force=force) if bounds else None for entry in found]
    if as_json:
        print_json(ExplainedJson(schema=1, cells=list(map(_json, found, theories))))
        return
    for entry, theory in zip(found, theories, strict=True):
        _print(entry)
        if theory is not None:
            print_theory(entry.cell, theory)


def _json(entry: Entry, theory: Theory | None) -> _ExplainedCellJson:
    cell, model = entry.cell, entry.cell.model
    stages = [
        filled(_StageKeyJson, stage, resources=plain(entry.resources_of(stage).recorded), site=_site(entry, stage))
        for stage in cell.stages
    ]
    shortcut: _ShortcutJson = {
        "std": shortcut_std(model), "large": has_large_shortcut(model),
        "small_sublayers": has_small_sublayers(model), "remark": remark(model),
    }  # fmt: skip
    bounds = {} if theory is None else {"bounds": _as_mapping(cell, theory)}
    return filled(
        _ExplainedCellJson, key=cell.key, grid=entry.grid, name=entry.name,
        layers=[
            {"first": first, "last": last, "equation": text}
            for first, last, text in ([] if cell.network else equations(model))
        ],
        shortcut=shortcut, depth=depth_lines(cell), stages=stages, cell=_settings(cell), **bounds,
    )  # fmt: skip


def _site(entry: Entry, stage: Stage) -> dict[str, str]:
    """Return the resources that come from the site's profile, with their places in its file."""
    return dict(from_site(experiments().site, entry.axes.get("size"), stage.kind, entry.resources_of(stage)))


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the cell as plain data, without the standard deviations that its initialisation does not read."""
    found = cell.to_mapping()
    if cell.network:
        later = {stage.kind.name for stage in cell.later}
        return {name: value for name, value in found.items() if name == NETWORK or name in later}
    return {**found, "init": {k: value for k, value in found["init"].items() if k not in cell.model.init.unread}}


def _print_wiring(entry: Entry) -> None:
    model = entry.cell.model
    title = f"{model.norm.title}{' + GPAS' if model.gate else ''}"
    say(Text.assemble((entry.id, "bold"), f"  {title}  key {entry.cell.key}"))
    for line in description(model):
        say(f"  {line}")
    say_fact("initially", conditions(model), width=14)
    if note := remark(model):
        say_fact("note", note, width=14)
    if not entry.cell.objective.causal:
        say_fact("objective", entry.cell.objective.describe(model.size.vocab), width=14)
    if rate := entry.cell.dropout:
        how = f"in training D sets an element to 0 with probability {rate:g} and divides the others by {1 - rate:g}"
        say_fact("dropout", f"D(x) enters the first layer and f is D(f): {how}", width=14)
    for number, line in enumerate(depth_lines(entry.cell)):
        say_fact("" if number else "depth", line, width=14)


def _print(entry: Entry) -> None:
    if network := entry.cell.network:
        say(Text.assemble((entry.id, "bold"), f"  {network.source}, not trained here  key {entry.cell.key}"))
    else:
        _print_wiring(entry)
    for stage in entry.cell.stages:
        after = f" after {', '.join(stage.parents)}" if stage.parents else ""
        asks = described(entry.resources_of(stage))
        say(f"  stage {stage.kind} {stage.key}{after}: {asks}")
        if site := _site(entry, stage):
            places = ", ".join(f"{name} ({place})" for name, place in site.items())
            say_fact("of the site", places, width=14)
    width = min(110, console().width - 28)  # YAML breaks a line after the first entry that passes it
    text = yaml.safe_dump(_settings(entry.cell), sort_keys=False, default_flow_style=None, width=width)
    say("\n".join("    " + line for line in text.splitlines()), style="dim")


def _theory_of(cell: Cell, *, force: bool = False) -> Theory:
    """Return the bounds of a cell and how much of the gradient its gates preserve.

    Raises GpasError without torch, without enough memory and, unless `force`, when it would take minutes.
    """
    try:
        from gpas_cli.evaluate.theory import examine
    except ImportError as error:
        raise GpasError(f"--bounds needs torch, which cannot be imported: {error}") from error
    here = project()
    teacher = cell.teacher()
    # The one with the most updates first, then those that the cell's gates are copied from.
    keys = [cell.stages[0].key, *([teacher.stages[0].key] if teacher else [])]
    checkpoints = [path for key in keys for path in checkpoints_of(here.runs, key)]
    with working("computing the bounds") as show:
        return examine(cell, here.cache, here.config.parent, checkpoints, force=force, notify=show)


def _as_mapping(cell: Cell, theory: Theory) -> dict[str, Any]:
    """Return the fields of `Theory` and the products of equation (7), for `--json`."""
    layers = [{**asdict(layer), "bound": layer.bound} for layer in theory.layers]
    totals = {"log10_bound": theory.log10_bound, "log10_gradient_ratio": theory.log10_gradient_ratio}
    return {**asdict(theory), "layers": layers, **totals, "remarks": depth_remarks(cell, theory.depth)}
