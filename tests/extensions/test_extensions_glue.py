"""Finetuning on tasks: every rate is scored, the best counts, and a stopped attempt is continued bit for bit."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning import DATA, OPTIM, SIZE, pretrain, write_texts
from recorder import stop_after

from gpas_cli.data.prepare import token_caches
from gpas_cli.errors import DataError
from gpas_cli.events import Checkpoint, Event, Outcome, Score, Step, Warned
from gpas_cli.extensions.glue.finetuning import finetune_on_tasks
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Monitoring
from gpas_cli.train import checkpoint
from gpas_cli.train.training import Execution, RunPaths

RATES = (0.002, 0.01)
SECTION = {"data": "glue", "tasks": ["qnli", "sst2"], "lr": list(RATES), "length": 24, "batch": 5, "epochs": 2}
BERT = {"like": "bert", "positions": "rotary"}


def cell(section: dict[str, Any] | None = None, **values: Any) -> Cell:
    own = {"size": SIZE, "gate": "gpas", "family": BERT, "objective": "mlm", "data": DATA, "optim": OPTIM}
    return cell_from({**own, **values, "glue": {**SECTION, **(section or {})}})


def write_tasks(root: Path) -> None:
    """Write QNLI, whose label is whether the sentence repeats the question's word, and SST-2 with a word for each."""
    chooser = random.Random(2)
    words = ["gate", "norm", "layer", "stream"]

    def records(task: str, count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            one, other = chooser.sample(words, 2)
            label = number % 2
            if task == "qnli":
                yield {"question": f"{one}?", "sentence": other if label else one, "label": label, "idx": number}
            else:
                yield {"sentence": ("alpha" if label else "depth") + f" {one} {other}", "label": label, "idx": number}

    for task in SECTION["tasks"]:
        (root / "glue" / task).mkdir(parents=True)
        for split, count in (("train", 15), ("validation", 11)):
            lines = map(json.dumps, records(task, count))
            (root / "glue" / task / f"{split}.jsonl").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of texts and tasks, and the checkpoint of the pretrained network."""
    root = tmp_path_factory.mktemp("glue")
    write_texts(root)
    write_tasks(root)
    return root, pretrain(root, cell())


def run(
    project: tuple[Path, Path],
    name: str,
    declared: Cell,
    *,
    updates: int = 10**6,
    earlier: tuple[str, ...] = (),
    known: list[Event] | None = None,
    every: int = 3,
    **how: Any,
) -> tuple[Outcome, list[Event]]:
    """Finetune into root/NAME, asking to stop after so many updates; return the outcome and the events."""
    root, pretrained = project
    cache = root / "cache"
    tokens = token_caches(declared.data, declared.text_vocab, cache, root=root, notify=lambda _: None)[0]
    events: list[Event] = []
    cadence = Cadence(log_every=1, stats_every=4, eval_every=2, checkpoint_every=every)
    outcome = finetune_on_tasks(
        declared, pretrained, "pretrained", tokens.tokenizer,
        RunPaths(root / name, [root / before for before in earlier], cache, root), events.append,
        Execution(cadence, stop_after(updates), **how),
        earlier=[event for event in known or () if isinstance(event, Score)],
    )  # fmt: skip
    return outcome, events


def losses(events: list[Event]) -> dict[int, float]:
    return {event.step: float(event.loss) for event in events if isinstance(event, Step) and event.loss is not None}


def scores(events: list[Event]) -> list[Score]:
    return [event for event in events if isinstance(event, Score)]


@pytest.fixture(scope="module")
def whole(project: tuple[Path, Path]) -> tuple[Outcome, list[Event]]:
    return run(project, "whole", cell())


EACH = 6  # updates of one training: 2 epochs of 15 rows, 5 at a time
TOTAL = 4 * EACH


def test_each_task_is_scored_at_each_rate_and_the_best_counts(whole: tuple[Outcome, list[Event]]) -> None:
    outcome, events = whole
    assert (outcome.outcome, outcome.step) == ("done", TOTAL)
    found = {(score.task, score.metric): float(score.value) for score in scores(events)}
    assert list(found) == [(task, f"acc@{rate:g}") for task in ("qnli", "sst2") for rate in RATES]
    assert {score.examples for score in scores(events)} == {11}
    metrics = outcome.metrics
    for task in ("qnli", "sst2"):
        best = max(RATES, key=lambda rate: found[task, f"acc@{rate:g}"])
        assert metrics[f"glue_lr/{task}"] == best
        assert metrics[f"glue_accuracy/{task}"] == pytest.approx(100 * found[task, f"acc@{best:g}"])
    assert metrics["glue_accuracy/average"] == pytest.approx(
        (metrics["glue_accuracy/qnli"] + metrics["glue_accuracy/sst2"]) / 2
    )


def test_updates_are_counted_through_all_trainings(whole: tuple[Outcome, list[Event]]) -> None:
    steps = [event for event in whole[1] if isinstance(event, Step)]
    assert [event.step for event in steps] == list(range(1, TOTAL + 1))
    assert {event.steps for event in steps} == {TOTAL}
    assert [event.lr for event in steps][:2] == [pytest.approx(RATES[0])] * 2  # 6 % of six updates are none
    saved = [event.step for event in whole[1] if isinstance(event, Checkpoint)]
    assert saved == [first + step for first in range(0, TOTAL, EACH) for step in (3, 6)]


def test_checkpoints_of_scored_trainings_are_deleted(project: tuple[Path, Path], whole: Any) -> None:
    assert list((project[0] / "whole").glob("*")) == []


@pytest.mark.parametrize("updates", [2, 3 * EACH])  # within a training and between two
def test_a_stopped_attempt_is_continued_bit_for_bit(
    project: tuple[Path, Path], whole: tuple[Outcome, list[Event]], updates: int
) -> None:
    name = f"stopped-{updates}"
    stopped, before = run(project, name, cell(), updates=updates)
    assert stopped.outcome == "interrupted"
    done, after = run(project, f"{name}-again", cell(), earlier=(name,), known=before)
    assert losses(before) | losses(after) == losses(whole[1])
    assert not losses(before).keys() & losses(after).keys()
    again = {name: value for name, value in done.metrics.items() if name != "glue_seconds"}
    assert again == {name: value for name, value in whole[0].metrics.items() if name != "glue_seconds"}
    assert scores(before) + scores(after) == scores(whole[1])
    assert [*(project[0] / name).glob("*"), *(project[0] / f"{name}-again").glob("*")] == []


def test_other_examples_are_trained_on_anew(project: tuple[Path, Path], whole: tuple[Outcome, list[Event]]) -> None:
    path = project[0] / "glue/sst2/validation.jsonl"
    kept = path.read_text()
    try:
        path.write_text("\n".join(kept.splitlines()[:-1]))
        outcome, events = run(project, "fewer", cell(), known=whole[1])
    finally:
        path.write_text(kept)
    assert outcome.outcome == "done"
    assert {(score.task, score.examples) for score in scores(events)} == {("sst2", 10)}


def test_it_learns(project: tuple[Path, Path]) -> None:
    outcome, events = run(project, "learns", cell({"tasks": ["sst2"], "lr": [0.01], "epochs": 12}), every=1000)
    assert outcome.metrics["glue_accuracy/sst2"] == 100  # a word decides
    assert "glue_accuracy/average" not in outcome.metrics
    assert losses(events)[1] == pytest.approx(math.log(2), abs=0.1)


def test_a_rate_that_diverges_has_no_score_and_does_not_end_the_stage(project: tuple[Path, Path]) -> None:
    watch = Monitoring(patience=1)
    outcome, events = run(project, "diverged", cell({"tasks": ["sst2"], "lr": [0.01, 10.0], "clip": 0.0}), watch=watch)
    assert (outcome.outcome, outcome.metrics["glue_lr/sst2"]) == ("done", 0.01)
    assert [score.metric for score in scores(events)] == ["acc@0.01"]
    (warned,) = [event.message for event in events if isinstance(event, Warned)]
    assert warned.startswith("sst2-10 diverged and has no score: the training loss of update")
    outcome, _ = run(project, "both", cell({"tasks": ["sst2"], "lr": [9.0, 10.0], "clip": 0.0}), watch=watch)
    assert (outcome.outcome, outcome.metrics) == ("diverged", {})
    assert outcome.cause == "sst2: the training diverged at every learning rate"


def test_the_head_has_a_row_for_each_label_and_the_gates_do_not_train(
    project: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, torch.Tensor]] = []
    begin = checkpoint.begin

    def kept(folder: Path, key: str, network: Any, *rest: Any, **more: Any) -> Any:
        saved.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        return begin(folder, key, network, *rest, **more)

    monkeypatch.setattr(checkpoint, "begin", kept)
    run(project, "weights", cell({"tasks": ["sst2"], "lr": [0.01]}))
    first, last = saved[0], saved[-1]
    assert first["lm_head.weight"].shape == (2, SIZE["hidden"])
    assert not any(name.startswith("head_transform") for name in first)
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert "lm_head.weight" in changed
    assert "model.embed_tokens.weight" in changed
    assert not any(name.endswith("alpha") for name in changed)


def test_wrong_data_of_the_last_task_are_found_before_the_first_training(project: tuple[Path, Path]) -> None:
    path = project[0] / "glue/sst2/validation.jsonl"
    kept = path.read_text()
    try:
        path.write_text('{"sentence": "depth", "label": -1}')
        with pytest.raises(DataError, match="the label is -1"):
            run(project, "hidden", cell())
    finally:
        path.write_text(kept)
    assert not (project[0] / "hidden").exists()


def test_long_examples_are_a_warning(project: tuple[Path, Path]) -> None:
    _, events = run(project, "long", cell({"tasks": ["sst2"], "lr": [0.01], "length": 8, "epochs": 1}))
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert warned == ["sst2: 12 examples are longer than length: 8 and are cut"]


def test_what_measures_the_network_comes_after_its_finetuning() -> None:
    """Somebody may have results with these keys, which are older than extensions."""
    values = {
        "size": {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280},
        "data": {"source": "stdlib", "tokenizer": "bpe", "length": 16},
        "optim": {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 2},
        "objective": "mlm",
        "family": "bert",
        "norm": "post",
        "importance": {},
        "layers": {},
        "glue": {"tasks": ["ordered"], "lr": [1e-3], "length": 16},
    }
    kinds = ("pretrain", "glue", "importance", "layers")
    keys = ("92a04e4b643ee29b", "4e0603a8b8e8990a", "5b46a46542553f06", "8436c4bf6a078e22")
    assert [(stage.kind, stage.key) for stage in cell_from(values).stages] == list(zip(kinds, keys, strict=True))
