"""JSON documents: the types that several of them share, their plain data, and their JSON Schema.

A document is a TypedDict whose name ends in Json, or a dataclass; `Annotated` adds a description, or the tuple of the
values that a string may have, or a further type, or with `From` the attribute that fills it. It stands beside the
function that makes it; `gpas_cli.cli.commands.schema.DOCUMENTS` names the document of each command. `schema` grows when
a reader of the old form would misread the new one; new fields may come at any time.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

_D = TypeVar("_D")


@dataclasses.dataclass(frozen=True)
class From:
    """In `Annotated`: the attribute that a field of a document has its value from, such as "summary.mean"."""

    path: str


StateJson = Annotated[
    str, ("missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown")
]
CellStateJson = Annotated[
    str,
    ("missing", "queued", "running", "interrupted", "done", "diverged", "not finite", "failed", "cancelled", "unknown"),
    "not finite: diverged in the first tenth of its updates, which is no result; counts and --state say diverged",
]
NumberJson = Annotated[float, str]  # a number that is not finite is the string "nan", "inf" or "-inf"
Time = Annotated[float, "unix time, seconds"]


class DocumentJson(TypedDict):
    """Every document begins with its version."""

    schema: Annotated[Literal[1], "version of the document's form"]


class CellNameJson(TypedDict):
    """A cell of a grid; a cell that several grids have is in the list of each."""

    key: Annotated[str, "content key: 16 hex digits", From("entry.key")]
    grid: Annotated[str, From("entry.grid")]
    name: Annotated[str, "the name within the grid; grid/name is unique", From("entry.name")]


class LabelledCellJson(CellNameJson):
    """A cell with its label on every axis."""

    axes: Annotated[dict[str, Any], From("entry.axes")]


class ScoreJson(TypedDict):
    """One metric of one task."""

    task: str
    metric: Annotated[str, "acc, acc_norm, perplexity, word_perplexity, ..., skipped (a number of questions)"]
    value: Annotated[NumberJson, "accuracies are fractions"]
    stderr: Annotated[NumberJson | None, "the standard error, null if unknown"]
    examples: Annotated[int, "how many questions were scored"]
    shots: Annotated[int, "answered examples before each question"]
    task_version: str
    harness: Annotated[str, "the program that scored the task, its version and, of a text, how"]


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """Return a document as data for `json`: dataclasses as mappings, numbers that are not finite as strings.

    text: what becomes of each text, also of names.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str | Path):
        return text(str(value))
    if isinstance(value, Mapping):
        return {text(str(name)): plain(item, text) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), text) for field in dataclasses.fields(value)}
    return [plain(item, text) for item in value]


def filled(document: type[_D], *sources: object, **fields: Any) -> _D:
    """Return a document with these fields; the others are the attributes of their names of the first source with one.

    `From` names another attribute. Objects in place of documents are filled in the same way, in lists and mappings too.
    An empty text is null in a field that may be null.
    A field that no source has is null if one of the sources is None, and is otherwise left out. `schema` is 1.
    """
    given: dict[str, Any] = {"schema": 1, **fields}
    found: dict[str, Any] = {}
    for name, (path, fill) in _filling(cast("Hashable", document)).items():
        value = given[name] if name in given else _attribute(path, sources)
        if value is not _ABSENT:
            found[name] = fill(value) if fill else value
    return cast("_D", {**found, **{name: value for name, value in fields.items() if name not in found}})


_ABSENT = object()
_Fill = Callable[[Any], Any]


@cache
def _filling(document: Hashable) -> dict[str, tuple[list[str], _Fill | None]]:
    """Return by field the attribute that it is filled from, and the function that makes a document of its value."""
    hints = typing.get_type_hints(document, include_extras=True)
    return {name: (_path(hint) or [name], _filler(hint)) for name, hint in hints.items()}


def _path(hint: Any) -> list[str]:
    if typing.get_origin(hint) is typing.NotRequired:
        return _path(typing.get_args(hint)[0])
    remarks = getattr(hint, "__metadata__", ())
    return next((remark.path.split(".") for remark in remarks if isinstance(remark, From)), [])


def _filler(hint: Any) -> _Fill | None:
    if hint == str | None:
        return lambda text: text or None
    if typing.is_typeddict(hint):
        return lambda value: value if isinstance(value, Mapping) else filled(hint, value)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    fill = next(filter(None, map(_filler, arguments)), None)
    if fill is None or origin in (Annotated, typing.NotRequired):
        return fill
    if origin is list:
        return lambda values: [fill(value) for value in values]
    if origin is dict:
        return lambda values: {name: fill(value) for name, value in values.items()}
    return lambda value: None if value is None else fill(value)


def _attribute(path: list[str], sources: tuple[object, ...]) -> Any:
    for source in sources:
        if hasattr(source, path[0]):
            for name in path:
                source = getattr(source, name, None)
            return source
    return None if None in sources else _ABSENT


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = {
    str: "string", Path: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null",
}  # fmt: skip


def json_schema(document: type, *, closed: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a document; a `closed` one allows no further fields, which a published one does."""
    shared: dict[str, Any] = {}
    top = _object(document, shared, closed)
    return {"$schema": _DRAFT, "title": _title(document), **top, **({"$defs": shared} if shared else {})}


def _object(of: type, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    fields = typing.get_type_hints(of, include_extras=True)
    return {
        "description": " ".join((of.__doc__ or "").split()),
        "type": "object",
        "properties": {name: _schema(hint, shared, closed) for name, hint in fields.items()},
        "required": [name for name, hint in fields.items() if typing.get_origin(hint) is not typing.NotRequired],
        **({"additionalProperties": False} if closed else {}),
    }


def _schema(hint: Any, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.NotRequired:
        return _schema(arguments[0], shared, closed)
    if origin is typing.Annotated:
        described = _schema(arguments[0], shared, closed)
        for remark in arguments[1:]:
            described |= {"description": remark} if isinstance(remark, str) else {}
            described = {"enum": list(remark)} if isinstance(remark, tuple) else described
            described = _union([described, {"type": _NAMES[remark]}]) if remark in _NAMES else described
        return described
    if hint is Any:
        return {}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return _union([_schema(argument, shared, closed) for argument in arguments])
    if origin in (list, tuple):
        items = [_schema(item, shared, closed) for item in dict.fromkeys(arguments) if item is not ...]
        return {"type": "array", "items": items[0] if len(items) == 1 else _union(items)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], shared, closed)}
    return _reference(hint, shared, closed)


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(part) == {"type"} for part in parts):
        types = [[part["type"]] if isinstance(part["type"], str) else part["type"] for part in parts]
        return {"type": [one for several in types for one in several]}
    return {"anyOf": parts}


def _reference(of: type, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    if not (typing.is_typeddict(of) or dataclasses.is_dataclass(of)):
        raise TypeError(f"no JSON Schema for {of!r}")
    title = _title(of)
    if title not in shared:
        shared[title] = {}  # against types that contain themselves
        shared[title] = _object(of, shared, closed)
    return {"$ref": f"#/$defs/{title}"}


def _title(of: type) -> str:
    """Return the name of a type in schemas, where all types are JSON."""
    return of.__name__.removeprefix("_").removesuffix("Json")
