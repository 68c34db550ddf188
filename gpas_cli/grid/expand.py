"""A declared grid -> its cells: product, conditional axes, exclusions, overrides, recipes, checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.declared import Axis, Experiments, Grid, Override, Value, Where
from gpas_cli.grid.document import Node, mapping
from gpas_cli.grid.entry import Declared, Entry
from gpas_cli.grid.names import cell_name
from gpas_cli.grid.read import fixed_labels
from gpas_cli.grid.readers import fault
from gpas_cli.grid.scalar import Label
from gpas_cli.grid.settings import children, located, merge, plain_cell, put
from gpas_cli.spec import parse
from gpas_cli.spec.cell import Cell, parse_cell
from gpas_cli.spec.run import Resources


def expand(experiments: Experiments, names: Sequence[str] | None = None) -> list[Entry]:
    """The cells of the named grids, in declared order; of the default grid if none is named.

    Raises GpasError for an unknown grid, InvalidExperiments with every problem of the grids' cells.
    """
    wanted = list(dict.fromkeys(names or [experiments.default]))
    for name in wanted:
        if name not in experiments.grids:
            raise GpasError(f"no grid '{name}' in {experiments.path.name}; {nearest(name, experiments.grids)}")
    expansion = Expansion(experiments)
    entries = [entry for name in wanted for entry in expansion.grid(name)]
    if expansion.problems:
        raise InvalidExperiments(expansion.problems)
    return entries


def cell_problems(experiments: Experiments) -> list[Problem]:
    """Everything wrong with the cells of all grids."""
    expansion = Expansion(experiments)
    for name in experiments.grids:
        expansion.grid(name)
    return expansion.problems


def cell_names(experiments: Experiments, grid: str) -> list[str]:
    """The names of a grid's cells, which are not checked: cells that are invalid have names as well.

    Raises InvalidExperiments if a condition matches no cell.
    """
    expansion = Expansion(experiments)
    names = list(expansion.names(experiments.grids[grid]))
    if expansion.problems:
        raise InvalidExperiments(expansion.problems)
    return names


@dataclass
class Draft:
    """A cell in the making: its labels and its layers of settings so far."""

    labels: dict[str, Label]
    settings: Node
    notes: tuple[str, ...] = ()


@dataclass
class Expansion:
    """Expands each grid once, also when several include it, and collects problems."""

    experiments: Experiments
    problems: list[Problem] = field(default_factory=list)
    done: dict[str, list[Entry]] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    asked: dict[tuple[str, str], Resources] = field(default_factory=dict)  # of a grid's cells of a size

    def grid(self, name: str) -> list[Entry]:
        if name not in self.done:
            grid = self.experiments.grids[name]
            own = self.named(grid, self.own(grid)) if grid.has_own_cells else []
            self.done[name] = self.with_included(grid, own)
        return self.done[name]

    def names(self, grid: Grid) -> dict[str, dict[str, Label]]:
        """The labels of the grid's cells by name."""
        axes = [name for axis in grid.all_axes for name in axis.names]
        drafts = self.drafts(grid) if grid.has_own_cells else []
        found = {cell_name(axes, draft.labels): draft.labels for draft in drafts}
        for include in grid.include:
            for name, labels in self.names(self.experiments.grids[include.grid]).items():
                if include.where.matches(labels):
                    found[name if name not in found else f"{include.grid}-{name}"] = labels
        return found

    def own(self, grid: Grid) -> list[tuple[Draft, Cell]]:
        drafts = self.drafts(grid)
        for override in grid.override:
            self.override(grid, override, drafts)
        cells = [(draft, self.cell(grid, draft)) for draft in drafts]
        return [(draft, cell) for draft, cell in cells if cell is not None]

    def drafts(self, grid: Grid) -> list[Draft]:
        """Product of the axes, then the conditional ones, then the exclusions."""
        drafts = _product([Draft(fixed_labels(grid.base), grid.base)], grid.axes)
        for step in grid.when:
            matching = self.matching(step.where, drafts, "when", grid)
            drafts = [new for d in drafts for new in (_product([d], step.axes) if id(d) in matching else [d])]
        excluded: set[int] = set()
        for where in grid.exclude:
            excluded |= self.matching(where, drafts, "exclude", grid)
        left = [draft for draft in drafts if id(draft) not in excluded]
        if not left:
            fault(self.problems, ("grids", grid.name), "every cell is excluded", grid.mark)
        return left

    def matching(self, where: Where, drafts: Iterable[Draft], part: str, grid: Grid) -> set[int]:
        found = {id(draft) for draft in drafts if where.matches(draft.labels)}
        if not found:
            fault(self.problems, ("grids", grid.name, part), "the condition matches no cell", where.mark)
        return found

    def override(self, grid: Grid, override: Override, drafts: Iterable[Draft]) -> None:
        matching = self.matching(override.where, drafts, "override", grid)
        for draft in drafts:
            if id(draft) in matching:
                draft.settings = merge(draft.settings, override.settings)
                draft.notes = (*draft.notes, override.why)

    def cell(self, grid: Grid, draft: Draft) -> Cell | None:
        recipe = self.experiments.recipes.get(_size_word(draft.settings))
        settings = draft.settings
        if recipe is not None:
            settings = merge(mapping({"optim": recipe}, recipe.mark), settings)
        found: list[Problem] = []
        cell = parse_cell(plain_cell(settings), found, self.experiments.catalogue)
        for problem in found:
            placed = located(problem, settings, grid.mark)
            if recipe is None and problem.path[:1] == ("optim",) and problem.message == "is required":
                self.lacks_recipe(placed, settings)
            else:
                self.report(placed)
        return cell

    def lacks_recipe(self, problem: Problem, settings: Node) -> None:
        """A size without a recipe; if there is no such size, that is said already."""
        size, word = children(settings).get("size"), _size_word(settings)
        if size is not None and (not word or word in self.experiments.catalogue.sizes):
            message = f"is required: size {word or 'without a name'} has no entry under 'recipes'"
            self.report(replace(problem, message=message, where=str(size.mark)))

    def report(self, problem: Problem) -> None:
        """Once per place and message, however many cells share the mistake."""
        if (problem.where, problem.message) not in self.seen:
            self.seen.add((problem.where, problem.message))
            self.problems.append(problem)

    def named(self, grid: Grid, cells: Iterable[tuple[Draft, Cell]]) -> list[Entry]:
        axes = [name for axis in grid.all_axes for name in axis.names]
        entries: dict[str, Entry] = {}
        for draft, cell in cells:
            name = cell_name(axes, draft.labels)
            if name in entries:
                message = f"two cells would be called '{name}'; give a value another name: {{name: ..., ...}}"
                self.report(Problem(("grids", grid.name), message, str(grid.mark)))
            entries[name] = self.entry(grid, name, draft, cell)
        return list(entries.values())

    def entry(self, grid: Grid, name: str, draft: Draft, cell: Cell) -> Entry:
        asked = self.resources(grid, draft.settings)
        if uneven := cell.optim.split_fault(asked.processes):
            at = grid.resources_node or grid
            self.report(Problem(("grids", grid.name, "resources"), uneven, str(at.mark)))
        return Entry(
            cell=cell,
            grid=grid.name,
            name=name,
            axes=draft.labels,
            cadence=grid.cadence,
            watch=grid.watch,
            resources=asked,
            text_resources=self.text_resources(asked),
            notes=draft.notes,
            declared=Declared(grid.name, draft.settings, self.experiments.corpora),
        )

    def resources(self, grid: Grid, settings: Node) -> Resources:
        size = _size_word(settings)
        if (grid.name, size) not in self.asked:
            self.asked[grid.name, size] = self._resources(grid, size)
        return self.asked[grid.name, size]

    def _resources(self, grid: Grid, size: str) -> Resources:
        own = self.experiments.resources.get(size, Resources())
        if not grid.resources:
            return own
        made = parse.build(Resources, {**parse.plain(own), **grid.resources}, (), []) or own
        if (declared := grid.resources_node) is not None:
            for name, wrong in made.faults.items():
                at = children(declared).get(name, declared)
                self.report(Problem(("grids", grid.name, "resources"), wrong, str(at.mark)))
        return made

    def text_resources(self, asked: Resources) -> Resources:
        """Those of the training, on one node and without GPUs, where nothing else is declared."""
        usual, declared = asked.for_tokenising(), self.experiments.text_resources
        return parse.build(Resources, {**parse.plain(usual), **declared}, (), []) or usual

    def with_included(self, grid: Grid, own: list[Entry]) -> list[Entry]:
        """Own cells first; an included cell that is there already is not repeated."""
        if not grid.include:
            return own
        keys, names = {entry.key for entry in own}, {entry.name for entry in own}
        entries = list(own)
        for include in grid.include:
            chosen = [entry for entry in self.grid(include.grid) if include.where.matches(entry.axes)]
            if not chosen and include.grid not in self.broken():
                fault(self.problems, ("grids", grid.name, "include"), "the condition matches no cell", include.mark)
            for entry in chosen:
                if entry.key in keys:
                    continue
                name = entry.name if entry.name not in names else f"{include.grid}-{entry.name}"
                keys.add(entry.key)
                names.add(name)
                entries.append(replace(entry, grid=grid.name, name=name))
        return entries

    def broken(self) -> set[str]:
        """Grids without cells: why is reported where they are declared."""
        return {name for name, entries in self.done.items() if not entries}


def _product(drafts: Iterable[Draft], axes: Sequence[Axis]) -> list[Draft]:
    """Each draft with each combination of values, the last axis varying fastest."""
    return [_with(draft, axes, points) for draft in drafts for points in product(*(axis.points for axis in axes))]


def _with(draft: Draft, axes: Sequence[Axis], points: Sequence[tuple[Value, ...]]) -> Draft:
    chosen = [pair for axis, point in zip(axes, points, strict=True) for pair in zip(axis.names, point, strict=True)]
    settings, labels = draft.settings, dict(draft.labels)
    # Whole sections first, so that `gate.activation` refines the `gate` of the same cell whatever the order.
    for name, value in sorted(chosen, key=lambda pair: pair[0].count(".")):
        settings = put(settings, name.split("."), value.setting)
    labels.update((name, value.label) for name, value in chosen)
    return Draft(labels, settings, draft.notes)


def _size_word(settings: Node) -> str:
    size = children(settings).get("size")
    word = children(size).get("like", size).value if size else None
    return word if isinstance(word, str) else ""
