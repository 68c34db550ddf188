"""The JSON Schema of what each command prints with --json.

    python tools/schemas.py status    prints one
    python tools/schemas.py           lists the commands

The site has them as files: reference/schemas/status.json.
"""

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

# The type of the document that each command prints, in a module of the package.
DOCUMENTS = {
    "plan": "cli.views.plan:PlanJson",
    "run grid": "cli.running:RunJson",
    "train": "cli.running:RunJson",
    "retry": "cli.running:RunJson",
    "status": "cli.commands.status:StatusJson",
    "status usage": "cli.views.activity:UsageJson",
    "logs": "cli.commands.logs:EventJson",
    "cancel": "cli.commands.cells:CancelledJson",
    "why": "cli.commands.why:WhyJson",
    "diff": "cli.commands.diff:ComparisonJson",
    "explain": "cli.commands.explain:ExplainedJson",
    "bench": "cli.commands.bench:MeasuredJson",
    "table": "report.tables.render:TableJson",
    "db sync": "cli.commands.db:SyncedJson",
    "data prepare": "cli.commands.data:PreparedJson",
    "data status": "cli.commands.data:CachesJson",
    "data check": "cli.commands.data:CheckedCachesJson",
    "data import-task": "cli.commands.data:ImportedTaskJson",
    "db check": "cli.commands.db:CheckedDatabaseJson",
    "db rebuild": "cli.commands.db:RebuiltJson",
    "db backup": "cli.commands.db:BackedUpJson",
    "db upgrade": "cli.commands.db:BackedUpJson",
    "db merge": "cli.commands.db:MergedJson",
    "gc": "cli.commands.gc:OccupiedJson",
    "forget": "cli.commands.cells:ForgottenJson",
    "doctor": "cli.commands.doctor:DiagnosisJson",
    "run claims": "extensions.campaigns.run_claims:RunClaimsJson",
    "run tuned": "extensions.campaigns.run_tuned:RunTunedJson",
    "claims": "extensions.claims.verdict:ClaimsJson",
    "export": "extensions.export.command:ExportedJson",
    "export archive": "extensions.export.command:ArchivedJson",
    "export contribution": "extensions.export.command:ContributedJson",
    "figure curves": "extensions.figures.drawing:FigureJson",
    "figure paper": "extensions.figures.command:PaperFiguresJson",
    "figure envelope": "extensions.figures.drawing:FigureJson",
    "figure convergence": "extensions.laws.command:ConvergenceJson",
    "figure scaling": "extensions.laws.command:ScalingJson",
    "evaluate": "extensions.networks.command:EvaluatedJson",
    "theory bounds": "extensions.theory.command:BoundsJson",
    "theory stability": "extensions.theory.command:StabilityJson",
    "theory norms": "extensions.theory.command:NormsJson",
    "theory depth": "extensions.theory.command:DepthJson",
    "theory length": "extensions.theory.command:LengthJson",
    "theory coordinates": "extensions.theory.command:CoordinatesJson",
}


def documents() -> dict[str, str]:
    """Return the commands that print a document, and its type; without those of extensions that are not there."""
    package = Path(__file__).parents[1] / "gpas_cli"
    return {
        name: place for name, place in DOCUMENTS.items()
        if (package / f"{place.partition(':')[0].replace('.', '/')}.py").exists()
    }  # fmt: skip


def document_of(name: str) -> type:
    """Return the type of the document that a command prints."""
    return cast("type", resolve_name(f"gpas_cli.{DOCUMENTS[name]}"))


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def json_schema(document: type, *, closed: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a document; a `closed` one allows no further fields, which a published one does."""
    shared: dict[str, Any] = {}
    top = _object(document, shared, closed)
    return {"$schema": _DRAFT, "title": _title(document), **top, **({"$defs": shared} if shared else {})}


def _object(of: Any, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    fields = dict(_properties(of))
    return {
        "description": " ".join((of.__doc__ or "").split()),
        "type": "object",
        "properties": {name: _schema(hint, shared, closed) for name, (hint, _) in fields.items()},
        "required": [name for name, (_, required) in fields.items() if required],
        **({"additionalProperties": False} if closed else {}),
    }


def _properties(of: Any) -> Iterator[tuple[str, tuple[Any, bool]]]:
    """Yield name -> (type, whether it is always written) of the fields of a class."""
    hints = typing.get_type_hints(of, include_extras=True)
    for field in dataclasses.fields(of):
        if "flat" in field.metadata:
            yield from _properties(hints[field.name])
        elif "hidden" not in field.metadata:
            yield field.name, (hints[field.name], "optional" not in field.metadata)


def _schema(hint: Any, shared: dict[str, Any], closed: bool) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        described = _schema(arguments[0], shared, closed)
        for remark in arguments[1:]:
            described |= {"description": remark} if isinstance(remark, str) else {}
            described = {"enum": list(remark)} if isinstance(remark, tuple) else described
            described = _any_of([described, {"type": _TYPES[remark]}]) if remark in _TYPES else described
        return described
    if hint is Any:
        return {}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return _any_of([_schema(argument, shared, closed) for argument in arguments])
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], shared, closed)}
    if origin is not None and issubclass(origin, Sequence):
        items = [_schema(item, shared, closed) for item in dict.fromkeys(arguments) if item is not ...]
        return {"type": "array", "items": _any_of(items)}
    title = _title(hint)
    if title not in shared:
        shared[title] = {}  # against types that contain themselves
        shared[title] = _object(hint, shared, closed)
    return {"$ref": f"#/$defs/{title}"}


def _any_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    if all(set(part) == {"type"} for part in parts):
        types = [[part["type"]] if isinstance(part["type"], str) else part["type"] for part in parts]
        return {"type": [one for several in types for one in several]}
    return {"anyOf": parts}


def _title(of: type) -> str:
    """Return the name of a type in schemas, where all types are JSON."""
    return of.__name__.removeprefix("_").removesuffix("Json")


if __name__ == "__main__":
    asked = " ".join(sys.argv[1:])
    print(json.dumps(json_schema(document_of(asked)), indent=2) if asked else "\n".join(documents()))
