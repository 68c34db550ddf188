"""The accuracy without each layer: by hand, continued at every score, and without a task that cannot be scored."""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from importance_ranks import WORDS, cell_of, measured, save_network, without, write_texts
from recorder import stop_after

from gpas_cli.errors import InvalidExperiments
from gpas_cli.evaluate import importance
from gpas_cli.evaluate.downstream import task_scorer
from gpas_cli.evaluate.tasks import TaskScorer
from gpas_cli.evaluate.tasks.local import import_task
from gpas_cli.events import Event, Layers, Outcome, Removal, RemovalScore, Score, Step, Warned
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.train.training import prepare_text

LAYERS = 4
QUESTIONS = 20


def documents(seed: int) -> list[dict[str, Any]]:
    chooser = random.Random(seed)
    return [
        {
            "context": " ".join(chooser.choices(WORDS, k=chooser.randint(2, 6))),
            "choices": chooser.sample(WORDS, 3),
            "answer": chooser.randrange(3),
        }
        for _ in range(QUESTIONS)
    ]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="module")
def tasks(room: Path) -> tuple[str, ...]:
    """Import two tasks and return their names."""
    names = []
    for seed, name in enumerate(("first", "second")):
        source = room / f"{name}.json"
        source.write_text(json.dumps(documents(seed)))
        names.append(import_task(source, name, room).name)
    return tuple(names)


def go(room: Path, cell: Cell, path: Path, earlier: Iterable[Event] = (), **more: Any) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    known = [one for one in earlier if isinstance(one, Removal | RemovalScore)]
    outcome, _ = measured(room, cell, path, known, emit=events.append, **more)
    return outcome, events


def scored(events: Iterable[Event]) -> list[tuple[int, str]]:
    return [(event.layer, event.task) for event in events if isinstance(event, RemovalScore)]


def series(events: Iterable[Event]) -> Any:
    (event,) = (event for event in events if isinstance(event, Layers))
    return event.values


@torch.no_grad()
def accuracy_by_hand(room: Path, cell: Cell, network: Llama, seed: int) -> float:
    """Return the accuracy in percent from a forward pass for each question; padding after a text changes nothing."""
    tokenizer = prepare_text(cell, room / "cache", room, notify=lambda _: None).tokenizer
    right = 0
    for document in documents(seed):
        context = tokenizer.encode(document["context"])
        texts = [tokenizer.encode(f"{document['context']} {choice}") for choice in document["choices"]]
        rows = torch.tensor([ids + [0] * (max(map(len, texts)) - len(ids)) for ids in texts])
        totals = [
            sum(logs[i - 1, ids[i]].item() for i in range(len(context), len(ids)))
            for logs, ids in zip(network(rows).log_softmax(-1), texts, strict=True)
        ]
        right += totals.index(max(totals)) == document["answer"]
    return 100 * right / QUESTIONS


