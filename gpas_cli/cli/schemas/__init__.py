"""The JSON that commands print, as types whose names end in Json: `DOCUMENTS` names the document of each command.

    cells.py       cells: their states, what they are
    origins.py     where a number comes from
    comparisons.py what differs between two cells
    plans.py       plans and results of runs
    tables.py      tables and figures
    networks.py    exported networks and archives, scored networks
    claims.py      verdicts on claims
    theory.py      what the papers derive, computed
    upkeep.py      the text, the database, the machine
    jsonschema.py  a type of these -> JSON Schema

`gpas schema COMMAND` prints a document's JSON Schema, and docs/hooks.py lists the same types in the documentation.
A test runs the commands and validates what they print. `schema` grows when a reader of the old form would misread the
new one; new fields may come at any time.
"""

from __future__ import annotations

from gpas_cli.cli.schemas import cells, claims, comparisons, networks, origins, plans, tables, theory, upkeep

DOCUMENTS: dict[str, type] = {
    "plan": plans.PlanJson,
    "run grid": plans.RunJson,
    "run claims": claims.RunClaimsJson,
    "train": plans.RunJson,
    "retry": plans.RunJson,
    "rerun": plans.RunJson,
    "status": cells.StatusJson,
    "top": cells.TopJson,
    "history": upkeep.HistoryJson,
    "logs": cells.EventJson,
    "cancel": cells.CancelledJson,
    "why": origins.WhyJson,
    "diff": comparisons.ComparisonJson,
    "explain": cells.ExplainedJson,
    "bench": cells.MeasuredJson,
    "theory stability": theory.StabilityJson,
    "theory norms": theory.NormsJson,
    "theory length": theory.LengthJson,
    "table": tables.TableJson,
    "figure": tables.FigureJson,
    "figure paper": tables.PaperFiguresJson,
    "figure scaling": tables.ScalingJson,
    "claims": claims.ClaimsJson,
    "export": networks.ExportedJson,
    "evaluate": networks.EvaluatedJson,
    "sync": upkeep.SyncedJson,
    "data prepare": upkeep.PreparedJson,
    "data status": upkeep.CachesJson,
    "data check": upkeep.CheckedCachesJson,
    "data import-task": upkeep.ImportedTaskJson,
    "db check": upkeep.CheckedDatabaseJson,
    "db rebuild": upkeep.RebuiltJson,
    "db backup": upkeep.BackedUpJson,
    "db upgrade": upkeep.BackedUpJson,
    "db export": upkeep.ExportedTablesJson,
    "db merge": upkeep.MergedJson,
    "gc": upkeep.OccupiedJson,
    "forget": upkeep.ForgottenJson,
    "doctor": upkeep.DiagnosisJson,
}
