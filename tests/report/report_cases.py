"""Cells and their results as golden files of cases write them, and what a table shows, as text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from goldens import as_yaml, compact, golden_cases
from report_cells import entry, result, score, spec, valued

from gpas_cli.grid import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.recorded import Recorded, Result
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.grid_table import beside_published, build, by_metrics
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.sheet import PLAIN
from gpas_cli.report.tables.table import Table, TableCell
from gpas_cli.spec.downstream import _POSTER, metrics_of


def tuples(value: Any) -> Any:
    """Return a value of YAML with tuples in place of lists."""
    if isinstance(value, Mapping):
        return {name: tuples(own) for name, own in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def _of_run(cell: Entry, run: Any, tasks: Sequence[str]) -> dict[str, Result]:
    """Return the result of a stage. Scores without `metrics` have those of `tasks`."""
    if run in ("diverged", "not finite"):
        return result(cell, outcome="diverged", metrics={} if run == "diverged" else {"not_finite_at": 2})
    if not isinstance(run, Mapping):
        return result(cell, run)
    scores = tuple(score(one) if isinstance(one, str) else score(**one) for one in run.get("scores", ()))
    metrics = {"metrics": metrics_of({(one.task, one.metric): one.value for one in scores}, tasks)} if scores else {}
    return result(cell, **{**metrics, **run, "scores": scores})


def _split(key: str, text: str) -> dict[str, tuple[str, float | None]]:
    state, _, progress = text.partition(" ")
    return {key: (state, float(progress) if progress else None)}


def recorded_cells(cells: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Recorded:
    """Return cells with their states and results.

    cells: by scheme and gate ("pre", "pre+gpas"), or a list of the arguments of `entry`. Each has `runs`, one a seed: a
    perplexity, null for a run that is missing, "diverged", "not finite", a state ("running 0.4") of the cell or as
    {pretrain: "running 0.4"} of its first stage, the arguments of `result`, or a list of what its stages have. `notes`,
    `name` and `grid` are those of the `Entry`.
    """
    if isinstance(cells, Mapping):
        cells = [dict(zip(("norm", "gate"), name.split("+"), strict=False)) | {"runs": cells[name]} for name in cells]
    entries, states, results = list[Entry](), dict[str, Any](), dict[str, Result]()
    for one in cells:
        own = {name: tuples(one[name]) for name in ("notes", "name", "grid") if name in one}
        settings = {name: value for name, value in one.items() if name not in (*own, "runs", "tasks")}
        for seed, runs in enumerate(one.get("runs", [None]), 1):
            cell = replace(entry(**{**settings, "seed": seed}), **own)
            entries.append(cell)
            for run in runs if isinstance(runs, list) else [runs]:
                if isinstance(run, Mapping) and "pretrain" in run:
                    states |= _split(cell.cell.stages[0].key, run["pretrain"])
                elif isinstance(run, str) and run not in ("diverged", "not finite"):
                    states |= _split(cell.cell.key, run)
                elif run is not None:
                    results |= _of_run(cell, run, one.get("tasks", _POSTER))
    return Recorded(tuple(entries), states, results)


def table_of(case: Mapping[str, Any], folder: Path) -> Table:
    """Return the table of a case: of its `cells`, or of an experiments file with the perplexities `values`."""
    if "experiments" in case:
        (folder / "experiments.yaml").write_text(yaml.safe_dump(case["experiments"], sort_keys=False))
        experiments = load(folder / "experiments.yaml")
        (grid,) = experiments.grids.values()
        entries = expand(experiments, [grid.name])
        known, declared = Recorded(tuple(entries), {}, valued(entries, case["values"])), grid.table_spec
    else:
        known, declared = recorded_cells(case["cells"]), spec(**tuples(case.get("table", {})))
    declared = declared.tuned(case["tuned"]) if "tuned" in case else declared
    if "metrics" in case:
        return by_metrics(known, declared, case["metrics"])
    if case.get("beside"):
        return beside_published(known, declared)
    return build(known.entries, known.states, known.results, declared)


def quickstart() -> Recorded:
    """Return three seeds of Pre-LN and LNS with and without the gate: one of them running, one diverged."""
    return recorded_cells(golden_cases("tables")["seeds become mean, spread and paired difference"]["cells"])


def _cell(cell: TableCell) -> dict[str, Any]:
    """Return what a cell has, but for what its text shows."""
    delta = cell.delta
    return {
        "values": cell.values, "mark": cell.mark, "stderr": cell.stderr,
        "delta": delta and {"mean": delta.mean, "std": delta.std, "n": delta.n, "lower": delta.lower, "p": delta.p},
        "unfinished": True if cell.values and not cell.complete else None,
        "others": ", ".join(one.entry.name for one in cell.others),
    }  # fmt: skip


def table_text(table: Table) -> str:
    """Return a table with what its cells have, and its notes."""
    lines = ["|".join(line) for line in sheet(table).texts(PLAIN)]
    for row in table.rows:
        base = "" if row.base is None else f", from {row.base}"
        lines += ["", f"{row.full_title} {row.key}{base}"]
        for column, cell in zip(table.columns, row.cells, strict=True):
            own = compact(_cell(cell))
            lines += [f"{column.label} {column.metric.name}: {as_yaml(own).rstrip()}"] if own else []
    return "\n".join([*lines, "", *(f"{note.kind}: {note.text}" for note in notes(table))])
