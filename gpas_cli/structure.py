"""JSON <-> frozen dataclasses: the records of run directories, the events of journals, what commands print with --json.

    plain           value -> data for `json`
    to_mapping      record -> JSON object, with what the reader did not know (`Record.unread`, nested fields included)
    from_mapping    JSON object -> record; checks that every field is there and has its type, and nothing more

`Annotated` gives a field a description, or as a tuple the values that a string may have; `HIDDEN`, `ABSENT`, `OPTIONAL`
and `FLAT` say how it is written.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from gpas_cli.errors import StoreError

_SHOWN_CHARACTERS = 60  # of a value that an error message quotes
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(None): "null"}

_R = TypeVar("_R")
_Convert = Callable[[Any, str], Any]


# Metadata of fields: never written; not written in records, or in documents, while it has its default; replaced by its
# own fields.
HIDDEN, ABSENT, OPTIONAL, FLAT = {"hidden": True}, {"absent": True}, {"optional": True}, {"flat": True}
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_UNIONS = (types.UnionType, typing.Union)
_LARGEST = 2**1023  # integers up to this one are also 64-bit floats


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Frozen:
    """Base class of frozen dataclasses: each subclass is one. They share comparison, hash and text, so that the 180
    that `gpas status` makes at its start take 0.06 s in place of 0.09.

    A class of another package that neither names `Frozen` nor says `kw_only` decorates itself, as subclasses of
    dataclasses usually do: a dataclass cannot be decorated again.
    """

    def __init_subclass__(cls, *, kw_only: bool | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        own, package = (name.partition(".")[0] for name in (cls.__module__, __name__))
        if own == package or kw_only is not None or Frozen in cls.__bases__:
            dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=bool(kw_only))(cls)

    def __eq__(self, other: object) -> bool:
        return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_compared(self, hashed=True))

    def __repr__(self) -> str:
        shown = [field.name for field in dataclasses.fields(typing.cast(Any, self)) if field.repr]
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _compared(value: Any, *, hashed: bool = False) -> tuple[Any, ...]:
    cls: Any = type(value)
    return tuple([getattr(value, name) for name in _names(cls, hashed)])


@cache
def _names(cls: Any, hashed: bool) -> list[str]:
    """Return the names of the fields that are compared, or hashed, which by default are those."""
    return [f.name for f in dataclasses.fields(cls) if (f.hash if hashed and f.hash is not None else f.compare)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
class Document(Frozen):
    """Base class of what commands print with --json: each subclass is a frozen dataclass with keywords only."""

    def __init_subclass__(cls, *, kw_only: bool = True, **options: Any) -> None:
        super().__init_subclass__(kw_only=kw_only, **options)


StateJson = Annotated[
    str, ("missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown")
]
CellStateJson = Annotated[
    str,
    ("missing", "queued", "running", "interrupted", "done", "diverged", "not finite", "failed", "cancelled", "unknown"),
    "not finite: diverged in the first tenth of its updates, which is no result; counts and --state say diverged",
]
Time = Annotated[float, "unix time, seconds"]


class DocumentJson(Document):
    """A whole document, which stands beside the function that makes it; `tools/schemas.py` names that of each command.

    It begins with its version, which grows when a reader of the old form would misread the new one; new fields may come
    at any time.
    """

    schema: Annotated[Literal[1], "version of the document's form"] = 1


class Record(Frozen, kw_only=True):
    """Base class of the records. `unread` has what the file contains beyond the fields of the class."""

    unread: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False, metadata=HIDDEN)


Number = Annotated[float, str]  # JSON has no NaN, so this may be one of the _WORDS


class _Mismatch(Exception):
    """A value that does not fit its field, or a field that is missing; the text names it."""


class _Field(Frozen):
    name: str
    convert: _Convert
    exact: type | None  # values of this class need no conversion, which saves half of the time of a record
    required: bool
    nested: bool  # whether the value may be a dataclass


def from_mapping(cls: type[_R], values: Mapping[str, Any], where: Path | str, *, ignored: Set[str] = frozenset()) -> _R:
    """Return the record in `values`, which come from the file `where`. Values with the names `ignored` are not kept.

    Raises StoreError, with the names of the file and the field, if a field is missing or has the wrong type.
    """
    try:
        made: _R = _build(cls, values, "", ignored)
        return made
    except _Mismatch as mismatch:
        raise StoreError(f"{where}: {mismatch}") from None


def to_mapping(record: Record) -> dict[str, Any]:
    """Return a record as JSON-ready mappings and lists, with the unread fields of its file."""
    return _merged(plain(record, omit="absent"), record.unread)


def plain(value: Any, text: Callable[[str], str] = str, *, omit: str = "optional") -> Any:
    """Return a value as data for `json`: dataclasses as mappings, numbers that are not finite as strings, array scalars
    as numbers.

    text: what becomes of each text, also of names. omit: which fields are left out while they have their defaults.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str | Path):
        return text(str(value))
    if isinstance(value, Mapping):
        return {text(str(name)): plain(item, text, omit=omit) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return dict(_written(value, text, omit))
    if hasattr(value, "item"):  # of numpy and torch, without importing either
        return plain(value.item())
    return [plain(item, text, omit=omit) for item in value]


def _written(value: Any, text: Callable[[str], str], omit: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if "flat" in field.metadata:
            yield from _written(own, text, omit)
        elif "hidden" not in field.metadata and not (omit in field.metadata and own == field.default):
            yield field.name, plain(own, text, omit=omit)


def _merged(values: dict[str, Any], unread: Mapping[str, Any]) -> dict[str, Any]:
    for name, more in unread.items():
        own = values.get(name)
        values[name] = _merged(own, more) if isinstance(own, dict) and isinstance(more, Mapping) else more
    return values


@cache
def _fields(cls: Any) -> Mapping[str, _Field]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: _field(field, hints[field.name]) for field in dataclasses.fields(cls) if field.name != "unread"}


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    missing = dataclasses.MISSING
    return _Field(
        field.name,
        _converter(hint),
        _exact(hint),
        required=field.default is missing and field.default_factory is missing,
        nested=any(map(dataclasses.is_dataclass, (hint, *typing.get_args(hint)))),
    )


def _build(cls: type, values: Any, name: str, ignored: Set[str] = frozenset()) -> Any:
    if type(values) is not dict and not isinstance(values, Mapping):
        raise _mismatch(name, "an object", values)
    fields = _fields(cls)
    prefix = f"{name}." if name else ""
    found: dict[str, Any] = {}
    unread: dict[str, Any] = {}
    for key, value in values.items():
        field = fields.get(key)
        if field is not None:
            own = found[key] = value if type(value) is field.exact else field.convert(value, prefix + key)
            if field.nested and (more := _unread(value, own)):
                unread[key] = more
        elif key not in ignored:
            unread[key] = value
    if len(found) < len(fields):
        missing = [f"'{prefix}{name}'" for name, field in fields.items() if field.required and name not in found]
        if missing:
            raise _Mismatch(f"no field{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    if issubclass(cls, Record):
        found["unread"] = unread
    return cls(**found)


def _unread(value: Any, own: Any) -> dict[str, Any]:
    """Return what `value` has beyond the fields of the dataclass `own`, and of the dataclasses in it."""
    if not dataclasses.is_dataclass(own) or not isinstance(value, Mapping):
        return {}
    fields = _fields(typing.cast(Any, type(own)))
    nested = {name: _unread(inner, getattr(own, name)) for name, inner in value.items() if name in fields}
    return {name: inner for name, inner in value.items() if name not in fields} | {
        name: more for name, more in nested.items() if more
    }


def _exact(hint: Any) -> type | None:
    """Return the class whose values a field of this type has as they are: of a union, the first one."""
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else [hint]
    return next((float if one == Number else one for one in options if one == Number or one in _NAMES), None)


def _converter(hint: Any) -> _Convert:
    """Return a function that checks a value of this type, named for messages, and returns it as the type."""
    if hint is Any:
        return lambda value, name: value
    if hint == Number:
        return _number
    if dataclasses.is_dataclass(hint):
        return lambda value, name: _build(typing.cast(type, hint), value, name)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return _union(arguments)
    if origin is not None and issubclass(origin, Sequence):
        return _sequence(arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    return _scalar(hint)


def _scalar(cls: type) -> _Convert:
    accepted = (int, float) if cls is float else cls

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, accepted) and (cls is bool or not isinstance(value, bool)):
            return value
        raise _mismatch(name, _NAMES[cls], value)

    return convert


def _number(value: Any, name: str) -> Any:
    if type(value) is float or (type(value) is int and abs(value) <= _LARGEST):
        return value
    if type(value) is str and value in _WORDS:
        return _WORDS[value]
    raise _mismatch(name, _NAMES[float], value)


def _union(options: Sequence[Any]) -> _Convert:
    converters = [_converter(option) for option in options if option is not type(None)]
    nullable = type(None) in options

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


def _sequence(hint: Any) -> _Convert:
    item, exact = _converter(hint), _exact(hint)

    def convert(value: Any, name: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _mismatch(name, "a list", value)
        return tuple(each if type(each) is exact else item(each, f"{name}[{i}]") for i, each in enumerate(value))

    return convert


def _mapping(hint: Any) -> _Convert:
    item, exact = _converter(hint), _exact(hint)

    def convert(value: Any, name: str) -> Any:
        if not isinstance(value, Mapping):
            raise _mismatch(name, "an object", value)
        return {str(key): each if type(each) is exact else item(each, f"{name}.{key}") for key, each in value.items()}

    return convert


def _mismatch(name: str, wanted: str, value: Any) -> _Mismatch:
    text = json.dumps(value, default=repr)
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return _Mismatch(f"field '{name}' is {shown}; expected {wanted}")
