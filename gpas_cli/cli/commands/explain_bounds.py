"""`gpas explain --bounds`: the papers' theory for a cell, as tables and as plain data. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.cli.console import console
from gpas_cli.cli.selection import project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.working import working
from gpas_cli.errors import GpasError
from gpas_cli.spec.cell import Cell
from gpas_cli.store.rundir import checkpoints_of

if TYPE_CHECKING:
    from gpas_cli.evaluate.theory import LayerBounds, Preserved, Theory


def theory_of(cell: Cell, *, force: bool = False) -> Theory:
    """Return the bounds of a cell and how much of the gradient its gates preserve.

    Raises GpasError without torch, without enough memory and, unless `force`, when it would take minutes.
    """
    try:
        from gpas_cli.evaluate.theory import examine
    except ImportError as error:
        raise GpasError(f"--bounds needs torch, which cannot be imported: {error}") from error
    here = project()
    with working("computing the bounds") as show:
        return examine(cell, here.cache, here.config.parent, _checkpoints(cell), force=force, notify=show)


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


def _checkpoints(cell: Cell) -> list[Path]:
    """Return the cell's checkpoints, the one with the most updates first, then those that its gates are copied from."""

    teacher = cell.teacher()
    keys = [cell.stages[0].key, *([teacher.stages[0].key] if teacher else [])]
    return [path for key in keys for path in checkpoints_of(project().runs, key)]


def as_mapping(theory: Theory) -> dict[str, Any]:
    """Return the fields of `Theory` and the products of equation (7), for `--json`."""
    layers = [{**asdict(layer), "bound": layer.bound} for layer in theory.layers]
    totals = {"log10_bound": theory.log10_bound, "log10_gradient_ratio": theory.log10_gradient_ratio}
    return {**asdict(theory), "layers": layers, **totals}


def print_theory(theory: Theory) -> None:
    """Print the tables with an explanation of each."""
    say = console().print
    say(f"  Bounds at initialisation (Spike No More), {theory.length} tokens, {theory.sample}; float64")
    say(_bounds_table(theory.layers))
    say(
        f"  gradient at layer 1 over gradient after the last: 10^{theory.log10_gradient_ratio:.2f}, "
        f"bounded by 10^{theory.log10_bound:.2f}, the product of all bounds (equation 7)"
    )
    if not all(layer.equation for layer in theory.layers):
        say("  * not the paper's x + f(N(x)): the bound is derived for this layer's equation in the same way")
    if theory.preserved:
        _print_preserved(theory)


def _print_preserved(theory: Theory) -> None:
    say = console().print
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
