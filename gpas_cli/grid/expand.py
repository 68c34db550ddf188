"""Expand a declared grid into cells: product, conditional axes, exclusions, overrides, recipes, checks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import chain, product

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.declared import Axis, Condition, Declared, Entry, Experiments, Grid, Scope, lacking
from gpas_cli.grid.document import Label, Mark, Node, mapping, placed
from gpas_cli.grid.packs import including
from gpas_cli.grid.read import fixed_labels
from gpas_cli.grid.resources import ALL, of_built_in_sizes, overlaid
from gpas_cli.grid.settings import CELL_PARTS, Part, cell_name, children, family_name, located, merge, plain_cell, put
from gpas_cli.spec.cell import NETWORK, START, Cell
from gpas_cli.spec.cost import MOST_SEED, Scalars
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import SettingPath
from gpas_cli.spec.parse_cell import parse_cell
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import PRETRAIN, TOKENISE
from gpas_cli.words import grouped

_ADDED_SEED = "seed added to decide a claim; t tests and intervals assume a number of seeds that is fixed beforehand"
_DEFAULT = Resources()
_REQUIRED = {field.name for field in fields(Optim) if field.default is MISSING}
_TUNED = "the best setting of this method alone, which `gpas run tuned` found with the first seed"


@dataclass
class Draft:
    """A cell during expansion: its labels and its merged settings so far. `added`: its seed is beside the file."""

    labels: dict[str, Label]
    settings: Node
    notes: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    added: bool = False


def _product_of(drafts: Iterable[Draft], axes: Sequence[Axis]) -> list[Draft]:
    """Return each draft with each combination of values; the last axis varies fastest.

    Drafts that differ in the seed alone share the nodes of all other settings (`Expansion.cell`).
    """
    names = [name for axis in axes for name in axis.names]
    # Whole sections first, so that `gate.activation` changes the `gate` of the same cell in any order of the axes.
    order = sorted(range(len(names)), key=lambda i: (names[i] == "seed", names[i].count(".")))
    paths = [tuple(name.split(".")) for name in names]
    points = [list(chain.from_iterable(point)) for point in product(*(axis.points for axis in axes))]
    made: dict[tuple[int, tuple[str, ...], int], Node] = {}
    found = []
    for draft, values in product(drafts, points):
        settings = draft.settings
        for i in order:
            step = id(settings), paths[i], id(values[i].setting)
            if step not in made:
                made[step] = put(settings, paths[i], values[i].setting)
            settings = made[step]
        labels = {name: value.label for name, value in zip(names, values, strict=True)}
        found.append(Draft({**draft.labels, **labels}, settings, draft.notes))
    return found


def expand(experiments: Experiments, names: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells of the named grids in declared order; of the default grid if `names` is empty.

    Raises GpasError for an unknown grid, and InvalidExperiments with every problem of the grids' cells.
    """
    wanted = list(dict.fromkeys(names or [experiments.default]))
    for name in wanted:
        if name not in experiments.grids:
            hint = including(name) or nearest(name, experiments.grids)
            raise GpasError(f"no grid '{name}' in {experiments.path.name}; {hint}")
        if reason := lacking(experiments.grids, experiments.grids[name]):
            raise GpasError(f"the cells of '{name}' are unknown: {reason}")
    entries, problems = expanded(experiments, wanted)
    if problems:
        raise InvalidExperiments(problems)
    return entries


def expanded(experiments: Experiments, grids: Iterable[str]) -> tuple[list[Entry], list[Problem]]:
    """Return the valid cells of the grids, and every problem of the others; without a problem, all are kept."""
    expansion = Expansion(experiments, expanded=dict(experiments.expanded))
    entries = [entry for name in grids for entry in expansion.grid(name)]
    if not expansion.problems:
        experiments.expanded.update(expansion.expanded)
    return entries, expansion.problems


def cell_names(experiments: Experiments, grid: str) -> list[str]:
    """Return the names of a grid's cells without checking the cells: invalid ones are included.

    Raises InvalidExperiments if a condition matches no cell.
    """
    expansion = Expansion(experiments)
    names = list(expansion.names(experiments.grids[grid]))
    if expansion.problems:
        raise InvalidExperiments(expansion.problems)
    return names


