"""The updates that trainings have in common: those at the constant rate, before the first of them decays.

    steps 400, decay 100   |--------------- constant ---------------|-- decay --|
    steps 800, decay 200   |--------------- constant ---------------|----------- constant -----------|-- decay --|
                                                                   300                              600

A trunk is the training at the constant rate until one of these updates, an ordinary cell with its own key: the first
300 updates of both are, bit for bit, those of `trunk(cell, 300)`. docs/explanation/trunks.md explains what follows.
"""

from dataclasses import replace

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import ENDLESS
from gpas_cli.spec.optim import Optim

_LONGEST = 100_000_000  # updates


def trunk(cell: Cell, updates: int) -> Cell:
    """Return the cell that trains only the first `updates` of `cell`, which are at most its `stable_updates`."""
    horizon = (cell.optim.horizon or cell.optim.steps) if _reads_a_part(cell) else 0
    optim = replace(
        cell.optim, schedule="constant", schedule_settings=None, min_ratio=Optim.min_ratio, steps=updates, stop=0,
        horizon=0 if horizon == updates else horizon,
    )  # fmt: skip
    return replace(cell, optim=optim, later=())


def family(cell: Cell) -> Cell:
    """Return what trainings that share their first updates have in common."""
    return trunk(cell, _LONGEST)


def unshared(cell: Cell) -> str:
    """Return why no training of another length has the first updates of `cell`, "" if one may."""
    optim = cell.optim
    if not optim.stable_updates:
        return f"optim.schedule: {optim.schedule} depends on the length from the start; constant and wsd do not"
    if not cell.depth.is_full:
        return f"depth: {cell.depth.kind} has stages that depend on the length"
    if cell.teacher():
        return "it starts from another training"
    return ""


def _reads_a_part(cell: Cell) -> bool:
    return any(part.source in ENDLESS for part in cell.data.parts)
