"""The extensions: capabilities in folders of their own, around an engine that imports none of them.

An extension has a head, one `Extension` called EXTENSION in the `__init__` of its folder. IN_WHEEL names those of this
package; each of them may be missing. Other packages register theirs as entry points of the group
`gpas_cli.extensions`: the name, and "module:EXTENSION". A head imports nothing but this file, because `gpas --help`
and what reads experiments.yaml read it; what it names is imported on use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gpas_cli.errors import GpasError
from gpas_cli.structure import Frozen

_PACKAGE = "gpas_cli.extensions"


class Brought(NamedTuple):
    """What an extension of this package brings, by name, so that a missing one is named and the others are not read."""

    settings: tuple[str, ...] = ()
    """Stages, and other sections of cells."""
    parts: tuple[str, ...] = ()
    """What else the engine asks for by name."""
    commands: tuple[str, ...] = ()


IN_WHEEL = {
    "campaigns": Brought(commands=("run claims", "run tuned")),
    "claims": Brought(commands=("claims",)),
    "contributions": Brought(),
    "curves": Brought(),
    "export": Brought(commands=("export",)),
    "figures": Brought(commands=("figure",)),
    "glue": Brought(settings=("glue",)),
    "harness": Brought(parts=("lm-evaluation-harness",)),
    "laws": Brought(commands=("figure envelope", "figure convergence", "figure scaling")),
    "layers": Brought(settings=("importance", "layers")),
    "networks": Brought(settings=("network", "start"), parts=("cell", "squad", "transformers"), commands=("evaluate",)),
    "page": Brought(commands=("report",)),
    "quantised": Brought(settings=("quantised",)),
    "roofline": Brought(parts=("roofline",)),
    "theory": Brought(parts=("identity_bounds",), commands=("theory",)),
}


class Command(Frozen):
    """A command, or a group of commands. module: where its function, or the Typer application `app`, is."""

    heading: str
    """The heading in `gpas --help`."""
    module: str
    about: str = ""
    """The first line of its help text; "" of a command in a group."""
    shows_results: bool = False
    """Whether mistakes of tables and claims in experiments.yaml end it."""


class Extension(Frozen, kw_only=True):
    """The head of an extension: what it adds to the engine, as data. References are "module:name"."""

    name: str
    requires: tuple[str, ...] = ()
    """The other extensions that it imports. Without one of them, it is missing too."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Name -> the StageKind."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Name of another part that the engine asks for -> the object: of a section of a cell the class that is read from
    it, of tasks what makes their scorers, of curves by layer that are computed the function."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    """Name -> the class."""
    schedulers: Mapping[str, str] = field(default_factory=dict)
    """Name -> the class."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Name -> command; one of a group, such as `run`, has the group's name before its own."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Name of a file of packs, such as `figures` -> the function of a pack that returns what the file declares by name,
    and raises InvalidExperiments if it is invalid."""
    problems: tuple[str, ...] = ()
    """Functions of (experiments, packs) that yield what is wrong with what the extension reads of them."""
    frames: Mapping[str, str] = field(default_factory=dict)
    """Name of a function of `gpas_cli.results` -> the function of (results, ...) that returns the data frame."""
    beside: tuple[str, ...] = ()
    """Functions that put columns beside those of a table, of (table, entries, experiments, make, warn); `make` makes
    the same table of what is recorded elsewhere, and warn is called with what cannot be shown."""
    papers: Mapping[str, str] = field(default_factory=dict)
    """Name of a pack -> the module in whose folder it lies."""


@cache
def extensions(what: str = "") -> dict[str, Extension]:
    """Return the extensions of this package that are there with all that they require, by name.

    what: "settings", "parts" or "commands" for those that bring any.
    """
    names = [name for name, brought in IN_WHEEL.items() if not what or getattr(brought, what)]
    return {name: one for name in names if (one := head(name)) and not _lost(name)}


@cache
def head(name: str) -> Extension | None:
    """Return the head of an extension of this package, None if it is missing or there is none of this name."""
    if name not in IN_WHEEL:
        return None
    try:
        found: Extension = import_module(f"{_PACKAGE}.{name}").EXTENSION
    except ModuleNotFoundError as error:
        if not f"{_PACKAGE}.{name}".startswith(error.name or "?"):
            raise
        return None
    return found


def _lost(name: str) -> str:
    """Return what is missing for an extension to be used: itself, or one that it requires, "" if nothing is."""
    one = head(name)
    return name if one is None else next(filter(None, map(_lost, one.requires)), "")


@cache
def installed() -> dict[str, Extension]:
    """Return the extensions of other packages, by the name and version of the package.

    Raises GpasError if one cannot be imported, or two bring the same name.
    """
    found: dict[str, Extension] = {}
    for package, point in _points().items():
        try:
            head = point.load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise GpasError(f"the extension '{point.name}' of {package} cannot be loaded: {why}") from error
        if not isinstance(head, Extension):
            raise GpasError(f"the extension '{point.name}' of {package} is not a gpas_cli.extension.Extension")
        for what, names in _brought(head):
            for other in found.values():
                if both := names & dict(_brought(other))[what]:
                    raise GpasError(f"two installed packages define a {what} '{min(both)}'; the second is {package}")
        found[package] = head
    return found


def _points() -> dict[str, Any]:
    from importlib import metadata  # a tenth of the CPU time of `gpas --help`, which needs none of it

    found = metadata.entry_points(group=_PACKAGE)
    return {f"{one.dist.name} {one.dist.version}" if one.dist else one.value: one for one in found}


def _brought(head: Extension) -> Iterator[tuple[str, set[str]]]:
    yield "scheme", set(head.schemes)
    yield "stage kind", set(head.stages)
    yield "scheduler", set(head.schedulers)
    yield "paper", set(head.papers)


def folder_of(package: str) -> Path:
    """Return the folder of the Python package, or the file of the module, that has an installed extension."""
    top = sys.modules[_points()[package].module.partition(".")[0]]
    place = Path(str(top.__file__))
    return place.parent if place.name == "__init__.py" else place


@cache
def absent() -> dict[str, str]:
    """Return the settings of missing extensions of this package, with these extensions."""
    named = {one: own.settings for one, own in IN_WHEEL.items() if own.settings}
    return {name: lost for one, names in named.items() if (lost := _lost(one)) for name in names}


def owner(name: str, *what: str) -> str:
    """Return the extension of this package that brings a setting, a part or `what` of this name, "" if none does."""
    groups = what or ("settings", "parts")
    return next((one for one, own in IN_WHEEL.items() if any(name in getattr(own, group) for group in groups)), "")


def missing(name: str, *what: str) -> str:
    """Return the sentence that says which missing extension a name needs, as in `owner`, "" if it needs none."""
    one = owner(name, *what)
    needed = one and _lost(one)
    return f"'{name}' needs the extension {needed}, which this installation does not have" if needed else ""


def known() -> Iterator[Extension]:
    """Yield the extensions of this package, then those of others, which are searched for only then."""
    yield from extensions().values()
    yield from installed().values()
