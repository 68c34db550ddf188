"""JSON documents: the types that several of them share, their plain data, and their JSON Schema.

A document is a TypedDict whose name ends in Json, or a dataclass; `Annotated` adds a description, or the tuple of the
values that a string may have. It stands beside the function that makes it;
`gpas_cli.cli.commands.schema.DOCUMENTS` names the document of each command. `schema` grows when a reader of the old
form would misread the new one; new fields may come at any time.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

_D = TypeVar("_D")

StateJson = Annotated[
    str, ("missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown")
]
CellStateJson = Annotated[
    str,
    ("missing", "queued", "running", "interrupted", "done", "diverged", "not finite", "failed", "cancelled", "unknown"),
    "not finite: diverged in the first tenth of its updates, which is no result; counts and --state say diverged",
]
NumberJson = float | str  # a number that is not finite is the string "nan", "inf" or "-inf"
Time = Annotated[float, "unix time, seconds"]


class DocumentJson(TypedDict):
    """Every document begins with its version."""

    schema: Annotated[Literal[1], "version of the document's form"]


class CellNameJson(TypedDict):
    """A cell of a grid; a cell that several grids have is in the list of each."""

    key: Annotated[str, "content key: 16 hex digits"]
    grid: str
    name: Annotated[str, "the name within the grid; grid/name is unique"]


class LabelledCellJson(CellNameJson):
    """A cell with its label on every axis."""

    axes: dict[str, Any]


class ScoreJson(TypedDict):
    """One metric of one task."""

    task: str
    metric: Annotated[str, "acc, acc_norm, perplexity, word_perplexity, ..., skipped (a number of questions)"]
    value: Annotated[NumberJson, "accuracies are fractions"]
    stderr: Annotated[NumberJson | None, "the standard error, null if unknown"]
    examples: Annotated[int, "how many questions were scored"]
    shots: Annotated[int, "answered examples before each question"]
    task_version: str
    harness: Annotated[str, "the program that scored the task, and its version"]


def plain(value: Any) -> Any:
    """Return a document as data for `json`: dataclasses as mappings, numbers that are not finite as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else [plain(item) for item in value]


def filled(document: type[_D], *sources: object, **fields: Any) -> _D:
    """Return a document with these fields; the others are the attributes of their names of the first source with one.

    A field that no source has is null if one of the sources is None, and is otherwise left out. `schema` is 1.
    """
    found: dict[str, Any] = {"schema": 1, **fields}
    for name in document.__annotations__.keys() - found.keys():
        holder = next((source for source in sources if hasattr(source, name)), None)
        if holder is not None or None in sources:
            found[name] = getattr(holder, name, None)
    return cast("_D", {name: found[name] for name in (*document.__annotations__, *fields) if name in found})


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
            described = {**described, "description": remark} if isinstance(remark, str) else {"enum": list(remark)}
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
        return {"type": [part["type"] for part in parts]}
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
