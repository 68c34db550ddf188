"""Layer importance and the accuracy without each layer: by hand on small networks, continued at every score."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import cases
from documents import WORDS
from importance_ranks import cell_of, measured, save_network, without, write_texts
from recorder import Recorder, stop_after
from torch import Tensor, nn

from gpas_cli.data.loader import validation_batches
from gpas_cli.evaluate.downstream import task_scorer
from gpas_cli.evaluate.tasks import TaskScorer
from gpas_cli.evaluate.tasks.local import import_task
from gpas_cli.events import Event, Layers, Outcome, Removal, RemovalScore, Score, Step, Warned
from gpas_cli.extensions.layers import importance, removal
from gpas_cli.extensions.layers.removal import _series_name
from gpas_cli.model.llama import Block, Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES, Norm, Scheme, Wiring
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.train.training import prepare_text

LAYERS = 4


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("importance"))


def rows(room: Path, cell: Cell) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and the targets of each row that is measured."""
    corpus = prepare_text(cell, room / "cache", room, notify=lambda _: None)
    for batch in validation_batches(corpus.validation, cell.optim.batch, cell.parameters("importance").eval_tokens):
        yield from zip(torch.tensor(batch.inputs), torch.tensor(batch.targets), strict=True)


def series(recorder: Recorder) -> dict[str, list[float]]:
    (event,) = recorder.of("layers")
    return event["values"]


def silence(block: Block) -> None:
    """Make both sub-layers' modules return zero."""
    for linear in (block.self_attn.o_proj, block.mlp.down_proj):
        nn.init.zeros_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def blocks(network: Llama) -> list[Block]:
    return network.model.blocks()


def pre(block: Block, x: Tensor, positions: Any) -> Tensor:
    x = x + block.self_attn(block.input_layernorm(x), positions)
    return x + block.mlp(block.post_attention_layernorm(x))


def post(block: Block, x: Tensor, positions: Any) -> Tensor:
    x = block.attn_out_norm(x + block.self_attn(x, positions))
    return block.mlp_out_norm(x + block.mlp(x))


def streams(
    network: Llama, row: Tensor, formula: Callable[[Block, Tensor, Any], Tensor], removed: int = 0
) -> list[Tensor]:
    """Return the stream entering each layer that is there, and the final norm, for one row (time,)."""
    model = network.model
    x = model.embed_stages(model.embed_tokens(row[None]))
    found = [x]
    for layer, block in enumerate(blocks(network), start=1):
        if layer != removed:
            found.append(formula(block, found[-1], model.positions(x)))
    return found


@pytest.mark.parametrize("layout", ["pack", "pad"])
@pytest.mark.parametrize(("scheme", "formula"), [("pre", pre), ("post", post)])
@torch.no_grad()
def test_measurements_are_those_computed_by_hand(
    room: Path, tmp_path: Path, scheme: str, formula: Callable[[Block, Tensor, Any], Tensor], layout: str
) -> None:
    cell = cell_of(norm=scheme, gate=None, layout=layout, importance={"eval_tokens": 250})
    path, network = save_network(cell, tmp_path)
    outcome, recorder = measured(room, cell, path)
    losses = torch.zeros(LAYERS + 1, dtype=torch.float64)
    norms: list[list[Tensor]] = [[] for _ in range(LAYERS + 1)]
    changes: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    ends, lengths = [], []
    for inputs, targets in rows(room, cell):
        counted = targets >= 0
        lengths.append(int(counted.sum()))
        found = [streams(network, inputs, formula, removed) for removed in range(LAYERS + 1)]
        for removed, stream in enumerate(found):
            logits = F.linear(network.model.norm(stream[-1])[0], network.lm_head.weight)[counted]
            losses[removed] += F.cross_entropy(logits.double(), targets[counted], reduction="sum")
        for place, x in enumerate(found[0]):
            norms[place].append(x[0][counted].norm(dim=-1))
        for layer, stream in enumerate(found[1:]):
            changes[layer].append((stream[-1] - found[0][-1])[0][counted].norm(dim=-1))
        last = int(counted.nonzero().max())
        ends.append(torch.stack([x[0, last] for x in found[0]]).double())
    assert len(set(lengths)) > 4 if layout == "pad" else set(lengths) == {16}

    values = series(recorder)
    losses /= sum(lengths)
    rises = (losses[1:] - losses[0]).tolist()
    assert values["importance"] == pytest.approx(rises, abs=2e-6)
    assert values["stream_norm"] == pytest.approx([float(torch.cat(own).mean()) for own in norms], rel=1e-5)
    assert values["stability"] == pytest.approx([float(torch.cat(own).mean()) for own in changes], rel=1e-5)
    stream = torch.stack(ends)
    for n in range(1, LAYERS + 1):
        cosine = F.cosine_similarity(stream[:, :-n], stream[:, n:], dim=-1)
        assert values[_series_name(n)] == pytest.approx((cosine.arccos() / math.pi).mean(0).tolist(), abs=1e-5)
    assert f"angular_distance/{LAYERS + 1}" not in values

    assert [one["layer"] for one in recorder.of("removal")] == list(range(LAYERS + 1))
    assert outcome.metrics["loss"] == pytest.approx(losses[0].item(), abs=2e-6)
    assert outcome.metrics["mean_importance"] == pytest.approx(sum(rises) / LAYERS, abs=2e-6)
    assert outcome.metrics["least_importance"] == min(values["importance"])
    assert outcome.metrics["mean_angular_distance"] == pytest.approx(sum(values["angular_distance"]) / LAYERS)
    # The update at which the network was saved is the x of its series.
    assert recorder.of("layers")[0]["step"] == 7


