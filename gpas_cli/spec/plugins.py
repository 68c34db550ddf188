"""Plugin schemes: defined in a Python file that experiments.yaml names, or in an installed package.

A file defines `SCHEMES = {"name": Class}` like `gpas_cli.spec.norm`. It may import installed packages, but not files
beside it: its text is recorded with every attempt that needs it, and executed from that record. A package declares its
schemes as entry points of the group `gpas_cli.schemes`. The key of a cell with a plugin scheme contains the wiring of
each layer, not the scheme's text or name, so a changed comment keeps the key and a changed equation does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import traceback
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.spec import parse
from gpas_cli.spec.norm import SCHEMES, Origin, Scheme

ENTRY_POINT_GROUP = "gpas_cli.schemes"


def known_schemes() -> dict[str, type[Scheme]]:
    """Return the built-in schemes and those of installed packages. Raises GpasError if one of these is unusable."""
    return {**SCHEMES, **_installed()}


@cache
def schemes_in(name: str, source: str) -> Mapping[str, type[Scheme]]:
    """Return the schemes of a plugin file called `name`, after executing its text `source`.

    Raises InvalidExperiments if execution fails or a scheme is unusable.
    """
    declared = getattr(_run(name, source), "SCHEMES", None)
    if not isinstance(declared, dict) or not declared:
        raise _unusable(name, ["defines no SCHEMES = {'name': Class}"])
    return _with_origin(declared, Origin(name, source))


@cache
def _installed() -> Mapping[str, type[Scheme]]:
    found: dict[str, type[Scheme]] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            declared = {point.name: point.load()}
        except Exception as error:
            raise GpasError(f"the scheme '{point.name}' of {package} cannot be loaded: {_described(error)}") from error
        if point.name in found:
            raise GpasError(f"two installed packages define a scheme '{point.name}'; the second is {package}")
        found |= _with_origin(declared, Origin(package))
    return found


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


def _with_origin(declared: Mapping[Any, Any], origin: Origin) -> dict[str, type[Scheme]]:
    """Set the origin of the declared classes and return them. Raises InvalidExperiments unless all are schemes."""
    faults = [f"scheme {name!r} {fault}" for name, cls in declared.items() for fault in _faults(name, cls)]
    if faults:
        raise _unusable(origin.name, faults)
    for cls in declared.values():
        cls.origin = origin
    return dict(declared)


def _faults(name: Any, cls: Any) -> Iterator[str]:
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        yield "is not a name of letters, digits and dashes"
    elif name in SCHEMES:
        yield "is built in; choose another name"
    if not isinstance(cls, type) or not issubclass(cls, Scheme):
        yield "is not a class derived from gpas_cli.spec.norm.Scheme"
    elif cls in SCHEMES.values():
        yield f"is gpas_cli's own {cls.__name__}; derive a class from Scheme"
    elif not getattr(cls.__dict__.get("__dataclass_params__"), "frozen", False):
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
    for field in dataclasses.fields(cls):
        if not parse.supported(hints[field.name]):
            yield f"has the field '{field.name}', which is not a bool, int, float, str or a tuple of one of them"
