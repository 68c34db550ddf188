"""The stage importance as a job runs it: a later attempt and a requeued one continue from the journals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events
from importance_ranks import TEXTS, cell_of, save_network
from recorder import stop_after

from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome, Removal, TextFacts
from gpas_cli.spec.cell import Cell
from gpas_cli.state import rerun
from gpas_cli.state.outputs import recorded_events
from gpas_cli.store.journal import Journal, read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import run_importance

CELL = cell_of(norm="pre", gate="gpas")
LAYERS = CELL.model.size.layers


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project in which the cell is trained."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    trained = make_attempt(tmp_path / "runs", CELL.trained.key, facts_of(tmp_path, CELL, "pretrain"))
    save_network(CELL, trained.checkpoints)
    write_events(trained, [Outcome("done", CELL.optim.steps)])
    return tmp_path


def facts_of(project: Path, cell: Cell, stage: str) -> dict[str, Any]:
    return {"stage": stage, "cell": cell.to_mapping(), "cache": str(project / "cache"), "root": str(project)}


def new_attempt(project: Path) -> AttemptDir:
    return make_attempt(project / "runs", CELL.key, facts_of(project, CELL, "importance"))


def go(project: Path, attempt: AttemptDir, most: int = 100) -> Outcome:
    """Run the attempt, asking it to stop after `most` measurements."""
    journal = Journal(attempt.journal_path)
    outcome = run_importance(
        StageContext(CELL, attempt.read_attempt(), attempt, journal.append, stop_after(most), ALONE)
    )
    journal.close()
    write_events(attempt, [outcome])
    return outcome


def events(attempt: AttemptDir, kind: str) -> list[dict[str, Any]]:
    return [dict(line.values) for line in read(attempt.journal_path)[0] if line.kind == kind]


def measured(attempt: AttemptDir) -> list[int]:
    return [event["layer"] for event in events(attempt, "removal")]


def test_attempts_and_requeues_continue_where_the_last_one_stopped(project: Path) -> None:
    first, second = new_attempt(project), new_attempt(project)
    assert go(project, first, 2).outcome == "interrupted"
    assert measured(first) == [0, 1]
    assert go(project, second, 1).outcome == "interrupted"
    assert measured(second) == [2]
    done = go(project, second)  # requeued: the same directory
    assert measured(second) == [2, 3, 4]
    rerun.request(project / "runs", CELL.key)
    afresh = new_attempt(project)
    straight = go(project, afresh)
    assert measured(afresh) == [0, 1, 2, 3, 4]
    assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}
    assert [event["values"] for event in events(second, "layers")] == [
        event["values"] for event in events(afresh, "layers")
    ]


def test_a_loss_that_is_not_finite_is_read_as_a_number(project: Path) -> None:
    attempt = new_attempt(project)
    go(project, attempt)
    whole = next(recorded_events(project / "runs", CELL.key, Removal))
    write_events(attempt, [replace(whole, loss=math.inf)])
    assert list(recorded_events(project / "runs", CELL.key, Removal))[-1].loss == math.inf


def test_another_tokenizer_than_that_of_the_training_is_refused(project: Path) -> None:
    trained = make_attempt(project / "runs", CELL.trained.key, facts_of(project, CELL, "pretrain"))
    save_network(CELL, trained.checkpoints)
    write_events(trained, [TextFacts(tokenizer="0" * 64), Outcome("done", CELL.optim.steps)])
    with pytest.raises(GpasError, match=r"has changed since .* was trained"):
        go(project, new_attempt(project))
