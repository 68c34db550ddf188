"""`gpas bench`: measure how fast cells train on this machine."""

from collections.abc import Mapping, Sequence
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
    roofline: Annotated[Mapping[str, Any] | None, "with --profile: an update by kind of kernel, and its bounds"] = None


class MeasuredJson(DocumentJson):
    """`gpas bench --json`."""

    shapes: Sequence[_ShapeJson]


def bench(
    names: Names = None,
    where: Where = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds to measure each shape.")] = 20,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also profile updates: their time by kind of kernel, and its bound.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the speed and memory of a grid's cells.

    Measures one cell of each shape (size, rows, batch, precision) on one slot with synthetic text, and trains nothing;
    `gpas plan` bases its estimates on the result. For a cell that asks for several GPUs, one process is
    measured with its share of the rows, without communication.

    With --profile, it also prints where the time of an update goes, the least time that the device needs for each part
    (as measured with a large product of matrices and a copy), and the MFU that the update would have if that part took
    its least time.

    Example: gpas bench table2 --where size=71m --seconds 30
    """
    found = []
    with working("measuring") as show:
        for one in measure(project(), entries(names, where), seconds, profile=profile, notify=show):
            found.append(one)
    if as_json:
        shapes = [_ShapeJson(cells=one.cells, **one.facts) for one in found]  # a record of the cache
        print_json(MeasuredJson(shapes=shapes))
    else:
        say(render(found))
        for one in found if profile else ():
            say(f"\n{one.job.id}, an update of {1e3 * one.facts['roofline']['seconds']:,.1f} ms:")
            say(_kinds(one.facts["roofline"]))


def _kinds(found: Mapping[str, Any]) -> Columns:
    """Return a table with a row per kind of kernel."""
    whole = {"name": "all", "seconds": found["seconds"], "mfu": found["bound_mfu"]}
    bounds = [kind["bound_seconds"] for kind in found["kinds"] if kind["bound_seconds"] is not None]
    rows: list[dict[str, Cell]] = [
        {
            "kind": kind["name"], "ms": f"{1e3 * kind['seconds']:,.2f}",
            "share": f"{100 * kind['seconds'] / found['seconds']:.1f} %",
            "at least, ms": "" if kind.get("bound_seconds") is None else f"{1e3 * kind['bound_seconds']:,.2f}",
            "then MFU": f"{kind['mfu']:.1f} %",
        }
        for kind in [*found["kinds"], {**whole, "bound_seconds": sum(bounds)}]
    ]  # fmt: skip
    say(f"MFU {found['mfu']:.1f} %; this device reaches {found['reach']['flops'] / 1e12:.3g} TFLOP/s and "
        f"{found['reach']['bytes'] / 1e9:.3g} GB/s")  # fmt: skip
    return Columns.of(rows)


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
