"""The cells of a table that have entries, and how notes name them."""

from __future__ import annotations

from collections.abc import Iterator

from gpas_cli.report.tables.table import Row, Table, TableCell


def shown_cells(table: Table) -> Iterator[tuple[Row, int, TableCell]]:
    """Yield row, index of the column and cell for every cell that the grid has."""
    return ((row, i, cell) for row in table.rows for i, cell in enumerate(row.cells) if cell.statuses)


def full_title(row: Row) -> str:
    """Return the row's title with what it has in common with its base: "Pre-LN + GPAS"."""
    return row.full or row.title


def place(table: Table, row: Row, column: int) -> str:
    """Return the titles of a cell's row and column: "Pre-LN + GPAS 71m"."""
    return f"{full_title(row)} {table.columns[column].title}"
