"""What the settings of a file's grids may refer to, and what they have by default (`Scope`)."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpas_cli.errors import Problem, nearest
from gpas_cli.extension import absent, missing
from gpas_cli.grid.declared import Scope
from gpas_cli.grid.include import File
from gpas_cli.grid.packs import known_packs
from gpas_cli.grid.resources import ALL, read_resources
from gpas_cli.grid.settings import Entries, Part, children
from gpas_cli.spec.cell import NETWORK
from gpas_cli.spec.data import CORPORA, Data
from gpas_cli.spec.extensions import part
from gpas_cli.spec.model import SIZES, Size
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.spec.plugins import Plugin
from gpas_cli.spec.section import Network

_T = TypeVar("_T")


def read_scopes(main: File, plugins: Plugin, site: Entries) -> dict[File, Scope]:
    """Return the scope of experiments.yaml and of each file that it includes. Faulty declarations are reported.

    A file's grids may name what is built in, what the included files declare, and its own. Sizes have the recipe and
    the resources of the file that declares them, unless a file has others for its own grids; the site's profile and
    experiments.yaml override the resources of all grids.
    """
    scopes: dict[File, Scope] = {}

    def add(file: File) -> None:
        others = file.with_included[1:]
        for one in others:
            if one not in scopes:
                add(one)
        scopes[file] = _scope(file, {one: scopes[one] for one in others}, plugins, main, site)

    add(main)
    return scopes


def _scope(file: File, included: Mapping[File, Scope], plugins: Plugin, main: File, site: Entries) -> Scope:
    def known(section: str) -> dict[str, Any]:
        """Return what the included files declare, by the names that this one uses."""
        values = {one: getattr(scope.catalogue, section) for one, scope in included.items()}
        return {
            one.prefix + name: values[one][name]
            for one in included
            for name in one.sections[section]
            if name in values[one]
        }

    own = file.sections
    catalogue = Catalogue(
        schemes=plugins.schemes,
        stage_kinds=plugins.stage_kinds,
        sizes=SIZES | (sizes := known("sizes")) | _named(Size, own["sizes"], SIZES, sizes),
        corpora=CORPORA | (corpora := known("corpora")) | _named(Data, own["corpora"], CORPORA, corpora),
        networks=known("networks") | _networks(own["networks"], main.path.parent, file),
    )
    own_layers = [] if file is main else [own["resources"]]
    over = [_for(file, main, parts) for parts in (site, main.sections["resources"])]
    layers = [*(_of_own_sizes(one, "resources") for one in included), *own_layers, *over]
    resources, kind_resources = read_resources(layers, catalogue.sizes, (*catalogue.later_stages, *absent()))
    recipes = {name: part for one in included for name, part in _of_own_sizes(one, "recipes").items()} | own["recipes"]
    _check_recipes(own["recipes"], dict.fromkeys((*catalogue.sizes, *own["sizes"])))
    return Scope(
        catalogue=catalogue,
        recipes={name: part.node for name, part in recipes.items() if part.node and isinstance(part.value, dict)},
        resources=resources,
        kind_resources=kind_resources,
        corpora={name: part.node for name, part in file.visible("corpora").items() if part.node},
        grids=file.names("grids"),
    )


def _for(file: File, main: File, resources: Mapping[str, Part]) -> dict[str, Part]:
    """Return the resources that experiments.yaml or the site has for the sizes that a file may name, by its names.

    The site's profile may name sizes of papers that are not included.
    """
    sizes = {name for one in main.with_included for name in one.own("sizes")}
    if resources is not main.sections["resources"] and not resources.keys() <= {ALL, *SIZES, *sizes}:
        sizes |= {name for pack in known_packs().values() for name in pack.names("sizes")}
    named = {name: resources[known] for name, known in file.names("sizes").items() if known in resources}
    return named | {name: part for name, part in resources.items() if name not in sizes}


def _of_own_sizes(file: File, section: str) -> dict[str, Part]:
    """Return the recipes or the resources of the sizes that a file declares, by the names that other files use."""
    parts = file.sections[section]
    return {file.prefix + name: parts[name] for name in file.sections["sizes"] if name in parts}


def _named(
    cls: type[_T], entries: Mapping[str, Part], built_in: Mapping[str, _T], known: Mapping[str, _T]
) -> dict[str, _T]:
    """Return the sizes or corpora of a file. Built-in names cannot be redefined: published results refer to them."""
    found: dict[str, _T] = {}
    # A mixture may name corpora that follow it.
    for name, child in sorted(entries.items(), key=lambda item: "mixture" in children(item[1].node)):
        if name in built_in:
            child.report("is built in; choose another name", child.key)
        elif (made := child.instance(cls, {**built_in, **known, **found})) is not None:
            found[name] = made
    return found


def _networks(entries: Mapping[str, Part], root: Path, file: File) -> dict[str, Network]:
    """Return the networks of a file, with the shapes of their folders; networks without a pin are reported.

    root: the folder of experiments.yaml. The networks of a pack lie in its own folder. They are not read without the
    extension that they need.
    """
    found: dict[str, Network] = {}
    for name, child in entries.items() if not missing(NETWORK) else ():
        if made := child.instance(part(NETWORK)):
            made, problems = made.declared(root, file.pack.folder if file.pack else None)
            for problem in problems:
                child.report(problem.message, None, *map(str, problem.path))
            found |= {} if problems else {name: made}
    return found


def _check_recipes(recipes: Mapping[str, Part], sizes: Collection[str]) -> None:
    """Report what is wrong with recipes. They may be partial; what is still missing is reported for the cell."""
    for name, child in recipes.items():
        if name not in sizes:
            child.report(f"no size '{name}'; {nearest(name, sizes)}", child.key)
        found: list[Problem] = []
        replace(child, problems=found).instance(Optim)
        child.problems.extend(problem for problem in found if not problem.absent)