@dataclass
class Expansion:
    """Expands each grid once, even if several include it, and collects problems."""

    experiments: Experiments
    problems: list[Problem] = field(default_factory=list)
    expanded: dict[str, list[Entry]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    starts: dict[str, Entry] = field(default_factory=dict)  # the cells that others start from, by grid/name
    reported: set[tuple[str, tuple[str | int, ...], str]] = field(default_factory=set)
    made_resources: dict[tuple[str, str, str], Resources] = field(default_factory=dict)  # by grid, size and kind of job
    # By the identities of all settings but the seed: a draft, which keeps them, and its cell.
    parsed: dict[tuple[object, ...], tuple[Draft, Cell]] = field(default_factory=dict)

    def grid(self, name: str) -> list[Entry]:
        """Return the entries of the grid `name`."""
        if name not in self.expanded:
            grid = self.experiments.grids[name]
            self.begun.add(name)
            own = self.named(grid, self.own_cells(grid)) if grid.has_own_cells else []
            self.expanded[name] = self.with_included(grid, own)
        return self.expanded[name]

    def names(self, grid: Grid) -> dict[str, dict[str, Label]]:
        """Return the labels of the grid's cells by name."""
        drafts = self.drafts(grid) if grid.has_own_cells else []
        found = {_name(grid, draft): draft.labels for draft in drafts}
        for include in grid.include:
            for name, labels in self.names(self.experiments.grids[include.grid]).items():
                if include.where.matches(labels):
                    found[name if name not in found else f"{include.grid}-{name}"] = labels
        return found

    def own_cells(self, grid: Grid) -> list[tuple[Draft, Cell]]:
        """Return the valid cells of the grid's own axes, without those it includes."""
        drafts = self.drafts(grid)
        for override in grid.override:
            matching = self.matching(override.where, drafts, "override", grid)
            for draft in (draft for draft in drafts if id(draft) in matching):
                draft.settings = merge(draft.settings, override.settings)
                draft.notes = (*draft.notes, *filter(None, [override.why]))
                draft.tags = (*draft.tags, *override.tags)
        drafts = self.tuned(grid, drafts) if grid.tuned else drafts
        cells = [(draft, self.cell(grid, draft)) for draft in drafts]
        return [(draft, cell) for draft, cell in cells if cell is not None]

    def drafts(self, grid: Grid) -> list[Draft]:
        """Return the product of the axes, extended by conditional axes and without excluded cells."""
        drafts = _product_of([Draft(fixed_labels(grid.base), grid.base)], grid.axes)
        for step in grid.when:
            matching = self.matching(step.where, drafts, "when", grid)
            drafts = [new for d in drafts for new in (_product_of([d], step.axes) if id(d) in matching else [d])]
        excluded: set[int] = set()
        for where in grid.exclude:
            excluded |= self.matching(where, drafts, "exclude", grid)
        left = [draft for draft in drafts if id(draft) not in excluded]
        if not left:
            self.report(Problem(("grids", grid.name), "every cell is excluded", str(grid.mark)))
        return [*left, *self.added(grid, left)]

    def added(self, grid: Grid, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the cells with seeds that are added beside the file and that the grid does not declare."""
        wanted = self.experiments.seeds.get(grid.name, {})
        places = {name: seeds[0].mark if seeds else grid.mark for name, seeds in wanted.items()}
        added = []
        for name, family in self.families(grid, drafts, "seeds", places).items():
            declared = {draft.labels.get("seed") for draft in family}
            added += [_with_seed(family[0], seed) for seed in wanted[name] if seed.value not in declared]
        return added

    def families(
        self, grid: Grid, drafts: Sequence[Draft], section: str, places: Mapping[str, Mark]
    ) -> dict[str, list[Draft]]:
        """Return the cells by those of the names without a seed that `section` of a file beside the experiments has at
        these places; a name that no cell has is a problem."""
        chosen = drafts if places else ()
        known = grouped((family_name(grid.axis_names, draft.labels), draft) for draft in chosen)
        for name in (name for name in places if name not in known):
            message = f"grid {grid.name} has no cell '{name}'; {nearest(name, known)}"
            self.report(Problem((section, grid.name, name), message, str(places[name])))
        return {name: known[name] for name in places if name in known}

    def matching(self, where: Condition, drafts: Iterable[Draft], part: str, grid: Grid) -> set[int]:
        """Return the ids of the matching drafts; none is a problem of `part`, a key of the grid."""
        found = {id(draft) for draft in drafts if where.matches(draft.labels)}
        if not found:
            self.report(Problem(("grids", grid.name, part), "the condition matches no cell", str(where.mark)))
        return found

    def tuned(self, grid: Grid, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the cells that have tuned settings, with these."""
        places = {name: settings.key or settings.mark for name, settings in grid.tuned.items()}
        families = self.families(grid, drafts, "tuned", places)
        for name, family in families.items():
            for draft in family:
                draft.settings = merge(draft.settings, grid.tuned[name])
                draft.notes = (*draft.notes, _TUNED)
        return [draft for family in families.values() for draft in family]

    def cell(self, grid: Grid, draft: Draft) -> Cell | None:
        """Return the checked cell of a draft, or None after reporting its problems.

        Cells that differ in the seed alone are parsed once, which takes a seventh of the time of a grid with 50 seeds.
        """
        settings = children(draft.settings)
        seed = settings["seed"].value if "seed" in settings else None
        others = (id(grid.scope), *((name, id(node)) for name, node in settings.items() if name != "seed"))
        if others in self.parsed and type(seed) is int and 0 <= seed <= MOST_SEED:
            return self.parsed[others][1].with_seed(seed)
        cell = self.parse(grid, draft)
        if cell is not None and not cell.reads_seed:
            self.parsed[others] = draft, cell
        return cell

    def parse(self, grid: Grid, draft: Draft) -> Cell | None:
        """Return the checked cell of a draft, or None after reporting its problems."""
        settings = draft.settings
        recipe = _recipe(settings, grid.scope)
        if recipe is not None:
            settings = merge(mapping({"optim": recipe}, recipe.mark), settings)
        found: list[Problem] = []
        values = plain_cell(settings)
        if isinstance(start := values.get(START), dict) and isinstance(name := start.get("cell"), str):
            other = self.named_cell(grid, settings, name, values.get("seed", Scalars.seed))
            if other is None:
                return None
            self.starts[other.id] = other
            values[START] = {**start, "cell": other.cell.to_mapping(), "source": other.id}
        if values.get(NETWORK, "none") != "none":
            started = [START] if values.get(START) not in (None, "none") else []
            unread = [*(name for name in values if name in CELL_PARTS), *started]
            found += [Problem((name,), "has no effect on a network that was not trained here") for name in unread]
        cell = parse_cell(values, found, grid.scope.catalogue)
        for problem in found:
            problem = located(problem, settings, grid.mark)
            if recipe is None and problem.path[:1] == ("optim",) and problem.absent:
                self.report_missing_recipe(problem, settings, grid.scope.catalogue.sizes)
            else:
                self.report(problem)
        return cell

    def named_cell(self, grid: Grid, settings: Node, name: str, seed: object) -> Entry | None:
        """Return the cell GRID/CELL from which a cell of `grid` starts, or None after reporting why there is none.

        A name without its seed is that of the cell with `seed`.
        """
        grids, (first, _, rest) = self.experiments.grids, name.partition("/")
        where = grid.scope.grids.get(first, first)
        if where not in grids:
            fault = f"no grid '{first}'; {nearest(first, grid.scope.grids)}"
        elif where in self.begun and where not in self.expanded:
            fault = f"a cell of {grid.name} cannot start from one of {where}, which needs it; use two grids"
        else:
            found = self.grid(where)
            declared = ((one, grids[one.declared.grid].axis_names) for one in found if one.declared)
            alike = [one for one, axes in declared if rest in (one.name, family_name(axes, one.axes))]
            if chosen := [one for one in alike if one.name == rest or one.cell.seed == seed]:
                return chosen[0]
            which = f"'{rest}'{f' with seed {seed}' if alike else ''}"
            fault = f"grid {where} has no cell {which}; {nearest(rest, [one.name for one in found])}" if found else ""
        if fault:  # why a grid has no cells is reported where it is declared
            self.report(located(Problem((START, "cell"), fault), settings, grid.mark))
        return None

    def report_missing_recipe(self, problem: Problem, settings: Node, sizes: Collection[str]) -> None:
        """Report a size without a recipe, unless there is no such size, which is another problem."""
        size = children(settings).get("size")
        name = _size_name(settings)
        if size is not None and (not name or name in sizes):
            missing = f"size {name or 'without a name'} has no recipe"
            message = f"is required: {missing}; write optim: {{lr: ..., warmup: ..., steps: ..., batch: ...}}"
            self.report(replace(problem, message=message, where=str(size.mark)))

    def report(self, problem: Problem) -> None:
        """Add a problem once per position and message, however many cells share it."""
        key = (problem.where, problem.path[-1:], problem.message)  # all settings of a missing recipe have one place
        if key not in self.reported:
            self.reported.add(key)
            self.problems.append(problem)

    def named(self, grid: Grid, cells: Iterable[tuple[Draft, Cell]]) -> list[Entry]:
        """Return the entries of cells; two cells of the same name are a problem."""
        entries: dict[str, Entry] = {}
        for draft, cell in cells:
            name = _name(grid, draft)
            if name in entries:
                message = f"two cells have the name '{name}'; give one of the values a name: {{name: ..., ...}}"
                self.report(Problem(("grids", grid.name), message, str(grid.mark)))
            entries[name] = self.entry(grid, name, draft, cell)
        return list(entries.values())

    def entry(self, grid: Grid, name: str, draft: Draft, cell: Cell) -> Entry:
        """Return an entry with the resources of its jobs, after reporting what is wrong with them."""
        entry = Entry(
            cell=cell,
            grid=grid.name,
            name=name,
            axes=_labels(draft, cell),
            cadence=grid.cadence,
            watch=grid.watch,
            resources=self.resources(grid, draft.settings),
            notes=draft.notes,
            tags=draft.tags,
            start=self.starts.get(cell.start.source) if cell.start and cell.start.cell else None,
            declared=Declared(grid.name, draft.settings, grid.scope.corpora, draft.added),
        )
        if grid.scope.kind_resources.by_kind or grid.resources.by_kind:
            entry = replace(entry, kind_resources=self.kind_resources(grid, entry, _size_name(draft.settings)))
        self.check_split(grid, entry)
        return entry

    def check_split(self, grid: Grid, entry: Entry) -> None:
        """Report trainings whose processes cannot share the rows of an update evenly, or the network."""
        for stage in entry.cell.stages:
            section, resources = entry.cell.parameters(stage.kind), entry.resources_of(stage)
            if section and (fault := section.strategy_fault(resources)):
                self.report(Problem(("grids", grid.name, "resources"), fault, str((grid.resources.own or grid).mark)))
            if stage.declared.trains and (uneven := (section or entry.cell.optim).split_fault(resources.processes)):
                of_file = grid.scope.kind_resources.by_kind
                at = grid.resources.by_kind.get(stage.kind) or of_file.get(stage.kind) or grid.resources.own or grid
                path = ("grids", grid.name, "resources", *([] if stage.kind == PRETRAIN else [stage.kind]))
                self.report(Problem(path, uneven, str(at.mark)))

    def resources(self, grid: Grid, settings: Node) -> Resources:
        """Return the resources of a training: its size's, overridden by its grid's."""
        size = _size_name(settings)
        by_size = grid.scope.resources
        base = by_size.get(size) or by_size.get(ALL) or _DEFAULT
        own = grid.resources.own
        layers = [(("grids", grid.name, "resources"), own)] if own else []
        return self.overlaid((grid.name, size, PRETRAIN), base, layers)

    def kind_resources(self, grid: Grid, entry: Entry, size: str) -> dict[str, Resources]:
        """Return the declared resources of the entry's other jobs, by kind: the file's, overridden by the grid's."""
        defaults = {stage.kind: entry.resources_of(stage) for stage in entry.cell.stages[1:]}
        defaults[TOKENISE] = entry.text_resources
        trained = {stage.kind for stage in entry.cell.stages if stage.declared.trains}
        sections = [
            (("resources",), grid.scope.kind_resources.by_kind),
            (("grids", grid.name, "resources"), grid.resources.by_kind),
        ]
        made = {}
        for kind, default in defaults.items():
            layers = [((*path, kind), nodes[kind]) for path, nodes in sections if kind in nodes]
            if layers:
                made[kind] = self.overlaid((grid.name, size, kind), default, layers)
                if made[kind].processes > 1 and kind not in trained:
                    path, node = next(layer for layer in reversed(layers) if "ranks" in children(layer[1]))
                    mark = children(node)["ranks"].mark
                    self.report(Problem((*path, "ranks"), f"a job of {kind} has one process", str(mark)))
        return made

    def overlaid(
        self, key: tuple[str, str, str], base: Resources, layers: Iterable[tuple[SettingPath, Node]]
    ) -> Resources:
        """Return `base` with each of `layers` over it, cached by `key` (grid, size, kind of job)."""
        if key not in self.made_resources:
            problems: list[Problem] = []
            for path, node in layers:
                base = overlaid(base, Part(node, path, problems, node.mark))
            for problem in problems:
                self.report(problem)
            self.made_resources[key] = base
        return self.made_resources[key]

    def with_included(self, grid: Grid, own: list[Entry]) -> list[Entry]:
        """Return the own entries, then the included ones without repeated cells."""
        if not grid.include:
            return own
        keys = {entry.key for entry in own}
        names = {entry.name for entry in own}
        entries = list(own)
        for include in grid.include:
            chosen = [entry for entry in self.grid(include.grid) if include.where.matches(entry.axes)]
            if not chosen and self.expanded[include.grid]:  # why a grid has no cells is reported where it is declared
                self.report(
                    Problem(("grids", grid.name, "include"), "the condition matches no cell", str(include.mark))
                )
            for entry in chosen:
                if entry.key in keys:
                    continue
                name = entry.name if entry.name not in names else f"{include.grid}-{entry.name}"
                keys.add(entry.key)
                names.add(name)
                entries.append(replace(entry, grid=grid.name, name=name))
        return entries


def _recipe(settings: Node, scope: Scope) -> Node | None:
    """Return the recipe of the size in the file, or else in the package, whose settings are placed at the size.

    The package's is for cells that would be incomplete without it: files that state all of a recipe in their grids are
    older than it, and have results under their keys.
    """
    name = _size_name(settings)
    own, built_in = scope.recipes.get(name), of_built_in_sizes("recipes")[name].node
    if own or built_in is None or children(children(settings).get("optim")).keys() >= _REQUIRED:
        return own
    return placed(built_in, children(settings)["size"].mark)


def _name(grid: Grid, draft: Draft) -> str:
    """Return the name of a cell; one with an added seed has the seed in its name even if the grid does not vary it."""
    return cell_name((*grid.axis_names, "seed") if draft.added else grid.axis_names, draft.labels)


def _with_seed(draft: Draft, seed: Node) -> Draft:
    """Return the cell with another seed, before overrides."""
    assert isinstance(seed.value, int)  # checked when the file of added seeds was read
    labels = {**draft.labels, "seed": seed.value}
    return Draft(labels, put(draft.settings, ["seed"], seed), (*draft.notes, _ADDED_SEED), added=True)


def _labels(draft: Draft, cell: Cell) -> dict[str, Label]:
    """Return the labels of a cell; a network that was not trained here has none for settings that it does not have, and
    one size, so that a table has a column for it."""
    if cell.network is None:
        return draft.labels
    return {"size": NETWORK} | {name: value for name, value in draft.labels.items() if name not in CELL_PARTS}


def _size_name(settings: Node) -> str:
    size = children(settings).get("size")
    name = children(size).get("like", size).value if size else None
    return name if isinstance(name, str) else ""
