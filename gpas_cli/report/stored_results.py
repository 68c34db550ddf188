"""Results of stages, read from the database as plain SQL: `store.peek` and SQLAlchemy both run it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpas_cli.events import Score
from gpas_cli.report.result import PARTIAL, Result
from gpas_cli.spec.downstream import BY_TEXT, metrics_of
from gpas_cli.spec.stage import BY_BITS, PRETRAIN
from gpas_cli.spec.translation import BY_TEST
from gpas_cli.store.peek import Rows, rows_in
from gpas_cli.store.projection import SKIPPED_CURVE, SPIKE_CURVES

SKIPPED_UPDATES = "skipped_updates"
SPIKE_METRICS = {"loss": "loss_spikes", "grad_norm": "gradient_spikes"}

# Columns of an attempt that are fields of a result.
_SAME = (
    *("number", "directory", "outcome", "host", "device", "gpu", "precision", "code", "git_commit", "git_dirty"),
    *("fingerprint", "validation_fingerprint", "parameters", "last_step", "ended"),
)
_ATTEMPT = ", ".join(f"attempt.{name}" for name in ("id", "stage_key", "cause", "gone", "created", "name", *_SAME))
_SCORE = ("task", "metric", "value", "stderr", "examples", "shots", "task_version", "harness")
_OF = "JOIN stage ON stage.key = attempt.stage_key"


def results_in(rows: Rows, keys: Iterable[str]) -> dict[str, Result]:
    """Return the result of the latest done or diverged attempt by stage key; stages without one are left out.

    They are in the order of `keys`. An attempt whose run directory is gone counts only if there is no other, and its
    result is marked as gone. A stage that has not finished has a result if some of its tasks are scored.
    """
    wanted = list(keys)
    decisive = rows_in(
        rows,
        f"SELECT {_ATTEMPT}, stage.kind FROM attempt {_OF} WHERE attempt.outcome IN ('done', 'diverged') "
        "AND attempt.stage_key IN ({}) ORDER BY attempt.gone IS NULL, attempt.number",
        wanted,
    )
    latest = {row["stage_key"]: row for row in decisive}
    metrics = metrics_in(rows, [row["id"] for row in latest.values()])
    spikes = _spike_counts(rows, [k for k, row in latest.items() if row["kind"] == PRETRAIN and row["gone"] is None])
    for key in [key for key in spikes if latest[key]["precision"] == "fp16"]:
        spikes[key].setdefault(SKIPPED_UPDATES, 0.0)
    found = {key: _result(row, {**metrics.get(row["id"], {}), **spikes.get(key, {})}) for key, row in latest.items()}
    found |= _with_scores(rows, wanted, found)
    return {key: found[key] for key in wanted if key in found}


def metrics_in(rows: Rows, ids: Iterable[int]) -> dict[int, dict[str, float]]:
    """Return the final metrics by the ids of attempts, sorted by name."""
    found: dict[int, dict[str, float]] = {}
    metrics = rows_in(rows, "SELECT attempt_id, name, value FROM metric WHERE attempt_id IN ({})", ids)
    for row in sorted(metrics, key=lambda row: str(row["name"])):  # a server has an order of its own
        found.setdefault(row["attempt_id"], {})[row["name"]] = _real(row["value"])
    return found


def score_rows(rows: Rows, which: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the scores of attempts that are not gone, with their attempts, earlier attempts first.

    which: a condition with `IN ({})` for the values.
    """
    statement = (
        f"SELECT score.*, {_ATTEMPT}, stage.kind, stage.cell FROM score "
        f"JOIN attempt ON attempt.id = score.attempt_id {_OF} WHERE attempt.gone IS NULL AND {which}"
    )
    found = rows_in(rows, statement, values)
    for row in found:
        row["value"] = _real(row["value"])
        row["cell"] = json.loads(row["cell"]) if isinstance(row["cell"], str) else row["cell"]
    return sorted(found, key=lambda row: (row["number"], row["task"], row["metric"]))  # servers collate


def task_score(row: Mapping[str, Any]) -> Score:
    """Return the score in one of `score_rows`."""
    return Score(**{name: row[name] for name in _SCORE})


def _with_scores(rows: Rows, keys: Sequence[str], found: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results, by key, of the stages in `keys` that have scores, with these scores."""
    by_key: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in score_rows(rows, "attempt.stage_key IN ({})", keys):
        known = found.get(row["stage_key"])
        # Until the stage has been run again, its earlier result counts.
        if known is None or known.gone or row["number"] <= known.number:
            by_key.setdefault(row["stage_key"], {})[row["task"], row["metric"]] = row
    return {key: _scored(found.get(key), scores) for key, scores in by_key.items()}


def _scored(known: Result | None, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Result:
    scores = tuple(map(task_score, rows.values()))
    if known is not None and not known.gone:
        return replace(known, scores=scores)
    last = max(rows.values(), key=lambda row: row["number"])
    tasks = (last["cell"].get("downstream") or {}).get("tasks", ())
    metrics = metrics_of({(score.task, score.metric): score.value for score in scores}, tasks)
    others = (*BY_TEXT, *BY_BITS, *BY_TEST)
    metrics |= {f"{score.metric}/{score.task}": score.value for score in scores if score.metric in others}
    return replace(_result(last, metrics), outcome=PARTIAL, scores=scores)


def _spike_counts(rows: Rows, keys: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the number of spikes and skipped updates of each stage by metric; a resumed attempt's count once."""
    names = {SPIKE_CURVES[of]: metric for of, metric in SPIKE_METRICS.items()}
    found = {key: dict.fromkeys(names.values(), 0.0) for key in keys}
    names[SKIPPED_CURVE] = SKIPPED_UPDATES
    listed = ", ".join(f"'{name}'" for name in names)
    statement = (
        "SELECT attempt.stage_key, curve.name, count(DISTINCT curve.step) AS number FROM attempt "
        f"JOIN curve ON curve.attempt_id = attempt.id WHERE attempt.gone IS NULL AND curve.name IN ({listed}) "
        "AND attempt.stage_key IN ({}) GROUP BY attempt.stage_key, curve.name"
    )
    for row in rows_in(rows, statement, keys):
        found[row["stage_key"]][names[row["name"]]] = float(row["number"])
    return found


def _result(row: Mapping[str, Any], metrics: Mapping[str, float]) -> Result:
    same = {name: row[name] for name in _SAME}
    same["git_dirty"] = None if same["git_dirty"] is None else bool(same["git_dirty"])
    own = {"key": row["stage_key"], "stage": row["kind"], "cause": row["cause"] or "", "gone": row["gone"] is not None}
    return Result(metrics=metrics, **own, **same)


def _real(value: float | None) -> float:
    """Return the number in a column `value`, where NULL means NaN (`store.schema`)."""
    return math.nan if value is None else value
