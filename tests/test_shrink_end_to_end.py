"""Shrunk cells are trained, finetuned and scored: a few by default, with `long` those of every shipped grid."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import make_attempt
from shipped import EXPERIMENTS

from gpas_cli.data.stdlib import FINETUNING_RECORDS, TRAINING_TEXT, VALIDATION_TEXT, write_sample
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.variant import TinyText, one_seed, shrink
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.structure import to_mapping
from gpas_cli.worker.job import STOP_SIGNALS, _run_attempt

TEXT = TinyText(TRAINING_TEXT, VALIDATION_TEXT, FINETUNING_RECORDS)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def tiny(grid: str, *names: str) -> list[Entry]:
    """Return the named cells of a grid in tiny form, by default all."""
    entries = one_seed(expand(EXPERIMENTS, [grid]))
    return shrink([entry for entry in entries if not names or entry.name in names], TEXT, EXPERIMENTS.catalogue)


def ending(folder: Path, job: StageJob) -> str:
    """Run a stage in this process; return its outcome, with the cause if it is not done."""
    facts = {"cache": str(folder / "cache"), "root": str(folder), "threads": 1}
    attempt = make_attempt(folder / "runs", job.key, {**to_mapping(job.record()), **facts})
    _run_attempt(attempt.path)
    events = [json.loads(line[9:]) for line in attempt.journal_path.read_text().splitlines()]
    return " ".join(filter(None, (events[-1]["outcome"], events[-1].get("cause"))))


@pytest.mark.long
def test_a_cell_with_a_teacher_and_a_finetuned_one_run(tmp_path: Path) -> None:
    write_sample(tmp_path)
    entries = [*tiny("table5-gate", "350m-pre-predefined"), *tiny("table3", "pre-gpas")]
    jobs = list(stage_jobs(entries).values())
    # The teacher of the predefined gates and the cell of table3 differ in width alone, so that they are one training.
    assert [job.kind for job in jobs] == ["pretrain", "pretrain", "finetune", "downstream"]
    assert [ending(tmp_path, job) for job in jobs[:3]] == ["done"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that all grids share, so that their shared stages are run once."""
    return tmp_path_factory.mktemp("shrunk")


@pytest.mark.long
@pytest.mark.parametrize("grid", EXPERIMENTS.grids)
def test_every_cell_of_a_shipped_grid_runs(grid: str, folder: Path) -> None:
    write_sample(folder)
    jobs = stage_jobs(tiny(grid)).values()
    new = [job for job in jobs if not (folder / "runs" / job.key[:2] / job.key).exists()]
    endings = {f"{job.id} {job.kind}": ending(folder, job) for job in new}
    assert {name: how for name, how in endings.items() if how != "done"} == {}
