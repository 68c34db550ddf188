"""Plugins: schemes and kinds of stage from a Python file that experiments.yaml names, or from an installed package.

A file defines `SCHEMES = {"name": Class}` like `gpas_cli.spec.norm`, `STAGE_KINDS = {"name": StageKind(...)}` like
`gpas_cli.spec.stage`, or both. It may import installed packages, but not files beside it: its text is recorded with
every attempt that needs it, and executed from that record. A package declares the same in an extension
(`gpas_cli.extension`).

The key of a cell with a plugin scheme contains the wiring of each layer, not the scheme's text or name, so a changed
comment keeps the key and a changed equation does not. The key of a plugin stage contains its name and its parameters: a
kind that computes something else needs another name, or a parameter that says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pkgutil
import sys
import traceback
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import ModuleType
from typing import Any

from gpas_cli import extension
from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.spec import parse
from gpas_cli.spec.extensions import metrics, stage_kinds
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import SCHEMES, PluginOrigin, Scheme
from gpas_cli.spec.section import Section
from gpas_cli.spec.stage import TOKENISE, TRAINING_PARTS, StageKind
from gpas_cli.structure import Frozen


class Plugin(Frozen):
    """What a plugin file, or the installed packages together, define."""

    schemes: Mapping[str, type[Scheme]] = field(default_factory=dict)
    stage_kinds: Mapping[str, StageKind] = field(default_factory=dict)


def known_schemes() -> dict[str, type[Scheme]]:
    """Return the schemes of this and of installed packages. Raises GpasError if an installed one is unusable."""
    return {**SCHEMES, **installed().schemes}


def known_stage_kinds() -> dict[str, StageKind]:
    """Return the stage kinds of this and of installed packages. Raises GpasError if an installed one is unusable."""
    return {**stage_kinds(), **installed().stage_kinds}


@cache
def plugin_of(name: str, source: str) -> Plugin:
    """Return what a plugin file called `name` defines, after executing its text `source`.

    Raises InvalidExperiments if execution fails, or if the file defines nothing or something unusable.
    """
    module = _run(name, source)
    schemes, kinds = getattr(module, "SCHEMES", {}), getattr(module, "STAGE_KINDS", {})
    if not isinstance(schemes, dict) or not isinstance(kinds, dict) or not (schemes or kinds):
        wanted = "SCHEMES = {'name': Class}", "STAGE_KINDS = {'name': StageKind(...)}"
        raise _unusable(name, [f"defines no {' and no '.join(wanted)}"])
    origin = PluginOrigin(name, source)
    return Plugin(_with_origin(schemes, origin), _kinds_with_origin(kinds, origin))


@cache
def installed() -> Plugin:
    """Return what the extensions of installed packages declare. Raises GpasError if some of it is unusable."""
    schemes: dict[str, type[Scheme]] = {}
    kinds: dict[str, StageKind] = {}
    for package, one in extension.installed().items():
        origin = PluginOrigin(package)
        schemes |= _with_origin({name: _resolved(place, package) for name, place in one.schemes.items()}, origin)
        kinds |= _kinds_with_origin({name: _resolved(place, package) for name, place in one.stages.items()}, origin)
    return Plugin(schemes, kinds)


def _resolved(place: str, package: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except Exception as error:
        raise GpasError(f"{place} of {package} cannot be loaded: {_described(error)}") from error


def _run(name: str, source: str) -> ModuleType:
    """Execute the file as a module, registered in sys.modules so that its annotations can be resolved."""
    module = ModuleType(f"gpas_plugin_{hashlib.sha256(f'{name}/{source}'.encode()).hexdigest()[:16]}")
    module.__file__ = name
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        del sys.modules[module.__name__]
        if not isinstance(error, Exception | SystemExit):
            raise
        line = error.lineno if isinstance(error, SyntaxError) else _line(name, error)
        raise _unusable(f"{name}:{line}" if line else name, [_described(error)]) from error
    return module


def _line(name: str, error: BaseException) -> int | None:
    """Return the innermost line of the file in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == name), None)


def _described(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}"


def _unusable(name: str, messages: list[str]) -> InvalidExperiments:
    return InvalidExperiments([Problem((), f"{name}: {message}") for message in messages])


def _with_origin(declared: Mapping[Any, Any], origin: PluginOrigin) -> dict[str, type[Scheme]]:
    """Set the origin of the declared classes and return them. Raises InvalidExperiments unless all are schemes."""
    faults = [f"scheme {name!r} {fault}" for name, cls in declared.items() for fault in _faults(name, cls)]
    if faults:
        raise _unusable(origin.name, faults)
    for cls in declared.values():
        cls.origin = origin
    return dict(declared)


def _kinds_with_origin(declared: Mapping[Any, Any], origin: PluginOrigin) -> dict[str, StageKind]:
    """Return the declared kinds with their origin. Raises InvalidExperiments unless all are usable."""
    faults = [f"stage {name!r} {fault}" for name, kind in declared.items() for fault in _kind_faults(name, kind)]
    if faults:
        raise _unusable(origin.name, faults)
    return {
        name: dataclasses.replace(kind, parameters=_as_section(kind.parameters), origin=origin)
        for name, kind in declared.items()
    }


def _as_section(cls: type) -> type:
    """Return the class with the methods of Section, with its own where it has them."""
    if issubclass(cls, Section):
        return cls
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return dataclass(frozen=True, kw_only=True)(type(cls.__name__, (cls, Section), named))


def _kind_faults(name: Any, kind: Any) -> Iterator[str]:
    yield from _name_faults(name, (*stage_kinds(), TOKENISE, *(own.name for own in fields(Model)), *TRAINING_PARTS))
    if not isinstance(kind, StageKind):
        yield "is not a gpas_cli.spec.stage.StageKind"
        return
    if kind.name != name:
        yield f"has the name '{kind.name}'"
    if not kind.runner:
        yield "has no runner"
    if not _frozen(kind.parameters):
        yield "has no parameters, a class decorated with @dataclass(frozen=True, kw_only=True)"
    else:
        assert kind.parameters is not None
        yield from _field_faults(kind.parameters)
    yield from (f"has the metric '{m.name}', which gpas_cli has" for m in kind.metrics if m.name in metrics())


def _name_faults(name: Any, taken: Iterable[str]) -> Iterator[str]:
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        yield "is not a name of letters, digits and dashes"
    elif name in taken:
        yield "is built in; choose another name"


def _frozen(cls: Any) -> bool:
    return isinstance(cls, type) and getattr(cls.__dict__.get("__dataclass_params__"), "frozen", False)


def _faults(name: Any, cls: Any) -> Iterator[str]:
    yield from _name_faults(name, SCHEMES)
    if not isinstance(cls, type) or not issubclass(cls, Scheme):
        yield "is not a class derived from gpas_cli.spec.norm.Scheme"
    elif cls in SCHEMES.values():
        yield f"is gpas_cli's own {cls.__name__}; derive a class from Scheme"
    elif not _frozen(cls):
        yield "is not decorated with @dataclass(frozen=True, kw_only=True)"
    elif not isinstance(getattr(cls, "title", None), str):
        yield "has no title: ClassVar[str]"
    elif cls.wiring is Scheme.wiring:
        yield "has no method wiring(self, layer, depth)"
    else:
        yield from _field_faults(cls)


def _field_faults(cls: type) -> Iterator[str]:
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:
        yield f"has annotations that cannot be read: {_described(error)}"
        return
    for own in fields(cls):
        if not parse.supported(hints[own.name]):
            yield f"has the field '{own.name}', which is not a bool, int, float, str or a tuple of one of them"
