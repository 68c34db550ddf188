"""The extensions: capabilities in folders of their own, around an engine that imports none of them.

An extension has a head, one `Extension` called EXTENSION in the `__init__` of its folder. IN_WHEEL names those of this
package; each of them may be missing. Other packages register theirs as entry points of the group
`gpas_cli.extensions`: the name, and "module:EXTENSION". A head imports nothing but this file, because every command
reads it, also `gpas --help`; what it names is imported on use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

from gpas_cli.errors import GpasError

# Name -> the settings, commands and curves that it brings, so that a missing one can be named.
IN_WHEEL: dict[str, tuple[str, ...]] = {
    "campaigns": ("run claims", "run tuned"),
    "glue": ("glue",),
    "harness": ("lm-evaluation-harness",),
    "networks": ("network", "squad", "transformers", "evaluate"),
    "page": ("report", "serve"),
    "quantised": ("quantised",),
    "theory": ("theory", "identity_bounds"),
}
_PACKAGE = "gpas_cli.extensions"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, or a group of commands. module: where its function, or the Typer application `app`, is."""

    heading: str
    """The heading in `gpas --help`."""
    about: str
    """The first line of its help text."""
    module: str
    shows_results: bool = False
    """Whether mistakes of tables and claims in experiments.yaml end it."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The head of an extension: what it adds to the engine, as data. References are "module:name"."""

    name: str
    about: str
    """One line: what it is for."""
    page: str = ""
    """Its page in docs/."""
    requires: tuple[str, ...] = ()
    """The other extensions that it imports."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Name -> the StageKind."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Name of another part that the engine asks for -> the object: of a section of a cell the class that is read from
    it, of tasks what makes their scorers."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    """Name -> the class."""
    schedulers: Mapping[str, str] = field(default_factory=dict)
    """Name -> the class."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Name -> command; one of a group, such as `run`, has the group's name before its own."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Words of a command -> the type of what it prints with --json."""
    curves: Mapping[str, str] = field(default_factory=dict)
    """Name of a curve by layer that is computed, not recorded -> the function of (cell, cache, root, notify) that
    returns its values; notify is given words about the progress."""
    papers: Mapping[str, str] = field(default_factory=dict)
    """Name of a pack -> the module in whose folder it lies."""


@cache
def extensions() -> dict[str, Extension]:
    """Return the extensions of this package that are there, by name."""
    found = {}
    for name in IN_WHEEL:
        try:
            found[name] = import_module(f"{_PACKAGE}.{name}").EXTENSION
        except ModuleNotFoundError as error:
            if not f"{_PACKAGE}.{name}".startswith(error.name or "?"):
                raise
    return found


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


def _points() -> dict[str, metadata.EntryPoint]:
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
    """Return the settings and commands that the missing extensions of this package bring, with these extensions."""
    gone = IN_WHEEL.keys() - extensions().keys()
    return {name: one for one in IN_WHEEL if one in gone for name in IN_WHEEL[one]}


def missing(name: str) -> str:
    """Return the sentence that says which missing extension a setting or a command needs, "" if it needs none."""
    needed = absent().get(name, "")
    return f"'{name}' needs the extension {needed}, which this installation does not have" if needed else ""


def known() -> Iterator[Extension]:
    """Yield the extensions of this package, then those of others, which are searched for only then."""
    yield from extensions().values()
    yield from installed().values()
