"""The description of a stage, from its newest attempt or, without one, from the scheduler that claims it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.spec.stage import STAGE_KINDS, TOKENISE
from gpas_cli.state.claims import read_claim
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import attempts, read_json


def facts_of(view: SchedulerView, key: str) -> dict[str, Any]:
    """Return the stage's facts as in attempt.json ({stage, grid, name, cell, ...}), {} if they are unknown."""
    with suppress(OSError, GpasError):
        if tries := attempts(view.runs, key):
            # A mapping rather than a record: another version may have written it, and callers read only fields that
            # they know.
            return read_json(tries[-1].attempt_path)
        if claim := read_claim(view.runs, key):
            return dict(view.scheduler(claim.scheduler).describe(claim, key))
    return {}


def log_of(view: SchedulerView, key: str) -> Path | None:
    """Return the file with the output of a claimed stage's job outside its attempts, None if there is none."""
    with suppress(GpasError):
        if claim := read_claim(view.runs, key):
            return view.scheduler(claim.scheduler).log_of(claim)
    return None


def stage_title(facts: dict[str, Any], key: str) -> str:
    """Return the name of the stage in messages about stages that depend on it, such as "its training table2/pre-s1" or
    "tokenising c4"."""
    kind = str(facts.get("stage", "stage"))
    if kind == TOKENISE:
        return f"tokenising {facts.get('name', 'its text')}"
    known = STAGE_KINDS.get(kind)
    title = known.title if known else str(facts.get("title") or "")
    cell = f"{facts['grid']}/{facts['name']}" if "name" in facts else key
    return (title or f"its {kind} of {{cell}}").replace("{cell}", cell)
