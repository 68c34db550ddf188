"""What is recorded of some cells: their states from the run directories, their results from the database.

Tables, claims, figures and the report page all start here. Results are read as plain SQL, which `store.peek` and
SQLAlchemy both run, so that tables can be built without SQLAlchemy.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpas_cli.events import Score
from gpas_cli.grid.declared import Entry
from gpas_cli.project import Project
from gpas_cli.spec.downstream import BY_TASK, averages, counted_of, metrics_of, score_shares
from gpas_cli.spec.extensions import metrics as known_metrics
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.state.observe import observe_each
from gpas_cli.state.status import RESULTS
from gpas_cli.store.peek import Rows, Survey, describe_lost, lost_stages, rows_in, rows_of, survey
from gpas_cli.store.projection import SKIPPED_CURVE, SPIKE_CURVES
from gpas_cli.store.refresh import describe_missing_runs, results_of
from gpas_cli.store.rundir import Listing
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

PARTIAL = "partial"  # the outcome of a result with scores of some tasks, whose stage has not finished

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
_JSON = ("axes", "environment", "parents", "cell")  # columns
T = TypeVar("T")
State = tuple[str, float | None]  # with the fraction that is done, None if unknown


class Result(Frozen, kw_only=True):
    """What the latest done or diverged attempt of a stage reported.

    scores: from all its attempts, the newest of each task. If the stage has not finished, the metrics are those of
    these tasks and the outcome is PARTIAL. None means not recorded.
    """

    key: str
    stage: str
    outcome: str
    number: int
    directory: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""
    host: str | None = None
    device: str | None = None  # e.g. "cpu" or "cuda"
    gpu: str | None = None
    precision: str | None = None
    code: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    fingerprint: str | None = None  # of the training text
    validation_fingerprint: str | None = None
    parameters: int | None = None
    last_step: int | None = None
    ended: float | None = None  # unix time
    gone: bool = False
    """The run directories of this and every other such attempt are gone, so nothing confirms the numbers."""
    scores: tuple[Score, ...] = ()

    @property
    def hardware(self) -> str | None:
        """The GPU, else the kind of device."""
        return self.gpu or self.device

    def stderr(self, name: str) -> float | None:
        """Return the standard error of the metric `name`, METRIC/TASK, over the questions; None if it is unknown."""
        metric, _, label = name.partition("/")
        parts = known_metrics()[metric].parts if metric in known_metrics() else None
        if parts is None:
            return standard_error(self.scores, name)
        known = {(score.task, score.metric): score.stderr for score in self.scores}
        return _of_mean([(1.0, known.get(one)) for one in parts(label, self.metrics)])


def standard_error(scores: Sequence[Score], name: str) -> float | None:
    """Return the standard error of METRIC/TASK over the questions, of an average over the tasks of `scores` too.

    None if it is unknown. Accuracies are in percent.
    """
    if not scores:
        return None
    metric, _, label = name.partition("/")
    tasks = list(dict.fromkeys(score.task for score in scores))
    mixed = metric == "score"
    known = {
        score.task: score.stderr
        for score in scores
        if (score.metric == counted_of(score.task) if mixed else score.metric in BY_TASK.get(metric, ()))
    }
    own = averages(tasks).get(label, (label,))
    shares = score_shares(tasks).get(label, {}) if mixed else dict.fromkeys(own, 1 / len(own))
    error = _of_mean([(share, known.get(task)) for task, share in shares.items()])
    return error and error / (100 if metric == "task_perplexity" else 1)


def _of_mean(errors: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the standard error of a mean in percent, given the shares and the errors of its parts; None if one is
    unknown."""
    squares = [(share * error) ** 2 for share, error in errors if error is not None]
    if not squares or len(squares) < len(errors):
        return None
    return 100 * math.sqrt(sum(squares)) / sum(share for share, _ in errors)


def read_results(engine: Engine, keys: Iterable[str]) -> dict[str, Result]:
    """Return what `results_in` returns, from a database of any kind."""
    with engine.connect() as connection:
        return results_in(rows_through(connection), keys)


