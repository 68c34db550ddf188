"""Direct scoring: the metrics of lm-evaluation-harness on the same documents, without it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from exporting import CPU, Room
from local_documents import score_local, write
from test_evaluate_harness import DOCUMENTS

from gpas_cli.data.questions import Question
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.downstream import score_directly, score_tasks, standard_error
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.task_score import MissingTask, TaskUnavailable
from gpas_cli.evaluate.tasks import EmbeddedTask, direct_task
from gpas_cli.evaluate.tasks.forms import FORMS
from gpas_cli.evaluate.tasks.local import import_task
from gpas_cli.model.llama import build
from gpas_cli.spec.downstream import Downstream
from gpas_cli.train import checkpoint
from gpas_cli.train.run import prepare_text

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed (the extra `downstream`)"
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("downstream"))


@pytest.fixture(scope="module")
def ours(room: Room) -> tuple[Scorer, Tokenizer]:
    cell = room.cell(norm="pre", gate="gpas")
    network = build(cell.model)
    checkpoint.load(room.checkpoint(cell), cell.key, network, None)
    tokenizer = prepare_text(cell, room.folder / "cache", room.folder, lambda _: None).tokenizer
    return Scorer(network, CPU, max_length=64), tokenizer


@needs_harness
@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() & FORMS.keys()))
def test_the_scores_are_those_of_the_harness_on_the_same_documents(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path, name: str
) -> None:
    source = write(tmp_path / f"{name}.jsonl", [DOCUMENTS[name]() for _ in range(25)])
    task = direct_task(import_task(source, name, tmp_path).name, tmp_path)
    assert task is not None
    direct = {score.metric: score for score in score_directly(task, *ours)}
    for theirs in score_local(name, *ours, tmp_path):
        mine = direct[theirs.metric]
        assert (mine.value, mine.examples, mine.shots) == (theirs.value, theirs.examples, theirs.shots)
        assert mine.stderr == pytest.approx(theirs.stderr)


class Fixed(EmbeddedTask):
    """A task of given questions."""

    def questions(self) -> Sequence[Question]:
        return [Question("gate norm", ("layer", "stream scale"), answer) for answer in (0, 1, 1, 0)]


def test_the_limit_takes_the_first_questions(ours: tuple[Scorer, Tokenizer]) -> None:
    whole = {score.metric: score for score in score_directly(Fixed("indent"), *ours)}
    assert whole["acc"].examples == 4
    assert whole["acc"].value == 0.5
    assert {score.examples for score in score_directly(Fixed("indent"), *ours, limit=3)} == {3}


def test_the_standard_error_is_that_of_a_mean() -> None:
    assert standard_error([True, False, True, True]) == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert standard_error([True]) is None


def test_a_task_that_cannot_be_had_does_not_stop_the_others(ours: tuple[Scorer, Tokenizer], tmp_path: Path) -> None:
    source = write(tmp_path / "own.jsonl", [{"context": "gate", "choices": ["norm", "layer"], "answer": 0}] * 3)
    there = import_task(source, "own", tmp_path).name
    absent = "own@0123456789ab"
    found = list(score_tasks(Downstream(tasks=(absent, there)), *ours, tmp_path))
    assert isinstance(found[0], MissingTask)
    assert found[0].task == absent
    assert isinstance(found[1], list)
    assert found[1][0].task == there
    assert list(score_tasks(Downstream(tasks=(absent, there)), *ours, tmp_path, skip=[absent, there])) == []


LONG = {"goal": "cut", "sol1": "gate " * 100, "sol2": "norm", "label": 0}


@needs_harness
@pytest.mark.parametrize("limit", [None, 6])
def test_a_question_with_a_choice_that_is_too_long_is_skipped_and_counted(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path, limit: int | None
) -> None:
    documents = [DOCUMENTS["piqa"]() for _ in range(9)]
    fitting, whole = tmp_path / "fitting", tmp_path / "whole"
    for folder, lines in ((fitting, documents), (whole, [documents[0], LONG, *documents[1:8], LONG, documents[8]])):
        folder.mkdir()
        write(folder / "piqa.jsonl", lines)
    scored = 9 if limit is None else 5
    expected = {s.metric: s for s in score_local("piqa", *ours, fitting, limit=scored)}
    task = direct_task(import_task(whole / "piqa.jsonl", "piqa", whole).name, whole)
    assert task is not None
    for found in (
        score_directly(task, *ours, limit=limit),
        score_local("piqa", *ours, whole, limit=limit),
    ):
        scores = {score.metric: score for score in found}
        assert scores.keys() == {"acc", "acc_norm", "skipped"}
        assert scores["skipped"].value == (2 if limit is None else 1)
        assert {score.examples for score in found} == {scored}
        for metric, one in expected.items():
            assert scores[metric].value == one.value
            assert scores[metric].stderr == pytest.approx(one.stderr)


@needs_harness
def test_a_task_without_a_question_that_fits_has_their_number_and_the_others_are_scored(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path
) -> None:
    source = write(tmp_path / "piqa.jsonl", [LONG, LONG])
    with pytest.raises(TaskUnavailable, match="every question has a choice of more than max_length, 64 tokens"):
        score_local("piqa", *ours, tmp_path)
    name = import_task(source, "piqa", tmp_path).name
    other = import_task(
        write(tmp_path / "own.jsonl", [{"context": "a", "choices": ["b", "c"], "answer": 0}]), "own", tmp_path
    ).name
    skipped, found = score_tasks(Downstream(tasks=(name, other)), *ours, tmp_path)
    assert isinstance(skipped, list)
    assert [(one.task, one.metric, one.value, one.examples) for one in skipped] == [(name, "skipped", 2, 0)]
    assert isinstance(found, list)
    assert found[0].task == other
