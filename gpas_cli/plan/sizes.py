"""The cost of a plan by size of network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpas_cli.plan.estimate import Work
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.flops import parameters
from gpas_cli.spec.size import SIZES

_Group = tuple[object, ...]


@dataclass(frozen=True)
class SizeCost:
    """The cells with the same size, precision, batch, length and number of updates, and their remaining jobs.

    `batch`: in rows of `length` tokens. `tokens`: those that a cell trains on, including padding. `devices`: GPUs or
    cores of a job. `hours`: of the longest job. `gpu_hours` and `core_hours`: of all jobs.
    """

    size: str
    cells: int
    jobs: int
    parameters: int
    precision: str
    batch: int
    length: int
    updates: int
    tokens: int
    devices: int
    hours: float
    gpu_hours: float
    core_hours: float


def size_label(cell: Cell) -> str:
    """Return the name of the cell's size, or "LAYERS x WIDTH" for any other size."""
    size = cell.model.size
    return next((name for name, known in SIZES.items() if known == size), f"{size.layers} x {size.hidden}")


def by_size(cells: Iterable[Cell], works: Sequence[Work]) -> list[SizeCost]:
    """Return the cost of each group of equally expensive cells, in the order of the cells.

    Teachers add jobs, but no cells.
    """
    cells = list(cells)
    every = distinct([*cells, *(work.job.cell for work in works)])
    groups = {cell.seedless: _group(cell) for cell in every}
    first = {groups[cell.seedless]: cell for cell in reversed(every)}
    numbers = Counter(groups[cell.seedless] for cell in cells)
    mine: dict[_Group, list[Work]] = {group: [] for group in numbers}
    for work in works:
        mine.setdefault(groups[work.job.cell.seedless], []).append(work)
    return [_cost(first[group], numbers[group], found) for group, found in mine.items()]


def _group(cell: Cell) -> _Group:
    recipe = (cell.precision, cell.optim.batch, cell.data.length, cell.optim.updates)
    return (size_label(cell), parameters(cell), *recipe)


def _cost(cell: Cell, cells: int, works: Sequence[Work]) -> SizeCost:
    return SizeCost(
        size=size_label(cell),
        cells=cells,
        jobs=len(works),
        parameters=parameters(cell),
        precision=cell.precision,
        batch=cell.optim.batch,
        length=cell.data.length,
        updates=cell.optim.updates,
        tokens=cell.optim.trained_rows * cell.data.length,
        devices=max((work.devices for work in works), default=0),
        hours=max((work.hours for work in works), default=0.0),
        gpu_hours=sum(work.hours * work.devices for work in works if work.device == "cuda"),
        core_hours=sum(work.hours * work.devices for work in works if work.device == "cpu"),
    )