def test_each_drop_is_the_one_computed_by_hand(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
    cell = cell_of(norm="post", gate="gpas", importance={"eval_tokens": 60, "tasks": list(tasks)})
    path, network = save_network(cell, tmp_path)
    outcome, events = go(room, cell, path)
    assert outcome.outcome == "done"
    drops = []
    for seed, task in enumerate(cell.parameters("importance").tasks):
        whole = accuracy_by_hand(room, cell, network, seed)
        drops.append([whole - accuracy_by_hand(room, cell, without(network, i), seed) for i in range(1, LAYERS + 1)])
        assert series(events)[f"importance_score/{task}"] == pytest.approx(drops[-1])
    assert any(any(drop) for drop in drops)
    mean = [sum(layer) / 2 for layer in zip(*drops, strict=True)]
    assert series(events)["importance_score"] == pytest.approx(mean)
    assert outcome.metrics["mean_score_drop"] == pytest.approx(sum(mean) / LAYERS)
    assert outcome.metrics["least_score_drop"] == pytest.approx(min(mean))
    steps = [event for event in events if isinstance(event, Step)]
    assert [event.step for event in steps] == list(range(1, len(steps) + 1))
    assert {event.steps for event in steps} == {LAYERS + 2 * (LAYERS + 1)} == {len(steps)}


def test_a_later_attempt_continues_at_any_score(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
    cell = cell_of(norm="lns", gate=None, importance={"eval_tokens": 60, "tasks": list(tasks), "limit": 5})
    path, _ = save_network(cell, tmp_path)
    straight, expected = go(room, cell, path)
    # During the losses, at the border, within the scores of one task and between those of two.
    for stop_at in (3, LAYERS + 1, LAYERS + 4, 2 * LAYERS + 6):
        # The scorer asks, too: the first stop that it gets interrupts the score.
        stopped, first = go(room, cell, path, stop=stop_after(stop_at))
        assert stopped.outcome == "interrupted"
        done, second = go(room, cell, path, earlier=first)
        assert scored(first) + scored(second) == scored(expected)
        assert series(second) == series(expected)
        assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}
    assert all(event.examples == 5 for event in expected if isinstance(event, RemovalScore))


def test_questions_left_out_are_said_once_a_task(
    room: Path, tasks: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def with_one_left_out(task: str, *given: Any) -> TaskScorer:
        read.append(task)
        whole = task_scorer(task, *given)

        def score() -> list[Score]:
            found = whole()
            return [*found, replace(found[0], metric="skipped", value=1, stderr=None)]

        return score

    monkeypatch.setattr(importance, "task_scorer", with_one_left_out)
    cell = cell_of(importance={"eval_tokens": 60, "tasks": list(tasks)})
    _, events = go(room, cell, save_network(cell, tmp_path)[0])
    assert read == list(tasks)  # once for the whole network and all layers
    said = [event.message for event in events if isinstance(event, Warned)]
    assert len(said) == len(tasks)
    assert all("1 of 21 questions are not scored" in text for text in said), said


def test_a_task_of_which_no_question_fits_is_not_tried_again(
    room: Path, tasks: tuple[str, ...], tmp_path: Path
) -> None:
    documents = [{"context": "a", "choices": ["gate " * 3000, "norm"], "answer": 1}] * 4
    (room / "long.json").write_text(json.dumps(documents))
    long = import_task(room / "long.json", "long", room).name
    cell = cell_of(norm="pre", gate=None, importance={"eval_tokens": 60, "tasks": [long, tasks[1]]})
    path, _ = save_network(cell, tmp_path)
    outcome, events = go(room, cell, path)
    assert outcome.outcome == "done"
    assert outcome.cause.startswith(f"1 of 2 tasks not scored ({long}): every question has a choice of more than")
    assert scored(events) == [(layer, tasks[1]) for layer in range(LAYERS + 1)]


def test_a_task_without_its_file_is_scored_later(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
    first, second = tasks
    cell = cell_of(norm="pre", gate=None, importance={"eval_tokens": 60, "tasks": [first, second]})
    path, _ = save_network(cell, tmp_path)
    file = room / "tasks" / f"{first}.jsonl"
    content = file.read_bytes()
    file.unlink()
    outcome, events = go(room, cell, path)
    file.write_bytes(content)
    assert (outcome.outcome, outcome.step) == ("interrupted", LAYERS + LAYERS + 1)
    assert outcome.cause.startswith(f"1 of 2 tasks not scored ({first}): ")
    assert "No such file" in outcome.cause
    assert next(event.message for event in events if isinstance(event, Warned)).startswith(f"{first} is not scored: ")
    assert scored(events) == [(layer, second) for layer in range(LAYERS + 1)]
    assert "importance_score" not in series(events)
    assert "mean_score_drop" not in outcome.metrics
    done, later = go(room, cell, path, earlier=events)
    assert done.outcome == "done"
    assert scored(later) == [(layer, first) for layer in range(LAYERS + 1)]
    assert not [event for event in later if isinstance(event, Removal)]
    assert len(series(later)["importance_score"]) == LAYERS


def test_scores_of_another_version_of_a_task_are_repeated(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
    cell = cell_of(norm="pre", gate=None, importance={"eval_tokens": 60, "tasks": [tasks[0]]})
    path, _ = save_network(cell, tmp_path)
    _, events = go(room, cell, path)
    half = [one for one in events if not (isinstance(one, RemovalScore) and one.layer > 2)]
    old = [replace(one, harness="gpas_cli 0") if isinstance(one, RemovalScore) else one for one in half]
    _, later = go(room, cell, path, earlier=old)
    assert sorted(scored(later)) == [(layer, tasks[0]) for layer in range(LAYERS + 1)]
    assert series(later) == series(events)


def test_keys_of_cells_without_tasks_are_those_of_before() -> None:
    assert (
        cell_of(norm="pre", gate="gpas").key
        == cell_of(norm="pre", gate="gpas", importance={"eval_tokens": 100, "tasks": []}).key
    )
    assert (
        cell_of(norm="pre", gate=None, importance={"tasks": ["indent"]}).key
        != cell_of(norm="pre", gate=None, importance={}).key
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"limit": 5}, "importance.limit: has no effect without tasks"),
        ({"max_length": 64}, "importance.max_length: has no effect without tasks"),
        ({"tasks": ["wikitext"]}, "importance.tasks: wikitext has no accuracy"),
        ({"tasks": ["bracket", "bracke"]}, "did you mean 'bracket'"),
    ],
)
def test_mistakes_of_the_section(section: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments, match=message):
        cell_of(norm="pre", gate=None, importance=section)
