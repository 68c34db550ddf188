"""`gpas bench`: measure how fast cells train on this machine."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gpas_cli.cli.console import print_json, say, working
from gpas_cli.cli.options import AsJson, Names, Where
from gpas_cli.cli.selection import entries, project
from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.schedule.local.benchmark import Bench
from gpas_cli.schedule.local.benchmark import bench as measure
from gpas_cli.structure import Document, DocumentJson, Time
from gpas_cli.words import byte_size


class _ShapeJson(Document):
    """Cells of one shape, and the measurement of one of them."""

    cells: int
    seconds_per_step: float
    tokens_per_second: Annotated[float, "of the process that was measured, without padding"]
    flops_per_second: Annotated[float, "of the process that was measured"]
    peak_memory: Annotated[float, "bytes"]
    steps: Annotated[int, "updates that were measured"]
    micro_batch: Annotated[int, "rows at once"]
    gemm: Annotated[str, "how float32 matrix products were computed"]
    device: str
    positions_per_second: Annotated[float, "of all processes, with padding, without communication"]
    processes: Annotated[int, "of the job; one of them was measured"]
    shape: Sequence[Any]
    host: str
    time: Time
    cell: str


class MeasuredJson(DocumentJson):
    """`gpas bench --json`."""

    shapes: Sequence[_ShapeJson]


def bench(
    names: Names = None,
    where: Where = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds to measure each shape.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure the speed and memory of a grid's cells.

    Measures one cell of each shape (size, rows, batch, precision) on one slot with synthetic text, and trains nothing;
    `gpas plan` bases its estimates on the result. For a cell that asks for several GPUs, one process is
    measured with its share of the rows, without communication.

    Example: [bold]gpas bench table2 --where size=71m --seconds 30[/bold]
    """
    found = []
    with working("measuring") as show:
        for one in measure(project(), entries(names, where), seconds, notify=show):
            found.append(one)
    if as_json:
        shapes = [_ShapeJson(cells=one.cells, **one.facts) for one in found]  # a record of the cache
        print_json(MeasuredJson(shapes=shapes))
    else:
        say(render(found))


def render(found: list[Bench]) -> Columns:
    """Return a table with a row per shape."""
    rows: list[dict[str, Cell]] = [
        {
            "measured on": one.job.id, "cells like it": str(one.cells),
            "ms/update": f"{1e3 * one.facts['seconds_per_step']:,.1f}",
            "tokens/s": f"{one.facts['tokens_per_second']:,.0f}", "peak memory": byte_size(one.facts["peak_memory"]),
            "rows at once": str(one.facts["micro_batch"]), "GFLOP/s": f"{one.facts['flops_per_second'] / 1e9:,.1f}",
        }
        for one in found
    ]  # fmt: skip
    return Columns.of(rows)
