"""Read experiments.yaml, the packs that it includes, and the plugin files that they name as `Experiments`, and report
all their problems at once.

Rules across grids are checked here: includes form no cycle, and conditions and tables name axes and labels that exist.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TypeVar

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.extension import absent
from gpas_cli.grid.companions import read_seeds, read_tuned, seeds_path, tuned_path
from gpas_cli.grid.declared import Claim, Experiments, Grid, lacking
from gpas_cli.grid.document import Node, read_document
from gpas_cli.grid.expand import expanded
from gpas_cli.grid.include import File, read_files, with_likes
from gpas_cli.grid.packs import Pack, known_packs
from gpas_cli.grid.read import AxisLabels, check_choice, labels_of, reached, read_grid, read_where
from gpas_cli.grid.resources import read_site
from gpas_cli.grid.scope import read_scopes
from gpas_cli.grid.settings import Part, children
from gpas_cli.spec.extensions import measured_columns
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.plugins import Plugin, known_schemes, known_stage_kinds, plugin_of
from gpas_cli.spec.stage import StageKind
from gpas_cli.trust import suspicion

_PLUGINS = ("plugins",)
_DEFINED_BY_PLUGINS = ("scheme", "stage")
_Added = TypeVar("_Added", type[Scheme], StageKind)
Check = Callable[[Experiments], Iterable[Problem]]
_MAX_CELLS = 100_000
_LISTED = ("rows", "columns", "bands")  # of a table, each by title and labels
_MAX_INCLUDE_DEPTH = 50


def load(path: Path, *, run_plugins: bool = True, check: Check | None = None, site: Path | None = None) -> Experiments:
    """Read the experiments file at `path`, the packs that it includes, and the profile `site`, if there is one
    (`grid.resources`).

    Without `run_plugins`, cells that need a plugin file are invalid.

    `check` returns further problems, of parts that this package does not know.

    Raises InvalidExperiments with all problems, including the cells' problems; GpasError if the file cannot be read.
    Cells are checked only if the file has another problem: otherwise `expand` checks them.
    """
    return interpret(read_document(path), path, run_plugins=run_plugins, check=check, site=site)


def interpret(
    root: Node, path: Path, *, run_plugins: bool = True, check: Check | None = None, site: Path | None = None
) -> Experiments:
    """Return the experiments declared by the root of a document."""
    problems: list[Problem] = []
    packs = dict(known_packs())
    main = read_files(root, path, problems, packs)
    files, unread = main.with_included, bool(problems)
    schemes, kinds = known_schemes(), known_stage_kinds()
    for file in files if run_plugins else ():
        _add_plugins(file, schemes, kinds)
    unloaded = any(problem.path == _PLUGINS for problem in problems)
    profile = read_site(site, problems)
    scopes = read_scopes(main, Plugin(schemes, kinds), profile)
    stages = (*scopes[main].catalogue.later_stages, *absent())
    declared = main.visible("grids")
    if not declared and isinstance(root.value, dict) and not unread:
        main.parts["grids"].report("has no grid; declare at least one, or include a paper")
    read: dict[str, tuple[Grid, bool]] = {}
    for file in files:
        for name, part in with_likes(file.own("grids"), file.visible("grids")).items():
            grid, readable = read_grid(name, part, stages, file)
            read[name] = replace(grid, scope=scopes[file]), readable
    grids = valid_grids({name: grid if readable else None for name, (grid, readable) in read.items()}, problems)
    grids = {**grids, **read_tuned(tuned_path(path), grids, problems)}
    experiments = Experiments(
        path=path,
        default=_default(main.parts["default"], declared),
        grids=grids,
        scope=scopes[main],
        packs=packs,
        included=tuple(file.pack for file in files if file.pack),
        site=profile.nodes,
        seeds=read_seeds(seeds_path(path), {**declared, **grids}, problems),
        claims=_claims(main.parts["claims"], declared, grids, packs),
    )
    problems.extend(check(experiments) if check and not unread else ())
    if problems:
        problems = list(dict.fromkeys(problems))
        known = {(problem.where, problem.message) for problem in problems}
        more = [p for p in expanded(experiments, experiments.available)[1] if (p.where, p.message) not in known]
        others = _of_values(experiments, {name: grid for name, (grid, _) in read.items() if name not in grids})
        more += (problem for problem in others if all(problem.where != other.where for other in problems))
        sections = {"size": "sizes", "data": "corpora", "network": "networks", "grid": "grids"}
        faulty = {
            (what, name) for what, section in sections.items() for file in files for name in file.sections[section]
        }
        raise InvalidExperiments(_causes([*problems, *more], faulty, unloaded))
    return experiments


def _claims(
    part: Part, declared: Collection[str], grids: Mapping[str, Grid], packs: Mapping[str, Pack]
) -> dict[str, tuple[Claim, ...]]:
    if part.node is None:
        return {}
    from gpas_cli.grid.claims import read_claims  # here, because few files have claims

    return read_claims(part, declared, grids, packs)


def _of_values(experiments: Experiments, grids: Mapping[str, Grid]) -> list[Problem]:
    """Return what is wrong with the values of cells and the axes of tables of `grids`, which have mistakes of their
    own: only what is wrong whatever those are. A condition may be one of them, so that no cell is excluded."""
    grids = {name: replace(grid, include=(), exclude=()) for name, grid in grids.items()}
    small = [name for name, grid in grids.items() if _small_enough(grids, grid, [])]
    found = expanded(replace(experiments, grids=grids), small)[1]
    for name in small:
        if grids[name].table is not None:
            _check_table(grids[name], labels_of(grids, name), found)
    return [problem for problem in found if problem.alone]


def _causes(problems: Iterable[Problem], faulty: Collection[tuple[str, str]], unloaded: bool) -> list[Problem]:
    """Return the problems without those that only follow from a faulty declaration or an unloaded plugin."""

    def follows(undeclared: tuple[str, str] | None) -> bool:
        return undeclared in faulty or (unloaded and undeclared is not None and undeclared[0] in _DEFINED_BY_PLUGINS)

    return [problem for problem in problems if not follows(problem.undeclared)]


def _default(part: Part, declared: Collection[str]) -> str:
    if part.node is None:
        return next(iter(declared), "")
    name = part.text()
    if name and declared and name not in declared:
        part.report(f"no grid '{name}'; {nearest(name, declared)}")
    return name


def _add_plugins(file: File, schemes: dict[str, type[Scheme]], kinds: dict[str, StageKind]) -> None:
    """Add the schemes and stage kinds of the plugins that a file names to the package's own and to installed ones.

    The plugins are executed; what is wrong with them is reported.
    """
    for item in file.parts["plugins"].items():
        name = item.text()
        plugin = _plugin(name, file, item) if name else Plugin()
        _add(plugin.schemes, schemes, f"{name}: the scheme", item)
        _add(plugin.stage_kinds, kinds, f"{name}: the stage", item)


def _add(new: Mapping[str, _Added], found: dict[str, _Added], what: str, item: Part) -> None:
    for name, one in new.items():
        if found.get(name, one) is not one:
            origin = found[name].origin
            item.report(f"{what} '{name}' already exists in {origin.name if origin else 'gpas_cli'}")
        else:
            found[name] = one


def _plugin(name: str, file: File, item: Part) -> Plugin:
    """Return what the plugin defines; nothing after reporting what is wrong with it."""
    installed = file.pack is not None and file.pack.installed  # which already means trusting it
    try:
        path = (file.path.parent / name).resolve()  # what is checked is what is executed, wherever a link leads later
        if not installed and (reason := suspicion(file.path, path)):
            item.report(f"{name} was not executed: {reason}")
        elif not path.is_file():
            item.report(f"{name} is not a file")
        else:
            return plugin_of(name, path.read_text("utf-8"))
    except OSError as error:
        item.report(f"{name}: {error.strerror}")
    except RuntimeError as error:  # from `resolve` before Python 3.13; what a plugin raises is an InvalidExperiments
        item.report(f"{name}: {error}")
    except UnicodeDecodeError:
        item.report(f"{name} is not UTF-8 text")
    except InvalidExperiments as error:
        for problem in error.problems:
            item.report(problem.message)
    return Plugin()


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
            if grid.table is not None and not lacking(grids, grid):
                _check_table(grid, labels_of(grids, name), problems)
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


def _small_enough(grids: Mapping[str, Grid], grid: Grid, problems: list[Problem]) -> bool:
    own = [part.all_axes for part in reached(grids, [grid.name]) if part.has_own_cells]
    total = sum(prod(len(axis.points) for axis in axes) for axes in own)
    if total > _MAX_CELLS:
        problems.append(Problem(("grids", grid.name), f"up to {total:,} cells; at most {_MAX_CELLS:,}", str(grid.mark)))
    return total <= _MAX_CELLS


def _includes_exist(grids: Mapping[str, Grid], grid: Grid, problems: list[Problem]) -> bool:
    """Check the names in conditions of includes."""
    before = len(problems)
    for include in (one for one in grid.include if one.grid in grids):
        labels = labels_of(grids, include.grid)
        for name, nodes, _ in include.where.terms:
            path = ("grids", grid.name, "include", "where", name)
            if name not in labels:
                message = f"grid '{include.grid}' has no axis '{name}'; {nearest(name, labels)}"
                problems.append(Problem(path, message, str(include.mark)))
                continue
            for node in nodes:
                check_choice(Part(node, path, problems, node.mark), labels[name])
    return len(problems) == before


def _check_table(grid: Grid, labels: AxisLabels, problems: list[Problem]) -> None:
    path = ("grids", grid.name, "table")
    table = grid.table
    assert table is not None

    def report(text: str, part: str, *below: str, alone: bool = False) -> None:
        """Add a problem at the place of an entry of the table, or at the table's."""
        at = children(grid.table_node).get(part, grid.table_node)
        problems.append(Problem((*path, part, *below), text, str(at.mark if at else grid.mark), alone=alone))

    listed = [axis for line in (*table.lines, *table.headings) for axis in line.labels]
    declared = children(grid.table_node)
    for part in _LISTED:
        for title, node in children(declared.get(part)).items():
            if children(node).keys().isdisjoint(measured_columns()):
                read_where(Part(node, (*path, part, title), problems, node.mark), labels)
    named = {
        "rows": table.rows, "columns": (table.columns,), "over": (table.over,), "against": tuple(table.against),
        "best": (table.best,) if table.best else (),
    }  # fmt: skip
    for part, names in named.items():
        valid = [*labels, *measured_columns()] if part == "columns" else list(labels)
        for name in names:
            if name not in (*valid, *listed) and (message := _no_axis(grid, name, valid)):
                report(message, part, alone=bool(grid.axes))
    if table.best in (*table.rows, table.columns, table.over):
        report(f"'{table.best}' is also in its rows or columns, or averaged; remove it there", "best")
    elif len(labels.get(table.best, (None, None))) < 2:
        report(f"'{table.best}' has one value; the best of an axis needs several", "best")
    for name in table.against:
        if name in labels and name not in table.rows:
            report(f"'{name}' is not one of the rows; {nearest(name, table.rows)}", "against", name)
    for name, node in children(children(grid.table_node).get("against")).items():
        check_choice(Part(node, (*path, "against", name), problems, node.mark), labels.get(name))


def _no_axis(grid: Grid, name: str, valid: Sequence[str]) -> str:
    """Return the message for a table's axis that the grid does not have; "" if the cells' own problem covers it."""
    size = children(grid.base).get("size")
    if name != "size" or not grid.has_own_cells:
        return f"no axis '{name}'; {nearest(name, valid)}"
    # Without a size no cell is valid, which is reported for the cells; a size given by numbers only has no label.
    return f"the size at {size.mark} has no label; add `name: ...` to it" if size else ""
