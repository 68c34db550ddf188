"""Read experiments.yaml and the plugin files that it names as `Experiments`, and report all its problems at once."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.companions import read_seeds, read_tuned, seeds_path, tuned_path
from gpas_cli.grid.declared import Experiments
from gpas_cli.grid.document import Node, read_document
from gpas_cli.grid.expand import cell_problems
from gpas_cli.grid.read import read_grid
from gpas_cli.grid.readers import Part, root_of
from gpas_cli.grid.resources import read_resources, read_site
from gpas_cli.grid.settings import children
from gpas_cli.grid.validate import valid_grids
from gpas_cli.spec.data import CORPORA, Data
from gpas_cli.spec.model import SIZES, Size
from gpas_cli.spec.network import Network, digests, pin_of
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.spec.plugins import Plugin, known_schemes, known_stage_kinds, plugin_of
from gpas_cli.spec.stage import StageKind
from gpas_cli.trust import suspicion

_PLUGINS = ("plugins",)
_DEFINED_BY_PLUGINS = ("scheme", "stage")
_Added = TypeVar("_Added", type[Scheme], StageKind)
_T = TypeVar("_T")
_TOP_LEVEL_KEYS = (
    "version",
    "default",
    "plugins",
    "sizes",
    "corpora",
    "networks",
    "recipes",
    "resources",
    "grids",
    "claims",
)
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
    parts = root_of(root, problems).entries(_TOP_LEVEL_KEYS)
    _check_version(parts["version"], root)
    plugins = _known_plugins(parts["plugins"] if run_plugins else None, path)
    unloaded = any(problem.path == _PLUGINS for problem in problems)
    sizes, corpora, networks = (parts[name].entries() for name in ("sizes", "corpora", "networks"))
    catalogue = Catalogue(
        schemes=plugins.schemes,
        stage_kinds=plugins.stage_kinds,
        sizes={**SIZES, **_named(Size, sizes, SIZES)},
        corpora={**CORPORA, **_named(Data, corpora, CORPORA)},
        networks=_networks(networks, path.parent),
    )
    declared = parts["grids"].entries()
    if not declared and isinstance(root.value, dict):
        parts["grids"].report("has no grid; declare at least one")
    stages = catalogue.later_stages
    grids = valid_grids({name: read_grid(part, stages) for name, part in declared.items()}, problems)
    grids = {**grids, **read_tuned(tuned_path(path), grids, problems)}
    profile = read_site(site, problems)
    resources, kind_resources = read_resources(parts["resources"], catalogue.sizes, stages, profile)
    experiments = Experiments(
        path=path,
        default=_default(parts["default"], declared),
        grids=grids,
        catalogue=catalogue,
        recipes=_recipes(parts["recipes"], dict.fromkeys((*catalogue.sizes, *sizes))),
        resources=resources,
        kind_resources=kind_resources,
        site=profile.nodes,
        corpora=corpora.nodes,
        seeds=read_seeds(seeds_path(path), {**declared, **grids}, problems),
        claims=read_claims(parts["claims"], declared, grids),
    )
    problems.extend(check(experiments) if check else ())
    if problems:
        known = {(problem.where, problem.message) for problem in problems}
        more = [p for p in cell_problems(experiments) if (p.where, p.message) not in known]
        faulty = {("size", name) for name in sizes} | {("data", name) for name in corpora}
        faulty |= {("network", name) for name in networks}
        raise InvalidExperiments(_causes([*problems, *more], faulty, unloaded))
    return experiments


def _causes(problems: Iterable[Problem], faulty: Collection[tuple[str, str]], unloaded: bool) -> list[Problem]:
    """Return the problems without those that only follow from a faulty declaration or an unloaded plugin."""

    def follows(undeclared: tuple[str, str] | None) -> bool:
        return undeclared in faulty or (unloaded and undeclared is not None and undeclared[0] in _DEFINED_BY_PLUGINS)

    return [problem for problem in problems if not follows(problem.undeclared)]


def _check_version(part: Part, root: Node) -> None:
    if part.node is None:
        if isinstance(root.value, dict):
            part.report(f"is required; write version: {_VERSION}")
    elif part.value != _VERSION or isinstance(part.value, bool):
        part.report(f"{part.node.plain()!r} is unknown; this version of gpas reads version {_VERSION}")


def _named(cls: type[_T], entries: Mapping[str, Part], known: Mapping[str, _T]) -> dict[str, _T]:
    """Return the sizes or corpora of this file. Built-in names cannot be redefined: published results refer to them."""
    found: dict[str, _T] = {}
    # A mixture names other corpora, wherever they stand.
    for name, child in sorted(entries.items(), key=lambda item: "mixture" in children(item[1].node)):
        if name in known:
            child.report("is built in; choose another name", child.key)
        elif (made := child.instance(cls, {**known, **found})) is not None:
            found[name] = made
    return found


def _networks(entries: Mapping[str, Part], root: Path) -> dict[str, Network]:
    """Return the networks of this file, with the shapes that their folders have; those without a pin are reported."""
    found: dict[str, Network] = {}
    for name, child in entries.items():
        made = child.instance(Network)
        if made is None:
            continue
        problems = [*made.problems(), *_pin_problems(made, root)]
        for problem in problems:
            child.report(problem.message, None, *map(str, problem.path))
        if not problems:
            found[name] = made.with_shape(root)
    return found


def _pin_problems(network: Network, root: Path) -> Iterator[Problem]:
    """Yield a problem if a folder has no digest, with the one that its files have now."""
    if not network.path or network.sha256 or network.hf:
        return
    folder = network.folder(root)
    if not folder.is_dir():
        yield Problem(("path",), f"there is no folder {folder}")
        return
    try:
        yield Problem(("sha256",), f"is required: the digest of the folder's files, now {pin_of(*digests(folder))}")
    except OSError as error:
        yield Problem(("path",), f"{folder} cannot be read: {error.strerror}")


def _recipes(part: Part, sizes: Collection[str]) -> dict[str, Node]:
    """Return the recipes by size. They may be partial; settings that are still missing are reported for the cell."""
    recipes = part.entries()
    for name, child in recipes.items():
        if name not in sizes:
            child.report(f"no size '{name}'; {nearest(name, sizes)}", child.key)
        found: list[Problem] = []
        replace(child, problems=found).instance(Optim)
        part.problems.extend(problem for problem in found if problem.message != "is required")
    return {name: node for name, node in recipes.nodes.items() if isinstance(node.value, dict)}


def _default(part: Part, declared: Collection[str]) -> str:
    if part.node is None:
        return next(iter(declared), "")
    name = part.text()
    if name and declared and name not in declared:
        part.report(f"no grid '{name}'; {nearest(name, declared)}")
    return name


def _known_plugins(part: Part | None, config: Path) -> Plugin:
    """Return the schemes and stage kinds of the package, of installed packages and of the files that `part` names.

    The files are executed; what is wrong with them is reported.
    """
    schemes, kinds = known_schemes(), known_stage_kinds()
    for item in part.items() if part else ():
        name = item.text()
        plugin = _plugin(name, config, item) if name else Plugin()
        _add(plugin.schemes, schemes, f"{name}: the scheme", item)
        _add(plugin.stage_kinds, kinds, f"{name}: the stage", item)
    return Plugin(schemes, kinds)


def _add(new: Mapping[str, _Added], found: dict[str, _Added], what: str, item: Part) -> None:
    for name, one in new.items():
        if name in found:
            origin = found[name].origin
            item.report(f"{what} '{name}' already exists in {origin.name if origin else 'gpas_cli'}")
        else:
            found[name] = one


def _plugin(name: str, config: Path, item: Part) -> Plugin:
    """Return what the file defines; nothing after reporting what is wrong with it."""
    try:
        path = (config.parent / name).resolve()  # what is checked is what is executed, wherever a link leads later
        if reason := suspicion(config, path):
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
