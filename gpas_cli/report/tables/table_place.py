"""Find a cell of a table by its words, `table2[pre+gpas,71m]`; the command for cells without a number."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from gpas_cli.errors import UnknownCell, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, spelled
from gpas_cli.grid.select import run_command
from gpas_cli.report.labels import RowKey, label_title, scheme_titles
from gpas_cli.report.tables.table import Row, Table, TableCell
from gpas_cli.spec.extensions import column_title, measured_columns
from gpas_cli.spec.stage import Metric
from gpas_cli.state.status import RETRIED
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped, listed

_NAMED = 12  # rows or columns in one message
_NAME = re.compile(r"([^\[\]\s]+)\s*\[([^\[\]]*)\]")
# The command that a cell without a number needs, by its state; `run` in any other, none while it is queued or running.
_COMMANDS = {
    **dict.fromkeys(RETRIED, "retry"),
    "unrecorded": "retry --done",
    "not finite": "retry --done",
    "unsynced": "db sync",
    "queued": "",
    "running": "",
}
_MOST_RETRIED = 6  # cells in one command, which else names their grids


class PlaceName(Frozen):
    """The words that name a cell of a table, in lower case; the last part may be the column.

    grid: the name of the grid, or of a paper's table.
    """

    text: str
    grid: str
    parts: tuple[str, ...]


class Place(Frozen):
    """One cell of a table, with its row and the index of its column."""

    table: Table
    row: Row
    column: int

    @property
    def cell(self) -> TableCell:
        return self.row.cells[self.column]

    @property
    def metric(self) -> Metric:
        """The metric of its column."""
        return self.table.columns[self.column].metric

    @property
    def base(self) -> Place | None:
        """The place in the same column that differences refer to; None for a base."""
        rows = [row for row in self.table.rows if self.row.base is not None and row.key == self.row.base]
        return Place(self.table, rows[0], self.column) if rows else None

    @property
    def row_labels(self) -> dict[str, Label | None]:
        """The labels on the axes of the rows."""
        return dict(zip(self.table.spec.rows, self.row.key, strict=True))

    @property
    def column_labels(self) -> dict[str, Label]:
        """The label on the axis of the columns."""
        return {self.table.spec.columns: self.table.columns[self.column].label}

    def same_in(self, other: Table) -> Place:
        """Return the place with the same labels in another table of the same cells."""
        label = self.table.columns[self.column].label
        row = next(row for row in other.rows if row.key == self.row.key)
        return Place(other, row, next(i for i, column in enumerate(other.columns) if column.label == label))

    @property
    def words(self) -> str:
        """The words that name this cell, without the grid: "pre+gpas,71m"."""
        return f"{_row_words(self.row)},{spelled(self.table.columns[self.column].label)}"


def place_name(text: str) -> PlaceName | None:
    """Return the parsed name of a table cell, GRID[ROW,COLUMN] or gpas:2[ROW,COLUMN]; None for any other text."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        return None
    return PlaceName(
        text.strip(), match[1], tuple(part.strip().lower() for part in match[2].split(",") if part.strip())
    )


def find_place(table: Table, name: PlaceName) -> Place:
    """Return the cell of `table` that `name` names.

    A row is named by labels or titles of its axes, joined by + or commas, in any order; labels "none" may be left out.
    A title that the table gives it names it, too. The column may be left out if there is only one. Raises UnknownCell
    with the nearest choices.
    """
    column, parts = _column(table, name)
    words = [word.strip() for part in parts for word in part.split("+") if word.strip()]
    row = _row(table, name, words)
    if not row.cells[column].statuses:
        filled = [_column_words(table, i) for i, cell in enumerate(row.cells) if cell.statuses]
        where = f"; {_row_words(row)} is in {listed(filled, _NAMED)}" if filled else ""
        raise UnknownCell(f"{name.text}: the grid has no such cell{where}")
    return Place(table, row, column)


def _row_words(row: Row) -> str:
    """Return the words that name a row: its labels without "none", "none" if all are."""
    return "+".join(spelled(label) for label in row.key if label not in (None, "none")) or "none"


def _column_words(table: Table, index: int) -> str:
    """Return the word that names a column."""
    return spelled(table.columns[index].label)


