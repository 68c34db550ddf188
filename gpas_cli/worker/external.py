"""Score a network that was not trained here, and record it like a stage: with a key, a run directory and a journal.

The key stands for the network's files and the settings of the scoring, not for the tasks: later attempts add tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import gpas_cli
from gpas_cli.evaluate.external import ExternalModel, open_model
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.events import Emit, Event, Outcome, Score
from gpas_cli.project import Project
from gpas_cli.spec import parse
from gpas_cli.spec.downstream import Downstream, measure_of
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.spec.stage import EXTERNAL
from gpas_cli.state.cancellation import request_path
from gpas_cli.state.outputs import recorded_events
from gpas_cli.store.journal import Journal
from gpas_cli.store.records import AttemptRecord, Author
from gpas_cli.store.rundir import attempts, create_attempt
from gpas_cli.store.snapshot import current_code, git_facts
from gpas_cli.worker.environment import started
from gpas_cli.worker.job import StopFlag
from gpas_cli.worker.stages.scoring import score_section, task_sheet

_KEY_VERSION = 1


@dataclass(frozen=True)
class ExternalScores:
    """The recorded scores of a network that was not trained here. `outcome` is None if there was nothing to score."""

    name: str
    key: str
    directory: Path
    scores: tuple[Score, ...]
    outcome: Outcome | None


def score_external(
    project: Project, model: ExternalModel, section: Downstream, *, name: str, trust_code: bool, watch: Emit
) -> ExternalScores:
    """Score the tasks of the section that have no recorded score yet. `watch` gets the events as they are journalled.

    SIGINT and SIGTERM end the scoring with the outcome `interrupted`. Raises GpasError if the network cannot be loaded.
    """
    limits = [section.max_length, *([model.positions] if model.positions else [])]
    section = replace(section, max_length=min(limits))
    key = _key(model, section)
    known = _recorded(project.runs, key)
    missing = [task for task in section.tasks if (task, measure_of(task)) not in known]
    if not missing:
        return ExternalScores(name, key, attempts(project.runs, key)[-1].path, _chosen(known, section.tasks), None)
    opened = open_model(model, trust_code=trust_code)
    whole = replace(section, tasks=tuple(dict.fromkeys([*(task for task, _ in known), *section.tasks])))
    record = _record(project, model, whole, key, name)
    attempt = create_attempt(project.runs, record)
    journal = Journal(attempt.journal_path)

    def emit(event: Event) -> None:
        journal.append(event)
        watch(event)

    scorer = Scorer(opened.network, opened.precision, max_length=section.max_length)
    values = {place: float(score.value) for place, score in known.items()}
    flag = StopFlag(request_path(attempt.path))
    before = flag.install()
    try:
        emit(
            started(
                record, device=opened.precision.device.type, threads=record.threads,
                precision=opened.precision.name, processes=1, parameters=opened.parameters,
            )
        )  # fmt: skip
        sheet = task_sheet(whole, values, model.weights, emit, flag.outcome)
        outcome = score_section(whole, scorer, opened.tokenizer, project.config.parent, sheet)
    except Exception as error:
        emit(Outcome("failed", cause=f"{type(error).__name__}: {error}"))
        raise
    else:
        emit(outcome)
    finally:
        journal.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return ExternalScores(name, key, attempt.path, _chosen(_recorded(project.runs, key), section.tasks), outcome)


def _key(model: ExternalModel, section: Downstream) -> str:
    """Return the content key of all scores of a network under the settings of the section, whatever its tasks."""
    settings = {name: value for name, value in parse.plain(section).items() if name != "tasks"}
    text = json.dumps([EXTERNAL, _KEY_VERSION, model.weights, model.files, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _recorded(runs: Path, key: str) -> dict[tuple[str, str], Score]:
    """Return the newest score of each task and metric."""
    return {(score.task, score.metric): score for score in recorded_events(runs, key, Score)}


def _chosen(found: dict[tuple[str, str], Score], tasks: Sequence[str]) -> tuple[Score, ...]:
    return tuple(score for task in tasks for score in found.values() if score.task == task)


def _record(project: Project, model: ExternalModel, section: Downstream, key: str, name: str) -> AttemptRecord:
    host = socket.gethostname()
    return AttemptRecord(
        stage=EXTERNAL,
        key=key,
        cell={"external": model.provenance(), "downstream": parse.plain(section)},
        grid=EXTERNAL,
        name=name,
        axes={},
        resources=Resources(),
        cadence=Cadence(),
        executor="local",
        created=time.time(),
        code=current_code(),
        git=git_facts(Path(gpas_cli.__file__).parent),
        submitter=Author(f"{host}-{os.getpid()}", host, os.getpid()),
        devices=(),
        cache=str(project.cache),
        root=str(project.config.parent),
        threads=torch.get_num_threads(),
    )
