"""`gpas schema`: the JSON Schema of what a command prints with --json."""

import json
from pkgutil import resolve_name
from typing import Annotated, cast

import typer

from gpas_cli.cli.options import offer
from gpas_cli.errors import GpasError, nearest
from gpas_cli.extension import extensions
from gpas_cli.structure import json_schema

# The type of the document that each command prints, in a module of the package.
DOCUMENTS = {
    "plan": "cli.views.plan:PlanJson",
    "run grid": "cli.running:RunJson",
    "train": "cli.running:RunJson",
    "retry": "cli.running:RunJson",
    "rerun": "cli.running:RunJson",
    "status": "cli.commands.status:StatusJson",
    "status usage": "cli.commands.status:UsageJson",
    "history": "cli.commands.history:HistoryJson",
    "logs": "cli.commands.logs:EventJson",
    "cancel": "cli.commands.cells:CancelledJson",
    "why": "cli.commands.why:WhyJson",
    "diff": "cli.commands.diff:ComparisonJson",
    "explain": "cli.commands.explain:ExplainedJson",
    "bench": "cli.commands.bench:MeasuredJson",
    "table": "report.tables.render:TableJson",
    "sync": "cli.commands.db:SyncedJson",
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
}


def documents() -> dict[str, str]:
    """Return the type of the document that each command prints, those of extensions too, as "module:type"."""
    own = {name: f"gpas_cli.{place}" for name, place in DOCUMENTS.items()}
    return own | {name: place for one in extensions().values() for name, place in one.documents.items()}


def document_of(name: str) -> type:
    """Return the type of the document that a command prints."""
    return cast("type", resolve_name(documents()[name]))


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A command, e.g. status or data check; by default, list them.", autocompletion=offer(documents)
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    Example: [bold]gpas schema status[/bold]
    """
    name = " ".join(command or [])
    if not name:
        print("\n".join(documents()))
    elif name not in documents():
        raise GpasError(f"no JSON of '{name}'; {nearest(name, documents())}")
    else:
        print(json.dumps(json_schema(document_of(name)), indent=2))