def _column(table: Table, name: PlaceName) -> tuple[int, tuple[str, ...]]:
    """Return the column that the last part names, and the parts that name the row."""
    words: list[set[str]] = []
    for column in table.columns:
        named = {spelled(column.label), column.title, f"{table.spec.columns}={spelled(column.label)}"}
        measured_on = {column_title(str(column.label))} if table.spec.columns in measured_columns() else set()
        words.append({each.lower() for each in named | measured_on})
    if name.parts:
        found = [i for i, known in enumerate(words) if name.parts[-1] in known]
        if len(found) == 1:
            return found[0], name.parts[:-1]
    if len(words) == 1:
        return 0, name.parts
    known = [_column_words(table, i) for i in range(len(words))]
    if len(name.parts) < 2:
        raise UnknownCell(f"{name.text}: name the column after a comma: {listed(known, _NAMED)}")
    raise UnknownCell(f"{name.text}: no column '{name.parts[-1]}'; {nearest(name.parts[-1], known)}")


def _row(table: Table, name: PlaceName, words: Sequence[str]) -> Row:
    # A title that the table gives a row names it, with or without its band's.
    titled = []
    for row in table.rows if table.printed or table.spec.lines else ():
        own = _split(row.title)
        titled += [row] if list(words) in (own, [*_split(row.section), *own]) else []
    if len(titled) == 1:
        return titled[0]
    labels = {row.key: _labels_of(table, row) for row in table.rows}
    titles = scheme_titles([status.entry for row in table.rows for cell in row.cells for status in cell.statuses])
    names: dict[RowKey, list[set[str]]] = {key: [] for key in labels}
    for key, own_labels in labels.items():
        for axis, label in own_labels.items():
            word = "none" if label is None else spelled(label)
            each = (word, f"{axis}={word}", label_title(axis, label, titles))
            names[key].append({one.lower() for one in each if one})
    every = [label for own in labels.values() for label in own.values()]
    known = list(dict.fromkeys(spelled(label) for label in every if label is not None))
    for word in words:
        if not any(word in of for own in names.values() for of in own):
            raise UnknownCell(f"{name.text}: no row has '{word}'; {nearest(word, known)}")
    rest = {key: _unnamed(list(own.values()), names[key], words) for key, own in labels.items()}
    matching = [row for row in table.rows if rest[row.key] is not None]
    exact = [row for row in matching if all(label in (None, "none") for label in rest[row.key] or ())]
    chosen = exact or matching
    if len(chosen) == 1:
        return chosen[0]
    what = f"matches {len(chosen)} rows" if chosen else "matches no row"
    rows = [_row_words(row) for row in chosen or table.rows]
    raise UnknownCell(f"{name.text}: '{'+'.join(words)}' {what}; name one of {listed(rows, _NAMED)}")


def _split(title: str) -> list[str]:
    return [word.strip().lower() for word in re.split("[+,]", title) if word.strip()]


def _labels_of(table: Table, row: Row) -> dict[str, Label | None]:
    """Return the labels of a row by axis; in a paper's table, those by which it is listed, if it has a cell of ours."""
    if not row.line:
        return dict(zip(table.spec.rows, row.key, strict=True))
    axes = {axis: (None,) for other in table.rows if other.line for axis in other.line.labels}
    own = {**axes, **row.line.labels} if any(cell.statuses for cell in row.cells) else {}
    return {axis: several[0] for axis, several in own.items()}


def _unnamed(
    labels: Sequence[Label | None], names: Sequence[set[str]], words: Sequence[str]
) -> list[Label | None] | None:
    """Return the labels of a row that no word names, None if a word names none of them."""
    left = list(range(len(labels)))
    for word in words:
        found = next((axis for axis in left if word in names[axis]), None)
        if found is None:
            return None
        left.remove(found)
    return [labels[axis] for axis in left]


def remedy(missing: Iterable[tuple[str, Entry]], entries: Sequence[Entry]) -> str:
    """Return the first command that brings numbers of cells in these states, "" if none is to be called.

    `entries` are all cells of their grids.
    """
    by_command = grouped((_COMMANDS.get(state, "run"), entry) for state, entry in missing)
    name = next((name for name in ("run", "retry", "retry --done", "db sync") if name in by_command), "")
    cells = list({entry.key: entry for entry in by_command.get(name, ())}.values())
    if name == "run":
        return run_command(cells, entries)
    names = [cell.id for cell in cells] if name != "db sync" else []
    if name == "retry" and len(cells) > _MOST_RETRIED:
        names = list(dict.fromkeys(cell.grid for cell in cells))
    return shlex.join(["gpas", *name.split(), *names]) if name else ""
