"""Attempts made by tests: records with every field that version 1 writes, some of them changed."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpas_cli.events import Event
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.spec.stage import EXTERNAL
from gpas_cli.store.journal import Journal
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir, create_attempt
from gpas_cli.structure import from_mapping, to_mapping

STAGE: dict[str, Any] = {
    "stage": "pretrain", "key": "0" * 16, "cell": {}, "grid": "g", "name": "c", "axes": {},
    "resources": plain(Resources()), "cadence": plain(Cadence()),
}  # fmt: skip
ATTEMPT: dict[str, Any] = {
    **STAGE, "executor": "local", "created": 1.76e9, "submitter": {"id": "s", "host": "", "pid": 1}, "devices": [],
    "cache": "/nowhere", "root": "/nowhere", "threads": 1,
}  # fmt: skip


def _filled(usual: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    found = {**usual, **facts}
    for name in ("submitter", "resources"):
        if name in usual:
            found[name] = {**usual[name], **found[name]}
    return found


def attempt_record(key: str, facts: Mapping[str, Any] | None = None) -> AttemptRecord:
    """Return the record of an attempt at the stage `key`, with these fields beside the usual ones."""
    return from_mapping(AttemptRecord, _filled(ATTEMPT, {**(facts or {}), "key": key}), "a test")


def make_attempt(runs: Path, key: str, facts: Mapping[str, Any] | None = None) -> AttemptDir:
    """Make the next attempt at the stage `key`, with these facts in attempt.json beside the usual ones."""
    return create_attempt(runs, attempt_record(key, facts))


def attempt_at(
    runs: Path, entry: Entry, events: Iterable[Event] = (), *, place: int = 0, log: str = "", **facts: Any
) -> AttemptDir:
    """Make the next attempt at a stage of `entry`, with these events in its journal and `log` as its log.

    place: of the stage among those of the cell; the first is the pretraining.
    """
    job = stage_jobs([entry])[entry.cell.stages[place].key]
    attempt = make_attempt(runs, job.key, {**to_mapping(job.record()), "created": time.time(), **facts})
    write_events(attempt, events)
    attempt.log_path.write_text(log)
    return attempt


def external_attempt(runs: Path, key: str, facts: Mapping[str, Any], events: Iterable[Event]) -> AttemptDir:
    """Make the next attempt at scoring a network that was not trained here, with these events in its journal."""
    usual = {"stage": EXTERNAL, "grid": EXTERNAL, "created": time.time()}
    attempt = make_attempt(runs, key, {**usual, **facts})
    write_events(attempt, events)
    return attempt


def write_events(attempt: AttemptDir, events: Iterable[Event]) -> None:
    """Append events to the journal of an attempt."""
    journal = Journal(attempt.journal_path)
    for event in events:
        journal.append(event)
    journal.close()


def submission_facts(**facts: Any) -> dict[str, Any]:
    """Return the content of a submission.json with these fields beside the usual ones."""
    project = {"config": "/nowhere/experiments.yaml", "cache": "/nowhere"}
    return {"name": "n", "time": 1.0, "submitter": ATTEMPT["submitter"], "project": project, "keys": []} | facts
