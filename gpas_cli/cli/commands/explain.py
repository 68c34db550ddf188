"""`gpas explain`: the equations and the configuration of a cell, and with --bounds the papers' theory for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say, say_fact, working
from gpas_cli.cli.options import AsJson, Cells
from gpas_cli.cli.selection import experiments, find_cells, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.states import name_json
from gpas_cli.documents import CellNameJson, DocumentJson
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.resources import from_site
from gpas_cli.plan.costs import described
from gpas_cli.spec.cell import NETWORK, Cell, Stage
from gpas_cli.spec.equation import depth_lines, description, equations
from gpas_cli.spec.model import conditions, has_large_shortcut, has_small_sublayers, remark, shortcut_std
from gpas_cli.spec.parse import plain
from gpas_cli.store.rundir import checkpoints_of
from gpas_cli.structure import FLAT, OPTIONAL, Document

if TYPE_CHECKING:
    from gpas_cli.evaluate.depth_bounds import DepthBound, StageGap
    from gpas_cli.evaluate.theory import LayerBounds, Preserved, Theory


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
    bounds: Annotated[Mapping[str, Any] | None, "with --bounds: gpas_cli/evaluate/theory.py explains each number"] = (
        field(default=None, metadata=OPTIONAL)
    )


class ExplainedJson(DocumentJson):
    """`gpas explain --json`."""

    cells: Sequence[_ExplainedCellJson]


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
        print_json(ExplainedJson(cells=list(map(_json, found, theories))))
        return
    for entry, theory in zip(found, theories, strict=True):
        _print(entry)
        if theory is not None:
            print_theory(entry.cell, theory)


def _json(entry: Entry, theory: Theory | None) -> _ExplainedCellJson:
    cell, model = entry.cell, entry.cell.model
    stages = [
        _StageKeyJson(
            kind=stage.kind, key=stage.key, parents=stage.parents,
            resources=plain(entry.resources_of(stage).recorded), site=_site(entry, stage),
        )
        for stage in cell.stages
    ]  # fmt: skip
    return _ExplainedCellJson(
        cell_name=name_json(entry),
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
        bounds=None if theory is None else _as_mapping(cell, theory),
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


def identity_bounds_of(cell: Cell) -> list[float]:
    """Return equation (15) of Spike No More for every layer of a cell at initialisation.

    Raises GpasError without torch.
    """
    try:
        from gpas_cli.evaluate.theory import identity_bounds
    except ImportError as error:
        raise GpasError(f"the bounds of this figure need torch, which cannot be imported: {error}") from error
    here = project()
    doing = f"the bounds of {cell.key} at initialisation"
    with working(doing) as show:
        return identity_bounds(cell, here.cache, here.config.parent, lambda layer: show(f"{doing}: {layer}"))


def _as_mapping(cell: Cell, theory: Theory) -> dict[str, Any]:
    """Return the fields of `Theory` and the products of equation (7), for `--json`."""
    layers = [{**asdict(layer), "bound": layer.bound} for layer in theory.layers]
    totals = {"log10_bound": theory.log10_bound, "log10_gradient_ratio": theory.log10_gradient_ratio}
    return {**asdict(theory), "layers": layers, **totals, "remarks": depth_remarks(cell, theory.depth)}


def print_theory(cell: Cell, theory: Theory) -> None:
    """Print the tables with an explanation of each."""
    say(f"  Bounds at initialisation (Spike No More), {theory.length} tokens, {theory.sample}; float64")
    say(_bounds_table(theory.layers))
    say(
        f"  gradient at layer 1 over gradient after the last: 10^{theory.log10_gradient_ratio:.2f}, "
        f"bounded by 10^{theory.log10_bound:.2f}, the product of all bounds (equation 7)"
    )
    if not all(layer.equation for layer in theory.layers):
        say("  * not the paper's x + f(N(x)): the bound is derived for this layer's equation in the same way")
    _print_depth(cell, theory)
    if theory.preserved:
        _print_preserved(theory)


def _print_depth(cell: Cell, theory: Theory) -> None:
    say("  Bounds that depend on the depth (The Curse of Depth, RaPTr)")
    say(depth_table(theory.depth, theory.stages))
    if theory.depth:
        inner = theory.layers[:-1]
        norms = sum(math.log10(one.attention.norm * one.feed_forward.norm) for one in inner)
        gradient = sum(math.log10(one.gradient_ratio) for one in inner)
        factors = zip(theory.layers, theory.depth.layers, strict=True)
        above = sum(one.feed_forward.norm > factor.feed_forward for one, factor in factors)
        say(f"  through all layers but the last: gradient 10^{gradient:.2f}, product of ||J|| 10^{norms:.2f}; ||J|| of "
            f"the feed-forward network is above its factor in {above} of {len(theory.layers)} layers")  # fmt: skip
    for line in (*depth_results(theory.depth, theory.stages), *depth_remarks(cell, theory.depth)):
        say(f"  {line}")


def depth_table(bound: DepthBound | None, stages: StageGap) -> Columns:
    """Return the numbers of every layer."""
    heads = ["layer", "Psi", "Psi / |F|", "loss without"]
    rows = [[f"{i}"] for i in range(1, len(stages.psi) + 1)]
    if bound:
        numbers = ("(40)", "(52) - 1", "(55)") if bound.lns else ("(6)", "(30) - 1", "(35)")
        heads[1:1] = ["sigma_x", numbers[0], "sigma_x'", numbers[1], "attention", "A (36)", "B (37)", numbers[2]]
        factors = [replace(one, feed_forward=one.feed_forward - 1) for one in bound.layers]
        rows = [[f"{number:.4g}" for number in astuple(one)] for one in factors]
    for row, psi, relative, rise in zip(rows, stages.psi, stages.relative, stages.rise, strict=True):
        row += [f"{psi:.4g}", f"{relative:.4g}", f"{rise:+.2g}"]
    return Columns(heads, rows, right=frozenset(heads))


def depth_results(bound: DepthBound | None, stages: StageGap) -> list[str]:
    """Return the bounds in words."""
    found = []
    if bound:
        first, second = ("(54)", "(55)") if bound.lns else ("(25), which is (34),", "(35)")
        found = [f"The Curse of Depth: |dy/dx_1| through all layers but the last, as printed, is bounded by "
                 f"10^{bound.log10_bound:.2f} with {first} and 10^{bound.log10_joined:.2f} with {second}."]  # fmt: skip
    right = f"(1/L) E[sum Psi / |F|] = {stages.stability:.4g}"
    limit = f"a C that a head with its own norm does not have, times {right}"
    if stages.bound is not None:
        limit = (f"{stages.bound:.4g} = C times {right}. The paper leaves C open; here it is {stages.constant:.4g} = "
                 "2 sqrt(2 d) max|g| |Phi|, with g of the final norm and Phi of the head")  # fmt: skip
    said = f"without a random layer the loss differs by {stages.gap:.3g}, bounded by {limit}."
    return [*found, f"RaPTr, theorem 4.2: {said}"]


def depth_remarks(cell: Cell, bound: DepthBound | None) -> list[str]:
    """Return the slips in the paper's equations, or why it has none for the cell."""
    if bound is None:
        scheme = cell.model.norm.title + (" with gates without stop-gradient" if cell.model.gate else "")
        return [f"The Curse of Depth derives its bounds for Pre-LN (25) and LNS (54), not for {scheme}."]
    recursion, factor = ("(40)", "(52)") if bound.lns else ("(6)", "(30)")
    return [
        f"- {factor} divides by (sqrt d + sqrt d_ffn)^2, by which (29) and Spike No More's (15) multiply: it does not "
        "bound the feed-forward network, and the products hold only as far as attention's factor leaves room.",
        "- (36), (37) are not the product multiplied out: A lacks a sigma^2, and B has A's first summand with it.",
        "- Both summands of attention have sqrt(s) + 2 + 1/sqrt(s), in (33) only the first: the bound is larger.",
        *(["- (54) divides by l, although (52) and (53) begin with 1/sqrt(l)."] if bound.lns else []),
        f"- {recursion} has numerators set to 1, after (13) with one covariance for two and (16) without d and 1/s: "
        "only its growth can be compared with sigma_x.",
    ]


