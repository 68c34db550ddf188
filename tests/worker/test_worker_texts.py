"""The stage texts as a job runs it: nothing is scored twice, and a text that is not there is left for later."""

import math
from pathlib import Path

import pytest
from attempts import make_attempt, write_events
from importance_ranks import TEXTS, cell_of, save_network

from gpas_cli.events import Outcome, Score, Warned
from gpas_cli.state import attempt as attempts
from gpas_cli.store.journal import Journal, read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import run_texts

SECTION = {"texts": ["one=held-out/one.txt", "two=held-out/two.txt"]}


class Project:
    """A project with a trained cell and two texts."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, text in TEXTS.items():
            (folder / name).write_text(text)
        (folder / "held-out").mkdir()
        for name in ("one", "two"):
            (folder / "held-out" / f"{name}.txt").write_text(f"{name} gate opens\n")
        self.cell = cell_of(norm="pre", importance=None, texts=SECTION)
        trained = self.attempt("pretrain", self.cell.trained.key)
        save_network(self.cell, trained.checkpoints)
        write_events(trained, [Outcome("done", self.cell.optim.steps)])

    def attempt(self, stage: str = "texts", key: str = "") -> AttemptDir:
        facts = {"cache": str(self.folder / "cache"), "root": str(self.folder)}
        record = {"stage": stage, "cell": self.cell.to_mapping(), **facts}
        return make_attempt(self.folder / "runs", key or self.cell.key, record)

    def go(self) -> tuple[Outcome, list[str], list[str]]:
        """Run the stage; return its outcome, the texts that it scored, and its warnings."""
        attempt = self.attempt()
        journal = Journal(attempt.journal_path)
        outcome = run_texts(
            StageContext(self.cell, attempt.read_attempt(), attempt, journal.append, lambda: None, ALONE)
        )
        journal.close()
        write_events(attempt, [outcome])
        assert attempts.conclude(attempt).state == outcome.outcome
        events = [line.event for line in read(attempt.journal_path)[0]]
        scored = list(dict.fromkeys(event.task for event in events if isinstance(event, Score)))
        return outcome, scored, [event.message for event in events if isinstance(event, Warned)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_missing_text_is_scored_by_the_next_attempt_alone(project: Project) -> None:
    second = project.folder / "held-out" / "two.txt"
    content = second.read_text()
    second.unlink()
    outcome, scored, warnings = project.go()
    assert (outcome.outcome, outcome.step, scored) == ("interrupted", 1, ["one"])
    assert "1 of 2 texts not scored (two)" in outcome.cause
    assert any("two is not scored" in message for message in warnings)
    second.write_text(content)
    outcome, scored, warnings = project.go()
    assert (outcome.outcome, outcome.step, scored, warnings) == ("done", 2, ["two"], [])
    metrics = outcome.metrics
    for name in ("one", "two"):
        assert math.isfinite(metrics[f"text_perplexity/{name}"])
        assert 0 < metrics[f"text_loss/{name}"] < 20
        assert metrics[f"text_bits_per_byte/{name}"] > 0