def rows_through(connection: Connection) -> Rows:
    """Return the rows of plain statements on a connection of SQLAlchemy."""
    place = "%s" if connection.dialect.name == "postgresql" else "?"

    def rows(statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        found = connection.exec_driver_sql(statement.replace("?", place), tuple(parameters))
        return [dict(row) for row in found.mappings()]

    return rows


def read_through(project: Project, keys: Collection[str], read: Callable[[Rows], T]) -> tuple[T, str]:
    """Return what `read` returns of the database, with all that is new in the stages `keys`, and why results are not up
    to date, "" if they are. If nothing is new, an SQLite database is read without SQLAlchemy (`store.peek`).

    Raises StoreError as `recorded` does.
    """
    with rows_of(project) as rows, suppress(sqlite3.Error):
        if rows and survey(rows, project.runs, keys).current:
            return read(rows), ""
    with results_of(project, keys) as (engine, problem), engine.connect() as connection:
        return read(rows_through(connection)), problem


def stage_in(rows: Rows, key: str) -> dict[str, Any] | None:
    """Return the stage's kind, parents and cell; None if the database has no attempt at it."""
    return next(map(decoded, rows("SELECT * FROM stage WHERE key = ?", [key])), None)


def attempts_in(rows: Rows, key: str) -> list[dict[str, Any]]:
    """Return all attempts at a stage, oldest first: the columns of the table "attempt", and `metrics`."""
    found = list(map(decoded, rows("SELECT * FROM attempt WHERE stage_key = ? ORDER BY number", [key])))
    metrics = metrics_in(rows, [row["id"] for row in found])
    return [{**row, "metrics": metrics.get(row["id"], {})} for row in found]


def decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the values that SQLite has as text or as a number, and servers do not."""
    texts = {name: json.loads(row[name]) for name in _JSON if isinstance(row.get(name), str)}
    flags = {name: bool(row[name]) for name in ("git_dirty",) if row.get(name) is not None}
    return {**row, **texts, **flags}


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


def _score_rows(rows: Rows, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of stages whose attempts are not gone, with their attempts, earlier attempts first."""
    statement = (
        f"SELECT score.*, {_ATTEMPT}, stage.kind, stage.cell FROM score "
        f"JOIN attempt ON attempt.id = score.attempt_id {_OF} "
        "WHERE attempt.gone IS NULL AND attempt.stage_key IN ({})"
    )
    found = rows_in(rows, statement, keys)
    for row in found:
        row["value"] = _real(row["value"])
    return sorted(map(decoded, found), key=lambda row: (row["number"], row["task"], row["metric"]))  # servers collate


def _with_scores(rows: Rows, keys: Sequence[str], found: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results, by key, of the stages in `keys` that have scores, with these scores."""
    by_key: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in _score_rows(rows, keys):
        known = found.get(row["stage_key"])
        # Until the stage has been run again, its earlier result counts.
        if known is None or known.gone or row["number"] <= known.number:
            by_key.setdefault(row["stage_key"], {})[row["task"], row["metric"]] = row
    return {key: _scored(found.get(key), scores) for key, scores in by_key.items()}


def _scored(known: Result | None, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Result:
    scores = tuple(Score(**{name: row[name] for name in _SCORE}) for row in rows.values())
    if known is not None and not known.gone:
        return replace(known, scores=scores)
    last = max(rows.values(), key=lambda row: row["number"])
    tasks = (last["cell"].get(last["kind"]) or {}).get("tasks", ())
    metrics = metrics_of({(score.task, score.metric): score.value for score in scores}, tasks)
    others = {name for name, metric in known_metrics().items() if metric.by_task and name not in BY_TASK}
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
    same = decoded({name: row[name] for name in _SAME})
    own = {"key": row["stage_key"], "stage": row["kind"], "cause": row["cause"] or "", "gone": row["gone"] is not None}
    return Result(metrics=metrics, **own, **same)


def _real(value: float | None) -> float:
    """Return the number in a column `value`, where NULL means NaN (`store.schema`)."""
    return math.nan if value is None else value


class Recorded(Frozen):
    """States and results of the entries' stages, by stage key."""

    entries: tuple[Entry, ...]
    states: Mapping[str, State] = field(default_factory=dict)
    """Until a stage has been run again, that of its earlier result."""
    results: Mapping[str, Result] = field(default_factory=dict)
    engine: Engine | None = None
    """The database, closed when `recorded` ends; None if nothing has been run yet, or if it was not asked for."""
    problem: str = ""  # why the results are not up to date, "" if they are


@contextmanager
def recorded(project: Project, entries: Sequence[Entry], *, database: bool = True) -> Iterator[Recorded]:
    """Ingest new events, then return what is recorded of `entries`. A database that cannot be written is read as it is.

    With `database`, all run directories are ingested, and the database is open. Without, only the stages of the entries
    are ingested; if there is nothing new, an SQLite database is read without SQLAlchemy (`store.peek`).

    Raises StoreError if the database cannot be read, or is another project's.
    """
    if not project.runs.is_dir():
        yield Recorded(tuple(entries), problem=describe_missing_runs(project, stage_keys(entries)))
        return
    keys = stage_keys(entries)
    seen, stored = _stored(project, keys)
    if seen and stored is not None and not database:
        yield Recorded(tuple(entries), _states(project.runs, keys, seen.listed), stored)
        return
    with results_of(project, None if database else keys) as (engine, problem):
        # Results first: a cell that ends meanwhile is then done but not yet ingested, never a result without a done
        # stage.
        results = read_results(engine, keys)
        lost = describe_lost(project, lost_stages(project.runs, seen.known)) if seen else ""
        problem = "; ".join(filter(None, (problem, lost)))
        yield Recorded(tuple(entries), _states(project.runs, keys), results, engine, problem)


def _stored(project: Project, keys: Sequence[str]) -> tuple[Survey | None, dict[str, Result] | None]:
    """Return what an SQLite database knows of the stages, and their results if it has all that their journals have."""
    with rows_of(project) as rows, suppress(sqlite3.Error):
        seen = survey(rows, project.runs, keys) if rows else None
        return seen, results_in(rows, keys) if rows and seen and seen.current else None
    return None, None


def _states(runs: Path, keys: Sequence[str], listed: Mapping[str, Listing] | None = None) -> dict[str, State]:
    # Until a stage has been run again, the state of its earlier result stands.
    return {
        key: (status.stands or status.state, None if status.state in RESULTS else status.fraction)
        for key, status in observe_each(runs, keys, listed=listed).items()
    }


def stage_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of all stages of the entries, each once."""
    return list(dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages))
