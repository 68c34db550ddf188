"""The JSON that commands print, as types: `DOCUMENTS` names the document of each command.

    cells.py       cells: their states, what they are, where a number comes from
    plans.py       plans and results of runs
    tables.py      tables, figures, exported networks
    upkeep.py      the text, the database, the machine
    jsonschema.py  a type of these -> JSON Schema

`gpas schema COMMAND` prints a document's JSON Schema, and docs/hooks.py lists the same types in the documentation.
A test runs the commands and validates what they print. `schema` grows when a reader of the old form would misread the
new one; new fields may come at any time.
"""

from __future__ import annotations

from gpas_cli.cli.schemas import cells, plans, tables, upkeep

DOCUMENTS: dict[str, type] = {
    "plan": plans.Plan,
    "run grid": plans.Run,
    "train": plans.Run,
    "retry": plans.Run,
    "rerun": plans.Run,
    "status": cells.Status,
    "top": cells.Top,
    "logs": cells.Event,
    "cancel": cells.Cancelled,
    "why": cells.Why,
    "explain": cells.Explained,
    "bench": cells.Measured,
    "table": tables.Table,
    "figure": tables.Figure,
    "export": tables.Exported,
    "sync": upkeep.Synced,
    "data prepare": upkeep.Prepared,
    "data status": upkeep.Caches,
    "data check": upkeep.CheckedCaches,
    "data import-task": upkeep.ImportedTask,
    "db check": upkeep.CheckedDatabase,
    "db rebuild": upkeep.Rebuilt,
    "db backup": upkeep.BackedUp,
    "db upgrade": upkeep.BackedUp,
    "doctor": upkeep.Diagnosis,
}
