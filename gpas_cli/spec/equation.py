"""The equation of every layer as text, from the wiring alone: what `gpas explain` prints. No torch."""

from __future__ import annotations

from itertools import groupby

from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Norm, Wiring


def equation(model: Model, layer: int) -> str:
    """The update of one sub-layer of layer `layer` = 1..layers, e.g. "N(2.21 G(x) + f(x))" for DeepNorm with GPAS."""
    wiring, gated = model.wiring(layer), model.gate_slot(layer)

    def gate(slot: str, text: str) -> str:
        if slot != gated:
            return text
        return f"G({text})" if not text.startswith("(") else f"G{text}"

    entry = gate("entry", "x")
    inside = gate("in", _norm(wiring.in_norm, entry))
    branch = gate("branch", _norm(wiring.branch_norm, f"f({inside})"))
    skip = gate("skip", entry)
    scaled = skip if wiring.skip == 1 else f"{wiring.skip:.4g} {skip}"
    total = gate("sum", f"{scaled} + {branch}")
    return gate("out", _norm(wiring.out_norm, total))


def _norm(norm: Norm | None, text: str) -> str:
    if norm is None:
        return text
    factor = "" if norm.scale == 1 else f"{norm.scale:.4g} "
    return f"{factor}N({text})"


def equations(model: Model) -> list[tuple[int, int, str]]:
    """Runs of consecutive layers with one equation: (first, last, equation), layers counted from 1."""
    layers = range(1, model.size.layers + 1)
    runs = []
    for text, group in groupby(layers, key=lambda layer: equation(model, layer)):
        members = list(group)
        runs.append((members[0], members[-1], text))
    return runs


def norm_starts(wiring: Wiring) -> str:
    """How the norm weights of a layer start, where it is not 1."""
    norms = (wiring.in_norm, wiring.branch_norm, wiring.out_norm)
    starts = {norm.init for norm in norms if norm is not None and norm.init != 1}
    return ", ".join(f"norm weights start at {start:.4g}" for start in sorted(starts))
