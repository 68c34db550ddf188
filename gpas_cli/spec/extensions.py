"""The extensions: capabilities in folders of their own, around an engine that imports none of them; and the kinds of
stage and metrics that there are with them.

An extension has a head, one `Extension` called EXTENSION in the `__init__` of its folder. IN_WHEEL names those of this
package; each of them may be missing. Other packages register theirs as entry points of the group
`gpas_cli.extensions`: the name, and "module:EXTENSION".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.spec.downstream import task_title
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.stage import STAGE_KINDS, Metric, StageKind

# Name -> the settings of cells and the commands that it brings, so that a missing one can be named.
IN_WHEEL: dict[str, tuple[str, ...]] = {"glue": ("glue",), "quantised": ("quantised",)}
_PACKAGE = "gpas_cli.extensions"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The head of an extension: what it adds to the engine, as data."""

    name: str
    about: str
    """One line: what it is for."""
    page: str = ""
    """Its page in docs/."""
    requires: tuple[str, ...] = ()
    """The other extensions that it imports."""
    stages: tuple[StageKind, ...] = ()
    schemes: Mapping[str, type[Scheme]] = field(default_factory=dict)
    schedulers: Mapping[str, str] = field(default_factory=dict)
    """Name -> the class, "module:Class"."""
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
            raise GpasError(f"the extension '{point.name}' of {package} is not a gpas_cli.spec.extensions.Extension")
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
    yield "stage kind", {kind.name for kind in head.stages}
    yield "scheduler", set(head.schedulers)
    yield "paper", set(head.papers)


def of_stage(kind: StageKind) -> tuple[str, ...]:
    """Return the extensions that a stage uses, of this package by name, of others by their package; () for others."""
    if kind.origin:
        return (kind.origin.name,) if kind.origin.name in installed() else ()
    own = next((one for one in extensions().values() if kind in one.stages), None)
    return (own.name, *own.requires) if own else ()


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


@cache
def stage_kinds() -> dict[str, StageKind]:
    """Return the kinds of this package by name, in the order in which a cell's stages are run, trainings first."""
    found = dict(STAGE_KINDS)
    for kind in (kind for one in extensions().values() for kind in one.stages):
        names = list(found)
        later = names[names.index(kind.before) :] if kind.before else []
        found = {**found, kind.name: kind, **{name: found.pop(name) for name in later}}
    return found


@cache
def metrics() -> dict[str, Metric]:
    """Return the metrics of this package by name."""
    return {metric.name: metric for kind in stage_kinds().values() for metric in kind.metrics}


@cache
def measured_columns() -> tuple[str, ...]:
    """Return the names of a table's columns that are no axis of its grid, but what a later stage measures."""
    return tuple(dict.fromkeys(kind.columns for kind in stage_kinds().values() if kind.columns))


def column_title(label: str) -> str:
    """Return the title of a column of a table: of a task, a text or what else a stage measures."""
    titles = (kind.titles[label] for kind in stage_kinds().values() if label in kind.titles)
    return next(titles, task_title(label))


def main_result(results: Mapping[str, float]) -> tuple[Metric, float] | None:
    """Return the number that stands for the result of a stage: a main metric of its kind, and its value.

    For a metric by task it is the last value: an average, if there is one. None if no main metric is reported.
    """
    for kind in stage_kinds().values():
        for main in (kind.metrics[0], *(metric for metric in kind.metrics if metric.main)):
            values = [value for name, value in results.items() if name.partition("/")[0] == main.name]
            if values:
                return main, float(values[-1])
    return None
