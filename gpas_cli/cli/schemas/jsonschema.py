"""The types of documents as JSON Schema."""

from __future__ import annotations

import types
import typing
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def json_schema(document: type, *, closed: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a document; a `closed` one allows no further fields, which a published one does."""
    shared: dict[str, Any] = {}
    top = _object(document, shared, closed)
    return {"$schema": DRAFT, "title": _title(document), **top, **({"$defs": shared} if shared else {})}


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
        return {**_schema(arguments[0], shared, closed), "description": arguments[1]}
    if hint is Any:
        return {}
    if hint in NAMES:
        return {"type": NAMES[hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return _union([_schema(argument, shared, closed) for argument in arguments])
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], shared, closed)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], shared, closed)}
    return _reference(hint, shared, closed)


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(part) == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    return {"anyOf": parts}


def _reference(of: type, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    if not typing.is_typeddict(of):
        raise TypeError(f"no JSON Schema for {of!r}")
    title = _title(of)
    if title not in shared:
        shared[title] = {}  # against types that contain themselves
        shared[title] = _object(of, shared, closed)
    return {"$ref": f"#/$defs/{title}"}


def _title(of: type) -> str:
    """Return the name of a type in schemas, where all types are JSON."""
    return of.__name__.removesuffix("Json")
