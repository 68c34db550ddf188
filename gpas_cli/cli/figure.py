"""`gpas figure`: curves of a grid as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import AsJson, Names, Where, complete_from, console, entries, print_json, project
from gpas_cli.errors import GpasError, nearest

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.figure import Figure

# By layer: what -> (words for the axis, logarithmic)
MATRICES = {
    "q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "ffn_gate": "W_gate", "ffn_up": "W_up", "ffn_down": "W_down",
    "norms": "the norms",
}  # fmt: skip
BY_LAYER = {
    "gate": ("gate value act(alpha)", False),
    "activation_variance": ("activation variance", True),
    "grad_norm": ("gradient norm", True),
    "weight_norm": ("weight norm", False),
    **{f"weight_norm_{part}": (f"weight norm of {words}", False) for part, words in MATRICES.items()},
    "importance": ("rise of the loss without the layer", False),
}
# Over updates: what -> the curve in the database; the total gradient norm has the name of the layers' there.
SAME = ("loss", "eval_loss", "eval_perplexity", "eval_bits_per_byte", "lr")
SPEED = ("tokens_per_second", "seconds_per_step", "flops_per_second", "mfu", "memory")
CURVES = {name: name for name in (*SAME, *SPEED)} | {"total_grad_norm": "grad_norm"}
# Over updates as well: the norms of what is no layer.
PARTS = tuple(f"{norm}_{part}" for norm in ("weight_norm", "grad_norm") for part in ("embedding", "final_norm", "head"))
SPIKES = {"loss": "spike_loss", "total_grad_norm": "spike_grad_norm"}
KNOWN = (*CURVES, *PARTS, *BY_LAYER)
WHAT = f"A curve over updates ({', '.join((*CURVES, *PARTS))}) or by layer ({', '.join(BY_LAYER)})."


def figure(
    names: Names = None,
    where: Where = None,
    what: Annotated[str, typer.Option("--what", help=WHAT, autocompletion=complete_from(KNOWN))] = "loss",
    out: Annotated[Path, typer.Option("--out", "-o", help="The files to write, without suffix.")] = Path("figure"),
    as_json: AsJson = False,
) -> None:
    """Draw curves of a grid's cells as OUT.svg and OUT.png. Triangles mark spikes of the loss and the gradient norm.

    Example: [bold]gpas figure quickstart --where norm=pre --what activation_variance[/bold]
    """
    if what not in KNOWN:
        raise GpasError(f"unknown curve '{what}'; {nearest(what, KNOWN)}")
    from gpas_cli.report.figure import save

    chosen = entries(names, where)
    written = save(_make(chosen, what), out)
    console().print(f"Wrote {' and '.join(str(path) for path in written)}.", markup=False)
    if as_json:
        print_json(what=what, cells=[entry.id for entry in chosen], files=[str(path) for path in written])


def _make(chosen: Sequence[Entry], what: str) -> Figure:
    from gpas_cli.launch.ingest import results_of

    with results_of(project()) as (engine, problem):
        if problem:
            console().print(problem, style="yellow", markup=False)
        return _draw(engine, chosen, what)


def _draw(engine: Engine, chosen: Sequence[Entry], what: str) -> Figure:
    from gpas_cli.report import figure as figures
    from gpas_cli.report import query

    if what in BY_LAYER:
        title, log = BY_LAYER[what]
        return figures.by_layer(_read(chosen, lambda key: query.layer_curve(engine, key, what)), title, log)
    if what in PARTS:
        parts = _read(chosen, lambda key: [(step, at[0]) for step, at in query.layer_curve(engine, key, what)])
        return figures.over_updates(parts, what)
    marks = _read(chosen, lambda key: query.curve(engine, key, SPIKES[what])) if what in SPIKES else {}
    return figures.over_updates(_read(chosen, lambda key: query.curve(engine, key, CURVES[what])), what, marks)


def _read(chosen: Sequence[Entry], read: Any) -> dict[str, Any]:
    """Cell name -> the curve of whichever of its stages recorded one."""
    found = {entry.name: [curve for stage in entry.cell.stages if (curve := read(stage.key))] for entry in chosen}
    return {name: curves[-1] for name, curves in found.items() if curves}