def second_has_no_effect(found: dict[str, list[float]]) -> None:
    assert found["importance"][1] == 0
    assert found["angular_distance"][1] == 0
    assert all(found["importance"][i] != 0 and found["angular_distance"][i] > 0 for i in (0, 2, 3))


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_a_masked_network_is_measured_by_the_loss_of_masked_tokens(room: Path, tmp_path: Path, layout: str) -> None:
    cell = cell_of(gate=None, layout=layout, family="bert", objective="mlm")
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]))
    outcome, recorder = measured(room, cell, path)
    assert outcome.outcome == "done"
    second_has_no_effect(series(recorder))
    assert outcome.metrics["masked_loss"] == recorder.of("removal")[0]["loss"]
    assert "loss" not in outcome.metrics


@cases("extensions/cases.yaml")
def test_a_layer_without_effect(room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str) -> None:
    """A gate that starts at zero scales by one."""
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]), gates=0.0)
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    second_has_no_effect(found)
    assert found["angular_distance/2"][0] == pytest.approx(found["angular_distance"][0])


# Layers that read the values of layer 1 are not removed, and no layer of an encoder and a decoder is.
MEASURED = sorted(FAMILIES.keys() - {"encoder-decoder"})


@pytest.mark.parametrize(
    ("scheme", "gate", "family"),
    [
        *(("pre", None, family) for family in MEASURED),
        *zip(sorted(SCHEMES.keys() - {"value-residual"}), itertools.repeat("gpas"), itertools.cycle(MEASURED)),
    ],
)
def test_every_architecture_is_measured(room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str) -> None:
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path)
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    assert {name: len(values) for name, values in found.items()} == {
        "importance": LAYERS, **{_series_name(n): LAYERS + 1 - n for n in range(1, LAYERS + 1)},
        "stream_norm": LAYERS + 1, "stability": LAYERS,
    }  # fmt: skip
    assert all(math.isfinite(rise) and rise != 0 for rise in found["importance"])
    assert all(0 < value < 1 for name in found if name.startswith("angular") for value in found[name])
    assert all(value > 0 for name in ("stream_norm", "stability") for value in found[name])


@dataclass(frozen=True, kw_only=True)
class Faded(Scheme):
    """x / 2 + f(N(x)), as a plugin may declare it."""

    title = "Faded"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=0.5)


def test_a_plugin_scheme_loses_its_skip_factor_with_the_layer(room: Path, tmp_path: Path) -> None:
    """A silent layer halves the stream, which the angular distance does not see and the layers after it do."""
    catalogue = Catalogue(schemes={**SCHEMES, "faded": Faded})
    cell = cell_of(norm="faded", gate=None, catalogue=catalogue)
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[0]))
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    assert found["angular_distance"][0] == pytest.approx(0, abs=1e-7)
    assert found["importance"][0] != 0