def _print_preserved(theory: Theory) -> None:
    say(f"  Gradient under naive scaling over gradient under GPAS (GPAS, appendix B), gates {theory.gates}")
    if all(row.predicted == row.measured == 1 for row in theory.preserved):
        say("  1 everywhere: every gate is at act(alpha) = 0; train the cell to see the effect of its gates")
        return
    say(_preserved_table(theory.preserved))
    if any(row.predicted is None for row in theory.preserved):
        say("  - a later gate scales only part of the sum; appendix B gives no product for it")


def _bounds_table(layers: tuple[LayerBounds, ...]) -> Columns:
    first = layers[0].feed_forward
    own = "(44)" if first.swiglu else "(29)" if first.slope != 1 else ""
    second = ("(15)", own) if own else ("(15)",)
    heads = ("layer", "sigma_x", "(20)", "worst token", "||J||", "sigma_x'", *second, "worst token", "||J||",
             "gradient in/out")  # fmt: skip
    rows = []
    for layer in layers:
        attention, network = layer.attention, layer.feed_forward
        bounds = (network.identity, network.bound) if own else (network.bound,)
        numbers = (attention.stream_std, attention.bound, attention.worst, attention.norm, network.stream_std, *bounds,
                   network.worst, network.norm, layer.gradient_ratio)  # fmt: skip
        mark = "" if layer.equation else "*"
        rows.append([f"{layer.layer}{mark}", *(f"{number:.4g}" for number in numbers)])
    return _columns(heads, rows)


def _preserved_table(rows: tuple[Preserved, ...]) -> Columns:
    lines = []
    for row in rows:
        predicted = "-" if row.predicted is None else f"{row.predicted:.6g}"
        name = "final norm" if row is rows[-1] else str(row.layer)
        lines.append([name, predicted, f"{row.measured:.6g}", "" if row.error is None else f"{row.error:.1e}"])
    return _columns(("entering layer", "product of 1 - act(alpha)", "by autograd", "difference"), lines)


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Columns:
    return Columns(heads, rows, right=frozenset(heads))
