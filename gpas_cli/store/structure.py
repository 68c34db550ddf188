"""JSON objects <-> frozen dataclasses, for the files of run directories.

Reading checks that every field is there and has its type, and nothing more. What a file has beyond the fields of its
class was written by a newer version: it is kept in `Record.unread`, nested fields included, and written again.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gpas_cli.errors import StoreError

SHOWN_CHARACTERS = 60  # of a value that an error message quotes
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(None): "null"}

T = TypeVar("T")
R = TypeVar("R", bound="Record")
Convert = Callable[[Any, str], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """Base class of the records. `unread` has what the file contains beyond the fields of the class."""

    unread: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)


ABSENT = {"absent": True}  # metadata of a field that is not written while it has its default


class _Mismatch(Exception):
    """A value that does not fit its field, or a field that is missing; the text names it."""


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    convert: Convert
    required: bool
    absent: bool
    default: Any


def from_mapping(cls: type[R], values: Mapping[str, Any], where: Path | str) -> R:
    """Return the record in `values`, which come from the file `where`.

    Raises StoreError, with the names of the file and the field, if a field is missing or has the wrong type.
    """
    try:
        return typing.cast(R, _build(cls, values, ""))
    except _Mismatch as mismatch:
        raise StoreError(f"{where}: {mismatch}") from None


def to_mapping(record: Record) -> dict[str, Any]:
    """Return a record as JSON-ready mappings and lists, with what its file had beyond it."""
    return _merged(_plain(record), record.unread)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = ((field, getattr(value, field.name)) for field in _fields(type(value)))
        return {field.name: _plain(own) for field, own in found if not (field.absent and own == field.default)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _merged(values: dict[str, Any], unread: Mapping[str, Any]) -> dict[str, Any]:
    for name, more in unread.items():
        own = values.get(name)
        values[name] = _merged(own, more) if isinstance(own, dict) and isinstance(more, Mapping) else more
    return values


@cache
def _fields(cls: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return tuple(
        _Field(
            field.name,
            _converter(hints[field.name]),
            field.default is missing and field.default_factory is missing,
            bool(field.metadata.get("absent")),
            field.default,
        )
        for field in dataclasses.fields(cls)
        if field.name != "unread"
    )


def _build(cls: type, values: Any, name: str) -> Any:
    if not isinstance(values, Mapping):
        raise _mismatch(name, "an object", values)
    fields = _fields(cls)
    prefix = f"{name}." if name else ""
    if missing := [f"'{prefix}{field.name}'" for field in fields if field.required and field.name not in values]:
        raise _Mismatch(f"no field{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    found = {each.name: each.convert(values[each.name], prefix + each.name) for each in fields if each.name in values}
    if issubclass(cls, Record):
        found["unread"] = _unread(values, {field.name: found.get(field.name) for field in fields})
    return cls(**found)


def _unread(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `values` have beyond the fields `known`, and beyond those of the dataclasses among them."""
    found = {}
    for name, value in values.items():
        own = known.get(name)
        if name not in known:
            found[name] = value
        elif dataclasses.is_dataclass(own) and isinstance(value, Mapping):
            nested = {field.name: getattr(own, field.name) for field in _fields(typing.cast(type, type(own)))}
            if more := _unread(value, nested):
                found[name] = more
    return found


def _converter(hint: Any) -> Convert:
    """Return a function that checks a value of this type, named for messages, and returns it as the type."""
    if hint is Any:
        return lambda value, name: value
    if dataclasses.is_dataclass(hint):
        return lambda value, name: _build(typing.cast(type, hint), value, name)
    if isinstance(hint, types.UnionType):
        return _union(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _sequence(_converter(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_converter(arguments[1]))
    return _scalar(hint)


def _scalar(cls: type) -> Convert:
    accepted = (int, float) if cls is float else cls

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, accepted) and (cls is bool or not isinstance(value, bool)):
            return value
        raise _mismatch(name, NAMES[cls], value)

    return convert


def _union(hint: types.UnionType) -> Convert:
    converters = [_converter(option) for option in typing.get_args(hint) if option is not type(None)]
    nullable = type(None) in typing.get_args(hint)

    def convert(value: Any, name: str) -> Any:
        if value is None and nullable:
            return None
        for converter in converters[:-1]:
            try:
                return converter(value, name)
            except _Mismatch:
                continue
        return converters[-1](value, name)

    return convert


def _sequence(item: Convert) -> Convert:
    def convert(value: Any, name: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _mismatch(name, "a list", value)
        return tuple(item(each, f"{name}[{i}]") for i, each in enumerate(value))

    return convert


def _mapping(item: Convert) -> Convert:
    def convert(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise _mismatch(name, "an object", value)
        return {str(key): item(each, f"{name}.{key}") for key, each in value.items()}

    return convert


def _mismatch(name: str, wanted: str, value: Any) -> _Mismatch:
    text = json.dumps(value, default=repr)
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return _Mismatch(f"field '{name}' is {shown}; expected {wanted}")
