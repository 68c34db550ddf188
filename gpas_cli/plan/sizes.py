"""The cost of a plan by size of network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from gpas_cli.grid.entry import Entry
from gpas_cli.plan.estimate import Work
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.model import SIZES, Size
from gpas_cli.words import count

Names = Mapping[Size, str]  # of sizes that are not built in
_Group = tuple[object, ...]


@dataclass(frozen=True)
class SizeCost:
    """The cells of one size, batch, length and number of updates."""

    size: str
    cells: int
    jobs: int
    parameters: int
    precision: str
    batch: Annotated[int, "rows per update"]
    length: Annotated[int, "tokens per row"]
    updates: int
    tokens: Annotated[int, "tokens that a cell trains on"]
    devices: Annotated[int, "GPUs or cores of a job"]
    hours: Annotated[float, "of the longest job"]
    gpu_hours: float
    core_hours: float


def size_names(entries: Iterable[Entry]) -> dict[Size, str]:
    """Return the labels of sizes that are not built in, by size: those that belong to one size of these cells alone."""
    labels = {entry.cell.model.size: str(entry.axes["size"]) for entry in entries if "size" in entry.axes}
    uses = Counter(labels.values())
    return {size: name for size, name in labels.items() if uses[name] == 1 and name not in SIZES}


def size_label(cell: Cell, names: Names) -> str:
    """Return the name of the cell's size, built in or one of `names`, or "4 layers, 32 wide" if it has none."""
    size = cell.model.size
    built_in = next((name for name, known in SIZES.items() if known == size), "")
    return built_in or names.get(size, f"{count(size.layers, 'layer')}, {size.hidden} wide")


def by_size(cells: Iterable[Cell], works: Sequence[Work], names: Names) -> list[SizeCost]:
    """Return the cost of each group of equally expensive cells, in the order of the cells.

    Teachers add jobs, but no cells.
    """
    cells = list(cells)
    every = distinct([*cells, *(work.job.cell for work in works)])
    groups = {cell.seedless: _group(cell, names) for cell in every}
    first = {groups[cell.seedless]: cell for cell in reversed(every)}
    numbers = Counter(groups[cell.seedless] for cell in cells)
    mine: dict[_Group, list[Work]] = {group: [] for group in numbers}
    for work in works:
        mine.setdefault(groups[work.job.cell.seedless], []).append(work)
    return [_cost(first[group], numbers[group], found, names) for group, found in mine.items()]


def _group(cell: Cell, names: Names) -> _Group:
    recipe = (cell.precision, cell.optim.batch, cell.data.length, cell.optim.updates)
    return (size_label(cell, names), parameters(cell), *recipe)


def _cost(cell: Cell, cells: int, works: Sequence[Work], names: Names) -> SizeCost:
    return SizeCost(
        size=size_label(cell, names),
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
