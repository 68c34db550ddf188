"""Jobs that tokenise: which are needed before which trainings, what they journal, and how they leave."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_record, make_attempt
from launching import entry

from gpas_cli.data.prepare import Need
from gpas_cli.data.shards import Totals
from gpas_cli.events import Event, Outcome, Phase, Started, fields_of
from gpas_cli.grid import Entry
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.plan.texts import how_far, with_texts
from gpas_cli.project import Project
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.status import StageStatus
from gpas_cli.store.journal import Journal, encode
from gpas_cli.structure import to_mapping
from gpas_cli.worker import tokenise

NOTES = {"source": "files", "path": "text/*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 50}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "text").mkdir()
    for i in range(60):
        (tmp_path / f"text/{i}.txt").write_text("gate norm layer stream scale " * 40 + str(i))
    return Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite:///x.db")


def jobs(*entries: Entry) -> list[Any]:
    return list(stage_jobs(entries).values())


def run(project: Project, job: Any, stop: Any = lambda: None) -> tuple[Outcome, list[Event]]:
    """Return the outcome and the events of a text's job."""
    events: list[Event] = []
    about = {"cache": str(project.cache), "root": str(project.config.parent), "threads": 1, "code": "c0de"}
    asked = attempt_record(job.key, {**to_mapping(job.record()), **about})
    outcome = tokenise.tokenise(asked, events.append, stop)
    return outcome, events


def test_each_corpus_has_one_job_on_which_the_first_stages_wait(project: Project) -> None:
    asked = {"kind_resources": {TOKENISE: Resources(cpus=8, mem="9G")}}
    cells = [replace(entry(seed=seed, data=NOTES, importance={"eval_tokens": 9}), **asked) for seed in (1, 2)]
    other = entry(seed=3, data={**NOTES, "length": 32})
    found = with_texts(project, jobs(*cells, other))
    texts = [job for job in found if job.kind == TOKENISE]
    assert len(texts) == 2
    assert found[:2] == texts
    assert (texts[0].name, texts[0].resources) == ("text/*.txt", Resources(cpus=8, mem="9G"))
    waiting = {(job.kind, job.cell.seed): job.text for job in found[2:]}
    assert waiting == {
        ("pretrain", 1): texts[0].key, ("importance", 1): "", ("pretrain", 2): texts[0].key, ("importance", 2): "",
        ("pretrain", 3): texts[1].key,
    }  # fmt: skip


def test_a_text_has_one_job_however_much_of_it_is_read(project: Project) -> None:
    short, long = (
        entry(data=NOTES),
        entry(seed=2, data={**NOTES, "eval_tokens": 99}, optim={"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}),
    )
    keys = {with_texts(project, jobs(cell))[0].key for cell in (short, long)}
    assert len(keys) == 1


def test_tokenised_text_needs_no_job_and_lost_text_another(project: Project) -> None:
    cell = entry(data=NOTES)
    job, training = with_texts(project, jobs(cell))
    outcome, events = run(project, job)
    assert outcome.outcome == "done"
    assert outcome.metrics["train_tokens"] > 1000
    assert [type(event) for event in events[:2]] == [Started, Phase]
    assert with_texts(project, [training]) == jobs(cell)
    attempt = make_attempt(project.runs, job.key, to_mapping(job.record()))
    Journal(attempt.journal_path).append(outcome)
    next((project.cache / "tokens").glob("*/train/00000.json")).unlink()
    again, _ = with_texts(project, jobs(cell))
    assert again.key != job.key
    assert run(project, again)[0].outcome == "done"


def test_an_unavailable_text_is_reported_by_the_job(project: Project) -> None:
    for path in (project.config.parent / "text").iterdir():
        path.unlink()
    assert len(with_texts(project, jobs(entry(data=NOTES)))) == 2


def test_a_stopped_tokenisation_is_resumed(project: Project) -> None:
    job, _ = with_texts(project, jobs(entry(data=NOTES)))
    assert run(project, job, stop=lambda: "interrupted")[0] == Outcome("interrupted")
    assert run(project, job)[0].outcome == "done"


def test_progress_of_a_tokenisation() -> None:
    events: list[Event] = []
    reporter = tokenise._ProgressReporter(events.append, lambda: None)
    reporter.watch("train", Need("tokens", 1000), Totals(7, 345))
    lines = [encode({"n": 0, "t": 1.0, "kind": event.kind, **fields_of(event)})[:-1] for event in events]
    seen = StageStatus(state="running", evidence="its lock", journal_end=lines)
    assert how_far(seen) == "running 34 % (train: 7 documents, 345 tokens)"
    assert how_far(StageStatus(state="failed", evidence="x", cause="no file")) == "failed: no file"
