"""The stage translation as a job runs it: nothing is translated twice, and a missing test set is left for later."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import make_attempt, write_events
from importance_ranks import save_network

from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome, Score, Warned
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.store.journal import Journal, read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext, runner

DECLARED: dict[str, Any] = {
    "size": {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300},
    "family": "encoder-decoder",
    "objective": "translation",
    "data": {"source": "pairs", "path": "t.{en,de}", "validation": "v.{en,de}", "length": 24},
    "optim": {"lr": 1e-3, "warmup": 1, "steps": 7, "batch": 4},
    "translation": {"tests": ["one=x.{en,de}", "two=w.{en,de}"], "beam": 2, "longer": 3},
}
CELL = cell_from(DECLARED)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("t", "v", "w", "x"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("some words\nand more of them here\n")
    trained = attempt(tmp_path, "pretrain", CELL.trained.key)
    save_network(CELL, trained.checkpoints)
    write_events(trained, [Outcome("done", CELL.optim.steps)])
    return tmp_path


def attempt(project: Path, stage: str = "translation", key: str = "", cell: Cell = CELL) -> AttemptDir:
    facts = {"cache": str(project / "cache"), "root": str(project)}
    return make_attempt(project / "runs", key or cell.key, {"stage": stage, "cell": cell.to_mapping(), **facts})


def go(project: Path, most: int = 10**6, cell: Cell = CELL) -> tuple[Outcome, list[str], list[str]]:
    """Run the stage, asking it to stop after `most` batches; return its outcome, what it scored, and its warnings."""
    own, asked = attempt(project, cell=cell), iter([None] * most)
    journal = Journal(own.journal_path)
    stop = lambda: next(asked, "interrupted")  # noqa: E731
    outcome = runner(cell, "translation")(StageContext(cell, own.read_attempt(), own, journal.append, stop, ALONE))
    journal.close()
    write_events(own, [outcome])
    events = [line.event for line in read(own.journal_path)[0]]
    for score in (event for event in events if isinstance(event, Score)):
        assert score.harness.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        assert len((own.path / "translations" / f"{score.task}.txt").read_text().splitlines()) == score.examples == 2
    scored = [event.task for event in events if isinstance(event, Score)]
    return outcome, scored, [event.message for event in events if isinstance(event, Warned)]


def test_a_missing_test_set_is_translated_by_the_next_attempt_alone(project: Path) -> None:
    references = (project / "x.de").read_text()
    (project / "x.de").unlink()
    outcome, scored, warnings = go(project)
    assert (outcome.outcome, scored) == ("interrupted", ["two"])
    assert "there is no file" in outcome.cause
    assert warnings[0].startswith("one is not translated: translation.tests: one=x.{en,de}: there is no file")
    (project / "x.de").write_text(references)
    outcome, scored, warnings = go(project)
    assert (outcome.outcome, scored, warnings) == ("done", ["one"], [])
    metrics = outcome.metrics
    assert metrics["bleu/average"] == pytest.approx((metrics["bleu/one"] + metrics["bleu/two"]) / 2)
    assert metrics["truncated"] == 0


def test_translations_are_those_of_averaged_weights(project: Path) -> None:
    """W + D and W - D translate as W does alone, which the other attempts of this file have."""
    go(project)
    (alone,) = (project / "runs").rglob("translations/one.txt")
    expected = alone.read_text()
    averaging = cell_from({**DECLARED, "translation": {**DECLARED["translation"], "average": 2, "average_every": 3}})
    trained = next((project / "runs").rglob("step-00000007")).parent
    shutil.rmtree(trained / "step-00000007")
    for update, sign in ((4, 1), (7, -1)):
        save_network(CELL, trained, lambda network, sign=sign: moved(network, sign), step=update)  # type: ignore[misc]
    outcome, scored, _ = go(project, cell=averaging)
    assert (outcome.outcome, scored) == ("done", ["one", "two"])
    (averaged,) = set((project / "runs").rglob("translations/one.txt")) - {alone}
    assert averaged.read_text() == expected
    shutil.rmtree(trained / "step-00000004")
    with pytest.raises(GpasError, match=r"1 of the 2 checkpoints .* those after update 4: .* Write average: 1 to"):
        go(project, cell=averaging)


def moved(network: Llama, sign: int) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in network.parameters():
        parameter.add_(sign * 0.5 * torch.randn(parameter.shape, generator=generator))


def test_a_stage_that_is_stopped_keeps_what_it_has(project: Path) -> None:
    outcome, scored, _ = go(project, 1)
    assert (outcome.outcome, outcome.step, scored) == ("interrupted", 1, ["one"])
    outcome, scored, _ = go(project)
    assert (outcome.outcome, scored) == ("done", ["two"])
