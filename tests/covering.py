"""Of many cells those that meet every choice, so that a test trains few of them."""

from collections.abc import Iterable
from itertools import combinations

from gpas_cli.grid.declared import Entry
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse import flat

# Rates and starts of numbers change what is computed, not which code computes it.
NUMBERS = ("seed", "optim.lr", "optim.weight_decay", "init.std", "init.embed_std", "size.hidden", "size.ffn")


def choices(cell: Cell) -> set[str]:
    """Return the settings of a cell, and each two of the choices that decide which code runs."""
    settings = [pair for pair in flat(cell.to_mapping()).items() if pair[0] not in NUMBERS]
    kinds = (
        f"norm {cell.model.scheme}", f"gate {cell.model.gate and (cell.model.gate.activation, cell.model.gate.site)}",
        f"embed {cell.model.embed}", f"family {cell.model.family}", f"objective {cell.objective.kind}",
        f"depth {cell.depth.kind}", f"optimizer {cell.optim.optimizer}", f"precision {cell.precision}",
        f"stages {[stage.kind for stage in cell.stages]}",
    )  # fmt: skip
    return {str(one) for one in (*settings, *combinations(kinds, 2))}


def covering(entries: Iterable[Entry], met: set[str]) -> list[Entry]:
    """Return the entries that each have a choice which neither `met` nor an earlier one has; add these to `met`."""
    found = []
    for entry in entries:
        if new := choices(entry.cell) - met:
            met |= new
            found.append(entry)
    return found
