"""The cells of the page as plain data: one row per cell, and the details that are shown when it is opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpas_cli.report import query
from gpas_cli.spec.parse import flat
from gpas_cli.spec.stage import main_result
from gpas_cli.state.status import RESULTS

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.grid.entry import Entry
    from gpas_cli.state.status import CellStatus

LogTail = Callable[["Entry", int], Sequence[str]]  # the last lines of a cell's log

# Columns of an attempt that the page shows of every attempt, and of the latest alone.
_FACTS = (
    *("number", "outcome", "cause", "host", "device", "gpu", "precision", "last_step", "started", "ended"),
    *("code", "git_commit", "git_dirty"),
)
_LATEST = ("directory", "executor", "threads", "parameters", "resumed_from", "fingerprint", "validation_fingerprint")


def row(state: CellStatus) -> dict[str, Any]:
    """Return one line of the list of cells. `since`: the unix time of the newest evidence."""
    entry, progress = state.entry, state.progress
    return {
        "id": entry.id,
        "grid": entry.grid,
        "key": entry.key,
        "axes": dict(entry.axes),
        "state": state.state,
        "stage": state.stage,
        "evidence": _evidence(state),
        "cause": state.cause,
        "since": None if state.age is None else round(time.time() - state.age),
        "attempt": state.attempt,
        "fraction": state.fraction,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else None,
        "eta": progress.eta if progress and state.state == "running" else None,
        **_result(state),
    }


def _result(state: CellStatus) -> dict[str, Any]:
    """Return the main result of the stage: its value, its digits after the point and what it is."""
    found = main_result(state.metrics)
    if found is None:
        return {"result": None}
    metric, value = found
    return {"result": value, "digits": metric.digits, "metric": metric.words}


def _evidence(state: CellStatus) -> str:
    """Return what the state was concluded from, without its age."""
    if state.source == "outcome":
        return "finished" if state.state in RESULTS else "ended"
    return state.evidence


def details(state: CellStatus, engine: Engine | None, log: Sequence[str]) -> dict[str, Any]:
    """Return what is shown when a cell is opened."""
    entry = state.entry
    stages = [(stage.kind, stage.key) for stage in entry.cell.stages]
    rows = [(kind, row) for kind, key in stages for row in (query.attempts(engine, key) if engine else [])]
    return {
        "stages": stages,
        "settings": flat(entry.cell.to_mapping()),
        "notes": entry.notes,
        "metrics": dict(state.metrics),
        "attempts": [_attempt(kind, row) for kind, row in rows],
        "latest": _present(rows[-1][1], _LATEST) if rows else {},
        "log": list(log),
    }


def _attempt(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    gone = {"gone": True} if row["gone"] is not None else {}
    return {"stage": kind, **_present(row, _FACTS), **gone, "environment": row["environment"] or {}}


def _present(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns that have a value."""
    return {name: row[name] for name in names if row[name] not in (None, "", False)}
