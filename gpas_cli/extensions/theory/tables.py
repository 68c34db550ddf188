"""The papers' theory for a cell as tables and sentences: `gpas theory bounds` and `gpas theory depth`."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from gpas_cli.cli.console import say
from gpas_cli.cli.views.columns import Columns
from gpas_cli.spec.cell import Cell

if TYPE_CHECKING:  # torch
    from gpas_cli.extensions.theory.depth_bounds import DepthBound, StageGap
    from gpas_cli.extensions.theory.initialisation import LayerBounds, Preserved, Theory


def print_theory(theory: Theory) -> None:
    """Print the tables with an explanation of each."""
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
    return Columns(heads, rows, right=frozenset(heads))


def _preserved_table(rows: tuple[Preserved, ...]) -> Columns:
    lines = []
    for row in rows:
        predicted = "-" if row.predicted is None else f"{row.predicted:.6g}"
        name = "final norm" if row is rows[-1] else str(row.layer)
        lines.append([name, predicted, f"{row.measured:.6g}", "" if row.error is None else f"{row.error:.1e}"])
    heads = ("entering layer", "product of 1 - act(alpha)", "by autograd", "difference")
    return Columns(heads, lines, right=frozenset(heads))
