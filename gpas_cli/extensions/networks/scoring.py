"""Score a network that no grid names at downstream tasks: one attempt at the stage `downstream` of a cell made for it.

The stage has the key that it has in a grid, so that neither scores again what the other has scored.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import gpas_cli
from gpas_cli.events import Emit, Event, Outcome, Score
from gpas_cli.extensions.networks.network import PinnedNetwork
from gpas_cli.extensions.networks.opening import ExternalModel
from gpas_cli.project import Project
from gpas_cli.spec.cell import NETWORK, Cell
from gpas_cli.spec.downstream import Downstream, measure_of
from gpas_cli.spec.extensions import of_cell
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.spec.stage import EXTERNAL
from gpas_cli.state.cancellation import request_path
from gpas_cli.state.outputs import scores_of
from gpas_cli.store.journal import Journal
from gpas_cli.store.records import AttemptRecord, Author
from gpas_cli.store.rundir import create_attempt, stage_dir
from gpas_cli.store.snapshot import current_code, git_facts
from gpas_cli.structure import Frozen
from gpas_cli.train.device import choose_device
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.environment import started
from gpas_cli.worker.job import StopFlag
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import alike, run_downstream


class ExternalScores(Frozen):
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
    section = replace(section, max_length=min(section.max_length, model.positions or section.max_length))
    cell = _cell(model, section, trust_code=trust_code)
    record = _record(project, cell, name)
    known = _recorded(project.runs, cell, record)
    if {(task, measure_of(task)) for task in section.tasks} <= {(score.task, score.metric) for score in known}:
        scores = _chosen(known, section.tasks)
        stage, _, made = str(scores[-1].taken_from).partition("/")
        return ExternalScores(name, cell.key, stage_dir(project.runs, stage) / made, scores, None)
    attempt = create_attempt(project.runs, record)
    journal = Journal(attempt.journal_path)

    def emit(event: Event) -> None:
        journal.append(event)
        watch(event)

    flag = StopFlag(request_path(attempt.path))
    before = flag.install()
    try:
        emit(started(record, device=choose_device().type, threads=record.threads, processes=1))
        outcome = run_downstream(StageContext(cell, record, attempt, emit, flag.outcome, ALONE))
    except Exception as error:
        emit(Outcome("failed", cause=f"{type(error).__name__}: {error}"))
        raise
    else:
        emit(outcome)
    finally:
        journal.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    scores = _chosen(_recorded(project.runs, cell, record), section.tasks)
    return ExternalScores(name, cell.key, attempt.path, scores, outcome)


def _cell(model: ExternalModel, section: Downstream, *, trust_code: bool) -> Cell:
    network = PinnedNetwork(path=str(model.folder.resolve()), sha256=model.pin, trust_code=trust_code)
    if model.revision:
        network = PinnedNetwork(hf=model.source, revision=model.revision, trust_code=trust_code)
    return cell_from({NETWORK: plain(network.with_shape(Path())), "downstream": plain(section)})


def _recorded(runs: Path, cell: Cell, record: AttemptRecord) -> list[Score]:
    """Return the newest score of each task and metric, of this stage and those that differ in their tasks alone."""
    assert cell.network is not None
    return scores_of(runs, [*alike(runs, record), cell.key], cell.network.name)


def _chosen(found: Sequence[Score], tasks: Sequence[str]) -> tuple[Score, ...]:
    return tuple(score for task in tasks for score in found if score.task == task)


def _record(project: Project, cell: Cell, name: str) -> AttemptRecord:
    host = socket.gethostname()
    return AttemptRecord(
        stage=cell.stages[0].kind,
        key=cell.key,
        cell=cell.to_mapping(),
        grid=EXTERNAL,
        name=name,
        axes={},
        resources=Resources(),
        cadence=Cadence(),
        executor="local",
        created=time.time(),
        code=current_code(of_cell(cell)),
        git=git_facts(Path(gpas_cli.__file__).parent),
        submitter=Author(f"{host}-{os.getpid()}", host, os.getpid()),
        devices=(),
        cache=str(project.cache),
        root=str(project.config.parent),
        threads=torch.get_num_threads(),
    )
