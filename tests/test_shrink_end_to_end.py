"""Shrunk cells are trained, finetuned and scored: of those of all shipped grids, enough to meet every choice."""

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attempts import make_attempt
from covering import covering
from shipped import EXPERIMENTS, everything

from gpas_cli.data.stdlib import FINETUNING_RECORDS, TRAINING_TEXT, VALIDATION_TEXT, write_sample
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.variant import one_seed, shrink
from gpas_cli.plan.stage_jobs import StageJob, stage_jobs
from gpas_cli.spec.section import Tiny
from gpas_cli.structure import to_mapping
from gpas_cli.worker.job import STOP_SIGNALS, _run_attempt

TEXT = Tiny(TRAINING_TEXT, VALIDATION_TEXT, FINETUNING_RECORDS)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def tiny(entries: Sequence[Entry]) -> list[Entry]:
    return shrink(one_seed(entries), TEXT, EXPERIMENTS.catalogue)


def named(grid: str, name: str) -> Entry:
    return next(entry for entry in expand(EXPERIMENTS, [grid]) if entry.name == name)


def ending(folder: Path, job: StageJob) -> str:
    """Run a stage in this process; return its outcome, with the cause if it is not done."""
    facts = {"cache": str(folder / "cache"), "root": str(folder), "threads": 1}
    attempt = make_attempt(folder / "runs", job.key, {**to_mapping(job.record()), **facts})
    _run_attempt(attempt.path)
    events = [json.loads(line[9:]) for line in attempt.journal_path.read_text().splitlines()]
    return " ".join(filter(None, (events[-1]["outcome"], events[-1].get("cause"))))


def test_a_teacher_and_a_finetuned_cell_that_differ_in_width_alone_are_one_training() -> None:
    entries = tiny([named("table5-gate", "350m-pre-predefined"), named("table3", "pre-gpas")])
    assert [job.kind for job in stage_jobs(entries).values()] == ["pretrain", "pretrain", "finetune", "downstream"]


@pytest.mark.release
def test_cells_with_every_choice_of_the_shipped_grids_run(tmp_path: Path) -> None:
    write_sample(tmp_path)
    jobs = stage_jobs(covering(tiny(everything()), set())).values()
    endings = {f"{job.id} {job.kind}": ending(tmp_path, job) for job in jobs}
    assert {name: how for name, how in endings.items() if how != "done"} == {}
