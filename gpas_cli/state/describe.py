"""What a stage is: from its newest attempt or, if it has none, from the scheduler that claims it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.spec.stage import STAGE_KINDS, TOKENISE
from gpas_cli.state.claims import read_claim
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import attempts, read_json


def facts_of(runs: Path, key: str) -> dict[str, Any]:
    """Return the stage's facts as attempt.json has them ({stage, grid, name, cell, ...}), {} if they are unknown."""
    with suppress(OSError, GpasError):
        if tries := attempts(runs, key):
            # Not the record: another version may have written it, and readers take what they understand.
            return read_json(tries[-1].attempt_path)
        if claim := read_claim(runs, key):
            return dict(SchedulerView(runs).scheduler(claim.scheduler).describe(claim, key))
    return {}


def log_of(runs: Path, key: str) -> Path | None:
    """Return the file with what the job of a claimed stage printed outside its attempts, None if there is none."""
    with suppress(GpasError):
        if claim := read_claim(runs, key):
            return SchedulerView(runs).scheduler(claim.scheduler).log_of(claim)
    return None


def stage_title(facts: dict[str, Any], key: str) -> str:
    """Return how a stage that builds on this one names it: "its training table2/pre-s1", "tokenising c4"."""
    kind = str(facts.get("stage", "stage"))
    if kind == TOKENISE:
        return f"tokenising {facts.get('name', 'its text')}"
    known = STAGE_KINDS.get(kind)
    title = known.title if known else str(facts.get("title") or "")
    cell = f"{facts['grid']}/{facts['name']}" if "name" in facts else key
    return (title or f"its {kind} of {{cell}}").replace("{cell}", cell)
