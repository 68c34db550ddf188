"""Rules across grids: includes end, and conditions and tables name axes and labels that exist."""

from collections.abc import Mapping, Sequence

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.declared import Grid, Include
from gpas_cli.grid.document import Mark
from gpas_cli.grid.read import AxisLabels, check_choice, known_labels, with_axes
from gpas_cli.grid.readers import Part
from gpas_cli.grid.settings import children
from gpas_cli.spec.stage import MEASURED_COLUMNS

_MAX_CELLS = 100_000
_MAX_INCLUDE_DEPTH = 50


def valid_grids(declared: Mapping[str, Grid | None], problems: list[Problem]) -> dict[str, Grid]:
    """Return the grids without cyclic includes, unknown labels in conditions, or too many cells.

    `declared` has None for a grid that could not be read. Adds the faults of all others to `problems`, also the faults
    of tables, which leave a grid's cells as they are.
    """
    grids = {name: grid for name, grid in declared.items() if grid and _includes_known(grid, declared, problems)}
    kept: dict[str, Grid] = {}
    for name, grid in grids.items():
        message = _include_fault(grids, (name,), set())
        if message:
            problems.append(Problem(("grids", name, "include"), message, str(grid.include[0].mark)))
        elif _small_enough(grids, grid, problems) and _includes_exist(grids, grid, problems):
            kept[name] = grid
            if grid.table is not None:
                _check_table(grid, labels_of(grids, grid), problems)
    # A grid that includes a removed grid is removed, too; the reason has been reported above.
    while missing := [g.name for g in kept.values() if any(i.grid not in kept for i in g.include)]:
        kept = {name: grid for name, grid in kept.items() if name not in missing}
    return kept


def _includes_known(grid: Grid, declared: Mapping[str, Grid | None], problems: list[Problem]) -> bool:
    known = True
    for include in grid.include:
        if include.grid not in declared:
            message = f"no grid '{include.grid}'; {nearest(include.grid, declared)}"
            problems.append(Problem(("grids", grid.name, "include"), message, str(include.mark)))
        known = known and declared.get(include.grid) is not None
    return known


def _include_fault(grids: Mapping[str, Grid], trail: tuple[str, ...], finished: set[str]) -> str:
    """Return what is wrong with the includes from the end of `trail` on, a cycle or too many levels, or ""."""
    if len(trail) > _MAX_INCLUDE_DEPTH:
        return f"the includes are nested more than {_MAX_INCLUDE_DEPTH} grids deep"
    for include in grids[trail[-1]].include:
        if include.grid in trail:
            return f"the includes form a cycle: {' -> '.join([*trail, include.grid])}"
        reached = include.grid in grids and include.grid not in finished
        if reached and (fault := _include_fault(grids, (*trail, include.grid), finished)):
            return fault
    finished.add(trail[-1])
    return ""


def _reached(grids: Mapping[str, Grid], grid: Grid) -> list[Grid]:
    """Return the grid and all it includes, directly or not."""
    found = {grid.name: grid}
    pending = [grid]
    while pending:
        for include in pending.pop().include:
            if include.grid in grids and include.grid not in found:
                found[include.grid] = grids[include.grid]
                pending.append(grids[include.grid])
    return list(found.values())


def _small_enough(grids: Mapping[str, Grid], grid: Grid, problems: list[Problem]) -> bool:
    total = sum(part.max_cells() for part in _reached(grids, grid))
    if total > _MAX_CELLS:
        problems.append(Problem(("grids", grid.name), f"up to {total:,} cells; at most {_MAX_CELLS:,}", str(grid.mark)))
    return total <= _MAX_CELLS


def _includes_exist(grids: Mapping[str, Grid], grid: Grid, problems: list[Problem]) -> bool:
    """Check the names in conditions of includes."""
    before = len(problems)
    for include in grid.include:
        if include.grid in grids:
            _check_include(include, labels_of(grids, grids[include.grid]), grid, problems)
    return len(problems) == before


def labels_of(grids: Mapping[str, Grid], grid: Grid) -> AxisLabels:
    """Return the labels of every axis of the grid and of those it includes."""
    found: AxisLabels = {}
    for part in _reached(grids, grid):
        for name, labels in _own_labels(part).items():
            found[name] = (*found.get(name, ()), *labels)
    return found


def _own_labels(grid: Grid) -> AxisLabels:
    if not grid.has_own_cells:
        return {}
    labels = known_labels(grid.base, grid.axes)
    for step in grid.when:
        labels = with_axes(labels, step.axes)
    return labels


def _check_include(include: Include, labels: AxisLabels, grid: Grid, problems: list[Problem]) -> None:
    path = ("grids", grid.name, "include", "where")
    for name, nodes, _ in include.where.terms:
        if name not in labels:
            message = f"grid '{include.grid}' has no axis '{name}'; {nearest(name, labels)}"
            problems.append(Problem((*path, name), message, str(include.mark)))
            continue
        for node in nodes:
            check_choice(Part(node, (*path, name), problems, node.mark), labels[name])


def _check_table(grid: Grid, labels: AxisLabels, problems: list[Problem]) -> None:
    path = ("grids", grid.name, "table")
    table = grid.table
    assert table is not None
    named = {
        "rows": table.rows, "columns": (table.columns,), "over": (table.over,), "against": tuple(table.against),
        "best": (table.best,) if table.best else (),
    }  # fmt: skip
    for part, names in named.items():
        valid = [*labels, *MEASURED_COLUMNS] if part == "columns" else list(labels)
        for name in names:
            if name not in valid and (message := _no_axis(grid, name, valid)):
                problems.append(Problem((*path, part), message, str(_place(grid, part))))
    if table.best in (*table.rows, table.columns, table.over):
        message = f"'{table.best}' is also in its rows or columns, or averaged; remove it there"
        problems.append(Problem((*path, "best"), message, str(_place(grid, "best"))))
    elif len(labels.get(table.best, (None, None))) < 2:
        message = f"'{table.best}' has one value; the best of an axis needs several"
        problems.append(Problem((*path, "best"), message, str(_place(grid, "best"))))
    for name in table.against:
        if name in labels and name not in table.rows:
            message = f"'{name}' is not one of the rows; {nearest(name, table.rows)}"
            problems.append(Problem((*path, "against", name), message, str(_place(grid, "against"))))
    for name, node in children(children(grid.table_node).get("against")).items():
        check_choice(Part(node, (*path, "against", name), problems, node.mark), labels.get(name))


def _no_axis(grid: Grid, name: str, valid: Sequence[str]) -> str:
    """Return the message for a table's axis that the grid does not have; "" if the cells' own problem covers it."""
    size = children(grid.base).get("size")
    if name != "size" or not grid.has_own_cells:
        return f"no axis '{name}'; {nearest(name, valid)}"
    # Without a size no cell is valid, which is reported for the cells; a size given by numbers only has no label.
    return f"the size at {size.mark} has no label; add `name: ...` to it" if size else ""


def _place(grid: Grid, part: str) -> Mark:
    node = children(grid.table_node).get(part, grid.table_node) if grid.table_node else None
    return node.mark if node else grid.mark
