"""Read experiments.yaml and the plugin files that it names as `Experiments`, and report all its problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.declared import Experiments, Grid
from gpas_cli.grid.document import Node, read_document
from gpas_cli.grid.expand import cell_problems
from gpas_cli.grid.read import UNKNOWN_STAGE, read_grid
from gpas_cli.grid.readers import add_problem, read_dataclass, read_list, read_mapping, read_text
from gpas_cli.grid.resources import read_resources, read_site
from gpas_cli.grid.seeds import read_seeds, seeds_path
from gpas_cli.grid.validate import valid_grids
from gpas_cli.spec.data import CORPORA, Data
from gpas_cli.spec.model import SIZES, Size
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import UNKNOWN_SCHEME, Catalogue
from gpas_cli.spec.plugins import Plugin, known_schemes, known_stage_kinds, plugin_of
from gpas_cli.spec.stage import StageKind
from gpas_cli.trust import suspicion

_PLUGINS = ("plugins",)
_Added = TypeVar("_Added", type[Scheme], StageKind)
T = TypeVar("T")
TOP_LEVEL_KEYS = ("version", "default", "plugins", "sizes", "corpora", "recipes", "resources", "grids", "claims")
_VERSION = 1
Check = Callable[[Experiments], Iterable[Problem]]


def load(path: Path, *, run_plugins: bool = True, check: Check | None = None, site: Path | None = None) -> Experiments:
    """Read the experiments file at `path`, and the profile `site`, if there is one (`grid.resources`).

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
    parts = read_mapping(root, (), problems, TOP_LEVEL_KEYS)
    _check_version(parts.get("version"), root, problems)
    plugins = _known_plugins(parts.get("plugins") if run_plugins else None, path, problems)
    unloaded = any(problem.path == _PLUGINS for problem in problems)
    catalogue = Catalogue(
        schemes=plugins.schemes,
        stage_kinds=plugins.stage_kinds,
        sizes={**SIZES, **_named(Size, "sizes", parts.get("sizes"), SIZES, problems)},
        corpora={**CORPORA, **_named(Data, "corpora", parts.get("corpora"), CORPORA, problems)},
    )
    grids = _read_grids(parts, root, catalogue, problems)
    seeds = read_seeds(seeds_path(path), read_mapping(parts.get("grids"), (), []), problems)
    profile = read_site(site, problems)
    resources, kind_resources = read_resources(
        parts.get("resources"), catalogue.sizes, catalogue.later_stages, problems, profile
    )
    experiments = Experiments(
        path=path,
        default=_default(parts.get("default"), parts.get("grids"), problems),
        grids=grids,
        catalogue=catalogue,
        recipes=_recipes(parts.get("recipes"), catalogue, problems),
        resources=resources,
        kind_resources=kind_resources,
        site=profile,
        corpora=read_mapping(parts.get("corpora"), (), []),
        seeds=seeds,
        claims=read_claims(parts.get("claims"), read_mapping(parts.get("grids"), (), []), grids, problems),
    )
    problems.extend(check(experiments) if check else ())
    if problems:
        known = {(problem.where, problem.message) for problem in problems}
        more = [p for p in cell_problems(experiments) if (p.where, p.message) not in known]
        raise InvalidExperiments(_causes([*problems, *more]) if unloaded else [*problems, *more])
    return experiments


