"""`gpas explain`: the equations and the configuration of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

import yaml
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say, say_fact
from gpas_cli.cli.options import AsJson, Cells
from gpas_cli.cli.selection import experiments, find_cells
from gpas_cli.cli.views.states import CellNameJson
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.resources import from_site
from gpas_cli.plan.costs import described
from gpas_cli.spec.cell import NETWORK, Cell, Stage
from gpas_cli.spec.equation import depth_lines, description, equations
from gpas_cli.spec.model import conditions, has_large_shortcut, has_small_sublayers, remark, shortcut_std
from gpas_cli.spec.parse import plain
from gpas_cli.structure import FLAT, Document, DocumentJson


class _EquationJson(Document):
    """Layers with the same equation."""

    first: int
    last: int
    equation: str


class _StageKeyJson(Document):
    """A stage of a cell's chain."""

    kind: str
    key: str
    parents: Sequence[str]
    resources: Annotated[Mapping[str, Any], "what its job asks for"]
    site: Annotated[Mapping[str, str], "the resources that the site's profile sets, with their places in its file"]


class _ShortcutJson(Document):
    """The stream that enters the first layer, at initialisation, and the two conditions of Spike No More."""

    std: Annotated[float, "standard deviation of the stream, after the stages of the embedding and with positions"]
    large: bool
    small_sublayers: Annotated[bool, "whether output matrices start at 1/sqrt(2L) of the others"]
    remark: Annotated[str, "how it differs from what the names of the settings suggest, empty if it does not"]


class _ExplainedCellJson(Document):
    """A cell: its equations, stages and configuration."""

    cell_name: CellNameJson = field(metadata=FLAT)
    layers: Sequence[_EquationJson]
    shortcut: _ShortcutJson
    depth: Annotated[Sequence[str], "which layers train in each update, in words; empty if all do"]
    stages: Sequence[_StageKeyJson]
    cell: Mapping[str, Any]


class ExplainedJson(DocumentJson):
    """`gpas explain --json`."""

    cells: Sequence[_ExplainedCellJson]


def explain(cells: Cells, as_json: AsJson = False) -> None:
    """Show what a cell is: its equations and whole configuration.

    In the equations, f is attention, then the feed-forward network; N is a norm; G(x) = x - act(alpha) sg(x).

    Example: gpas explain mix-gpas-s1
    """
    found = find_cells(cells)
    if as_json:
        print_json(ExplainedJson(cells=list(map(_json, found))))
        return
    for entry in found:
        _print(entry)


def _json(entry: Entry) -> _ExplainedCellJson:
    cell, model = entry.cell, entry.cell.model
    stages = [
        _StageKeyJson(
            kind=stage.kind, key=stage.key, parents=stage.parents,
            resources=plain(entry.resources_of(stage).recorded), site=_site(entry, stage),
        )
        for stage in cell.stages
    ]  # fmt: skip
    return _ExplainedCellJson(
        cell_name=CellNameJson.of(entry),
        layers=[
            _EquationJson(first=first, last=last, equation=text)
            for first, last, text in ([] if cell.network else equations(model))
        ],
        shortcut=_ShortcutJson(
            std=shortcut_std(model),
            large=has_large_shortcut(model),
            small_sublayers=has_small_sublayers(model),
            remark=remark(model),
        ),
        depth=depth_lines(cell),
        stages=stages,
        cell=_settings(cell),
    )


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
    if start := entry.cell.start:
        say_fact("starts from", f"{start.source}, {start.name}", width=14)
    else:
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
