"""`gpas figure envelope`, `gpas figure convergence` and `gpas figure scaling`."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import Names, Where, with_grouped_options
from gpas_cli.cli.selection import entries, experiments, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.errors import GpasError
from gpas_cli.extensions.figures.drawing import Against, FigureJson, From, Output, base_of
from gpas_cli.extensions.figures.figure import PlotJson, as_json
from gpas_cli.extensions.laws.convergence import Speed, convergence
from gpas_cli.extensions.laws.envelope import envelope
from gpas_cli.extensions.laws.scaling import Law, scaling
from gpas_cli.grid.declared import Entry
from gpas_cli.structure import FLAT, Document, DocumentJson
from gpas_cli.words import count


@with_grouped_options
def figure_envelope(
    names: Names = None,
    where: Where = None,
    axis: Annotated[str, typer.Option("--over", metavar="AXIS", help="An axis of numbers.")] = "optim.lr",
    *,
    output: Output,
) -> None:
    """Plot the metric of a grid's table over an axis of numbers, with the best of each method marked.

    Example: gpas figure envelope quickstart-lr --over optim.lr
    """
    paths = output.files(Path("envelope"))
    chosen = entries(names, where)
    spec = experiments().grids[chosen[0].grid].table_spec
    with recorded_of(chosen, database=False) as known:
        made, missing = envelope(known, axis, spec.value, spec.over, output.titled(spec.title))
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


@with_grouped_options
def figure_convergence(
    names: Names = None, where: Where = None, against: Against = None, start: From = 0.0, *, output: Output
) -> None:
    """Plot smoothed training losses beside the final loss of their base, and how much sooner each method reaches it.

    The base is `against` of the grid's table, or --against.

    Example: gpas figure convergence quickstart
    """
    paths = output.files(Path("convergence"))
    chosen = entries(names, where)
    spec = experiments().grids[chosen[0].grid].table_spec
    base = base_of(against, chosen) or spec.against
    if not base:
        grid = chosen[0].grid
        raise GpasError(f"the table of '{grid}' declares no `against`; name the base with --against AXIS=LABEL")
    title = output.titled(f"Convergence, {chosen[0].grid}")
    with recorded_of(chosen) as known:
        made, speeds, missing = convergence(known, base, spec.over, title, start)
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


@with_grouped_options
def figure_scaling(names: Names = None, where: Where = None, *, output: Output) -> None:
    """Plot the loss over parameters and training FLOPs, published and ours, with fitted power laws.

    For cells of one size it is the loss over training tokens.

    Example: gpas figure scaling quickstart-scaling
    """
    paths = output.files(Path("scaling"))
    chosen = entries(names, where)
    grids = [experiments().grids[name] for name in names or [experiments().default]]
    published = {pack: name for grid in grids if grid.table for pack, name in grid.table.published.items()}
    with recorded_of(chosen, database=False) as known:
        made = scaling(chosen, known, published)
    if not made.panels:
        raise GpasError("no cell has a result and no published table has its perplexity: nothing to draw")
    output.draw(made.panels, paths, output.titled("Scaling of the validation loss"))
    if output.as_json:
        laws = [_LawJson(law=law, words=law.words) for law in made.laws]
        print_json(ScalingJson(files=paths, panels=list(map(as_json, made.panels)), laws=laws, missing=made.missing))
    else:
        rows = [(law.source, law.method, law.over, *_exponent(law), str(law.sizes)) for law in made.laws]
        headers = ("numbers", "method", "loss over", "exponent", "95 % interval", "points")
        say(Columns(headers, rows, right=frozenset(headers[3:])))
    _say_missing(made.missing, chosen, "a result")


def _exponent(law: Law) -> tuple[str, str]:
    if law.law is None:
        return "-", "too few points"
    low, high = law.law.interval
    return f"{law.law.exponent:.4f}", f"{low:.4f} to {high:.4f}"