def _causes(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without those that a plugin's own may cause: names that it would have defined."""
    return [problem for problem in problems if not problem.message.startswith((UNKNOWN_SCHEME, UNKNOWN_STAGE))]


def _check_version(node: Node | None, root: Node, problems: list[Problem]) -> None:
    if node is None:
        if isinstance(root.value, dict):
            add_problem(problems, ("version",), f"is required; write version: {_VERSION}", root)
    elif node.value != _VERSION or isinstance(node.value, bool):
        add_problem(
            problems, ("version",), f"{node.plain()!r} is unknown; this version of gpas reads version {_VERSION}", node
        )


def _named(
    cls: type[T], section: str, node: Node | None, known: Mapping[str, T], problems: list[Problem]
) -> dict[str, T]:
    """Return the sizes or corpora of this file. Built-in names cannot be redefined: published results refer to them."""
    found: dict[str, T] = {}
    for name, child in read_mapping(node, (section,), problems).items():
        if name in known:
            add_problem(problems, (section, name), "is built in; choose another name", child.key or child.mark)
            continue
        made = read_dataclass(cls, child, (section, name), problems, {**known, **found})
        if made is not None:
            found[name] = made
    return found


def _recipes(node: Node | None, catalogue: Catalogue, problems: list[Problem]) -> dict[str, Node]:
    """Return the recipes by size. They may be partial; settings that are still missing are reported for the cell."""
    recipes = read_mapping(node, ("recipes",), problems)
    for name, child in recipes.items():
        if name not in catalogue.sizes:
            message = f"no size '{name}'; {nearest(name, catalogue.sizes)}"
            add_problem(problems, ("recipes", name), message, child.key or child.mark)
        found: list[Problem] = []
        read_dataclass(Optim, child, ("recipes", name), found)
        problems.extend(problem for problem in found if problem.message != "is required")
    return {name: child for name, child in recipes.items() if isinstance(child.value, dict)}


def _default(node: Node | None, grids: Node | None, problems: list[Problem]) -> str:
    declared = list(read_mapping(grids, (), []))
    if node is None:
        return declared[0] if declared else ""
    name = read_text(node, ("default",), problems)
    if name and declared and name not in declared:
        add_problem(problems, ("default",), f"no grid '{name}'; {nearest(name, declared)}", node)
    return name


def _read_grids(
    parts: Mapping[str, Node], root: Node, catalogue: Catalogue, problems: list[Problem]
) -> dict[str, Grid]:
    declared = read_mapping(parts.get("grids"), ("grids",), problems)
    if not declared and isinstance(root.value, dict):
        add_problem(problems, ("grids",), "has no grid; declare at least one", parts.get("grids", root))
    read = {name: read_grid(name, node, catalogue.later_stages, problems) for name, node in declared.items()}
    return valid_grids(read, problems)


def _known_plugins(node: Node | None, config: Path, problems: list[Problem]) -> Plugin:
    """Return the schemes and stage kinds of the package, of installed packages and of the files that `node` names.

    The files are executed; what is wrong with them is added to `problems`.
    """
    schemes, kinds = known_schemes(), known_stage_kinds()
    for item in read_list(node, _PLUGINS, problems):
        name = read_text(item, _PLUGINS, problems)
        plugin = _plugin(name, config, item, problems) if name else Plugin()
        _add(plugin.schemes, schemes, f"{name}: the scheme", item, problems)
        _add(plugin.stage_kinds, kinds, f"{name}: the stage", item, problems)
    return Plugin(schemes, kinds)


def _add(new: Mapping[str, _Added], found: dict[str, _Added], what: str, item: Node, problems: list[Problem]) -> None:
    for name, one in new.items():
        if name in found:
            origin = found[name].origin
            owner = origin.name if origin else "gpas_cli"
            add_problem(problems, _PLUGINS, f"{what} '{name}' already exists in {owner}", item)
        else:
            found[name] = one


def _plugin(name: str, config: Path, item: Node, problems: list[Problem]) -> Plugin:
    """Return what the file defines; nothing after adding to `problems`."""
    try:
        path = (config.parent / name).resolve()  # what is checked is what is executed, wherever a link leads later
        if reason := suspicion(config, path):
            add_problem(problems, _PLUGINS, f"{name} was not executed: {reason}", item)
        elif not path.is_file():
            add_problem(problems, _PLUGINS, f"{name} is not a file", item)
        else:
            return plugin_of(name, path.read_text("utf-8"))
    except OSError as error:
        add_problem(problems, _PLUGINS, f"{name}: {error.strerror}", item)
    except RuntimeError as error:  # from `resolve` before Python 3.13; what a plugin raises is an InvalidExperiments
        add_problem(problems, _PLUGINS, f"{name}: {error}", item)
    except UnicodeDecodeError:
        add_problem(problems, _PLUGINS, f"{name} is not UTF-8 text", item)
    except InvalidExperiments as error:
        for problem in error.problems:
            add_problem(problems, _PLUGINS, problem.message, item)
    return Plugin()
