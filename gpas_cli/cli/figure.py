"""`gpas figure`: curves of a grid as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import Names, Where, console, entries, project
from gpas_cli.errors import GpasError, nearest

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.figure import Figure

# what -> (words for the axis, logarithmic)
BY_LAYER = {
    "gate": ("gate value act(alpha)", False),
    "activation_variance": ("activation variance", True),
    "grad_norm": ("gradient norm", True),
    "importance": ("rise of the loss without the layer", False),
}
CURVES = ("loss", "eval_loss", "eval_perplexity", "lr", "tokens_per_second")


def figure(
    names: Names = None,
    where: Where = None,
    what: Annotated[
        str,
        typer.Option("--what", help=f"A curve over updates ({', '.join(CURVES)}) or by layer ({', '.join(BY_LAYER)})."),
    ] = "loss",
    out: Annotated[Path, typer.Option("--out", "-o", help="The files to write, without suffix.")] = Path("figure"),
) -> None:
    """Draw curves of a grid's cells as OUT.svg and OUT.png.

    Example: [bold]gpas figure quickstart --where norm=pre --what activation_variance[/bold]
    """
    if what not in (*CURVES, *BY_LAYER):
        raise GpasError(f"unknown curve '{what}'; {nearest(what, (*CURVES, *BY_LAYER))}")
    from gpas_cli.report.figure import save

    written = save(_make(entries(names, where), what), out)
    console().print(f"Wrote {' and '.join(str(path) for path in written)}.")


def _make(chosen: Sequence[Entry], what: str) -> Figure:
    from gpas_cli.launch.ingest import ingest
    from gpas_cli.report import figure as figures
    from gpas_cli.report import query
    from gpas_cli.store.session import connect

    if problem := ingest(project()):
        console().print(problem, style="yellow", markup=False)
    engine = connect(project().database, create=False)
    if what in BY_LAYER:
        title, log = BY_LAYER[what]
        return figures.by_layer(_read(chosen, lambda key: query.layer_curve(engine, key, what)), title, log)
    return figures.over_updates(_read(chosen, lambda key: query.curve(engine, key, what)), what)


def _read(chosen: Sequence[Entry], read: Any) -> dict[str, Any]:
    """Cell name -> the curve of whichever of its stages recorded one."""
    found = {entry.name: [curve for stage in entry.cell.stages if (curve := read(stage.key))] for entry in chosen}
    return {name: curves[-1] for name, curves in found.items() if curves}
