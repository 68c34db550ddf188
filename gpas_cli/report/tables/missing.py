"""The cells of a table that have no number, and the commands that fill them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.shown import full_title
from gpas_cli.report.tables.table import Table

if TYPE_CHECKING:
    from gpas_cli.grid import Entry

RETRIED = ("failed", "cancelled", "unknown")  # states that `gpas run` leaves to `gpas retry`
NOT_RUN = ("unsynced", "unrecorded", "not finite")  # states of cells that have run


@dataclass(frozen=True)
class Hole:
    """A cell of a table in which some runs have no number. Diverged runs are results, and no holes."""

    row: str
    column: str
    runs: tuple[EntryStatus, ...]


def holes(table: Table) -> list[Hole]:
    """Return the cells without all of their numbers, in the order of the table."""
    found = []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            missing = tuple(s for s in cell.runs if s.value is None and s.state != "diverged")
            if missing:
                title = f"{row.section}, {row.title}" if row.section else full_title(row)
                found.append(Hole(title, column.title, missing))
    return found


def to_run(found: Iterable[Hole], states: Sequence[str] | None = None) -> list[Entry]:
    """Return the entries of the holes that `gpas run` runs, each cell once; with `states`, those in one of them."""
    runs = [run for hole in found for run in hole.runs]
    wanted = [run for run in runs if (run.state in states if states else run.state not in (*RETRIED, *NOT_RUN))]
    return list({run.entry.key: run.entry for run in wanted}.values())
