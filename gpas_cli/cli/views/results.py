"""The results so far of a running grid, as `gpas table` shows them, without the notes below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpas_cli.cli.selection import experiments
from gpas_cli.errors import GpasError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpas_cli.grid.entry import Entry
    from gpas_cli.project import Project

MOST_CELLS = 200  # a larger table does not fit a screen and takes longer to compute


def results_so_far(project: Project, entries: Sequence[Entry]) -> RenderableType | None:
    """Return the current table of the entries' grid, None if it cannot be computed.

    None also for several grids, for more than MOST_CELLS cells, and for a grid that is no longer declared. The caller
    runs jobs: a database that is locked or full for a moment must not end them.
    """
    names = {entry.grid for entry in entries}
    grid = experiments().grids.get(names.pop()) if len(names) == 1 else None
    if grid is None or len(entries) > MOST_CELLS:
        return None
    from sqlalchemy.exc import SQLAlchemyError

    from gpas_cli.report.recorded import recorded
    from gpas_cli.report.tables.cell_text import sheet
    from gpas_cli.report.tables.table import build
    from gpas_cli.report.tables.terminal import Drawn

    spec = replace(grid.table_spec, published={})
    try:
        with recorded(project, entries, database=False) as known:
            table = build(entries, known.states, known.results, spec)
    except (GpasError, SQLAlchemyError, OSError):
        return None
    return Drawn(replace(sheet(table), notes=()))