def test_a_later_attempt_continues_at_any_layer_with_the_same_bits(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="mix", gate="gpas", layout="pad")
    path, _ = save_network(cell, tmp_path)
    straight, expected = measured(room, cell, path)
    for stop_at in (0, 1, LAYERS):
        stopped, first = measured(room, cell, path, stop=stop_after(stop_at))
        assert (stopped.outcome, stopped.step) == ("interrupted", max(0, stop_at - 1))
        assert not first.of("layers")
        done, second = measured(room, cell, path, earlier=[Removal(**event) for event in first.of("removal")])
        assert [event["layer"] for event in second.of("removal")] == list(range(stop_at, LAYERS + 1))
        assert second.of("layers") == expected.of("layers")
        assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}


def test_only_measurements_of_this_network_on_this_text_are_taken_over(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="pre", gate=None)
    path, _ = save_network(cell, tmp_path)
    _, whole = measured(room, cell, path)
    (true, *_) = [Removal(**event) for event in whole.of("removal")]
    for foreign in (replace(true, checkpoint="another"), replace(true, text="another")):
        _, recorder = measured(room, cell, path, earlier=[replace(foreign, loss=99.0)])
        assert series(recorder) == series(whole)
    _, recorder = measured(room, cell, path, earlier=[replace(true, loss=99.0)])
    assert series(recorder)["importance"] != series(whole)["importance"]


def test_the_text_is_read_once(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(removal, "validation_batches", lambda *words: calls.append(1) or validation_batches(*words))
    cell = cell_of(norm="pre", gate="gpas")
    path, _ = save_network(cell, tmp_path)
    measured(room, cell, path)
    assert calls == [1]


@pytest.mark.long
def test_two_processes_measure_the_same(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="post", gate="gpas", layout="pad")  # each process has other numbers of tokens
    path, _ = save_network(cell, tmp_path)
    outcome, recorder = measured(room, cell, path)
    script = Path(__file__).parents[1] / "importance_ranks.py"
    modules = f"{script.parents[1]}{os.pathsep}{script.parent}"  # the package, and `recorder`
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), str(rank), str(room), str(path), str(tmp_path / "two.json")],
            env={"PYTHONPATH": modules, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    two = json.loads((tmp_path / "two.json").read_text())
    for name, values in series(recorder).items():
        assert two["values"][name] == pytest.approx(values, abs=1e-6), name
    assert two["loss"] == pytest.approx(outcome.metrics["loss"], abs=1e-6)


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


def scored_series(events: Iterable[Event]) -> Any:
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
        assert scored_series(events)[f"importance_score/{task}"] == pytest.approx(drops[-1])
    assert any(any(drop) for drop in drops)
    mean = [sum(layer) / 2 for layer in zip(*drops, strict=True)]
    assert scored_series(events)["importance_score"] == pytest.approx(mean)
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
        assert scored_series(second) == scored_series(expected)
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


def test_a_task_that_does_not_fit_is_not_tried_again(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
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
    assert "importance_score" not in scored_series(events)
    assert "mean_score_drop" not in outcome.metrics
    done, later = go(room, cell, path, earlier=events)
    assert done.outcome == "done"
    assert scored(later) == [(layer, first) for layer in range(LAYERS + 1)]
    assert not [event for event in later if isinstance(event, Removal)]
    assert len(scored_series(later)["importance_score"]) == LAYERS


def test_another_version_of_a_task_is_scored_again(room: Path, tasks: tuple[str, ...], tmp_path: Path) -> None:
    cell = cell_of(norm="pre", gate=None, importance={"eval_tokens": 60, "tasks": [tasks[0]]})
    path, _ = save_network(cell, tmp_path)
    _, events = go(room, cell, path)
    half = [one for one in events if not (isinstance(one, RemovalScore) and one.layer > 2)]
    old = [replace(one, harness="gpas_cli 0") if isinstance(one, RemovalScore) else one for one in half]
    _, later = go(room, cell, path, earlier=old)
    assert sorted(scored(later)) == [(layer, tasks[0]) for layer in range(LAYERS + 1)]
    assert scored_series(later) == scored_series(events)


def test_keys_of_cells_without_tasks_are_those_of_before() -> None:
    without = cell_of(norm="pre", gate="gpas", importance={"eval_tokens": 100, "tasks": []})
    assert cell_of(norm="pre", gate="gpas").key == without.key
    with_tasks = cell_of(norm="pre", gate=None, importance={"tasks": ["indent"]})
    assert with_tasks.key != cell_of(norm="pre", gate=None, importance={}).key
