"""Finetuning on tasks: every rate is scored, the best counts, and a stopped attempt is continued bit for bit.

Examples of GLUE's tasks: files as on the hub, labels, rows of tokens, and messages with file and place.
"""

import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from cases import cases
from finetuning import DATA, OPTIM, SIZE, pretrain, write_texts
from goldens import golden_cases
from pyarrow import parquet
from recorder import stop_after

from gpas_cli.data.loader import IGNORED
from gpas_cli.data.prepare import token_caches
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.events import Checkpoint, Event, Outcome, Score, Step, Warned
from gpas_cli.extensions.glue import examples
from gpas_cli.extensions.glue.examples import TaskRows, prepare_task, unreadable_reason
from gpas_cli.extensions.glue.finetuning import finetune_on_tasks
from gpas_cli.extensions.glue.stage import HUB, REVISION, Glue
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
        for split, count in (("train", 15), ("validation", 11)):
            write(root / "glue", task, split, list(records(task, count)))


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
    data = {"source": "stdlib", "tokenizer": "bpe", "length": 16}
    glue = {"tasks": ["ordered"], "lr": [1e-3], "length": 16}
    network = {
        "size": {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280},
        "family": "bert",
        "norm": "post",
    }
    optim = {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 2}
    training = {"data": data, "optim": optim, "objective": "mlm"}
    values = {**network, **training, "importance": {}, "layers": {}, "glue": glue}
    kinds = ("pretrain", "glue", "importance", "layers")
    keys = ("92a04e4b643ee29b", "4e0603a8b8e8990a", "5b46a46542553f06", "8436c4bf6a078e22")
    assert [(stage.kind, stage.key) for stage in cell_from(values).stages] == list(zip(kinds, keys, strict=True))


MNLI, QNLI, SST2 = golden_cases("glue_records").values()  # of the three tasks
RECORDS = {
    "mnli": {"train": MNLI, "validation_matched": MNLI, "validation_mismatched": MNLI[::-1]},
    "qnli": {"train": QNLI, "validation": QNLI[:1]},
    "sst2": {"train": SST2, "validation": SST2},
}
TOKENIZER = Tokenizer(train_bpe(["two things of the same kind"], 270), 270, origin="test")


def write(
    folder: Path, task: str, split: str, records: Sequence[Mapping[str, Any]], *, as_parquet: bool = False
) -> None:
    (folder / task).mkdir(parents=True, exist_ok=True)
    if as_parquet:
        columns = {name: [record.get(name, 0) for record in records] for name in records[0]}
        parquet.write_table(pyarrow.table(columns), folder / task / f"{split}-00000-of-00001.parquet")
    else:
        (folder / task / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (task, splits) in enumerate(RECORDS.items()):
        for split, records in splits.items():
            write(tmp_path / "glue", task, split, records, as_parquet=number % 2 == 0)
    return tmp_path


def prepared(root: Path, task: str, **settings: Any) -> TaskRows:
    return prepare_task(task, Glue(data="glue", **settings), TOKENIZER, root, lambda message: None)


@pytest.mark.parametrize("task", RECORDS)
def test_rows_hold_the_texts_between_end_tokens_and_the_label_at_the_first(folder: Path, task: str) -> None:
    found = prepared(folder, task, length=512)
    assert list(found.held_out) == (["mnli", "mnli_mm"] if task == "mnli" else [task])
    batch = found.train.batch(np.arange(len(RECORDS[task]["train"])))
    assert batch.targets[:, 0].tolist() == [record["label"] for record in RECORDS[task]["train"]]
    assert (batch.targets[:, 1:] == IGNORED).all()
    for row, size, record in zip(batch.inputs.tolist(), batch.prefix.tolist(), RECORDS[task]["train"], strict=True):
        ends = [place for place, token in enumerate(row[:size]) if token == TOKENIZER.eos_id]
        assert (ends[0], ends[-1]) == (0, size - 1)
        pieces = [TOKENIZER.decode(row[first + 1 : last]) for first, last in pairwise(ends)]
        assert pieces == [record[name] for name in found.task.texts]
        assert set(row[size:]) <= {TOKENIZER.pad_id}


def test_the_longer_text_of_a_pair_is_cut_and_single_texts_lose_their_end(folder: Path) -> None:
    pairs = prepared(folder, "mnli", length=40)
    assert pairs.train.cut == 3
    assert {len(row) for row in pairs.train.ids} == {40}
    for row in pairs.train.ids:
        ends = [place for place, token in enumerate(row) if token == TOKENIZER.eos_id]
        assert (len(ends), ends[1]) == (3, 20)  # both are longer than their half
    short = [{**MNLI[0], "hypothesis": "No"}, *MNLI[1:]]
    write(folder / "short", "mnli", "train", short)
    for split in ("validation_matched", "validation_mismatched"):
        write(folder / "short", "mnli", split, MNLI)
    row = prepare_task("mnli", Glue(data="short", length=40), TOKENIZER, folder, lambda message: None).train.ids[0]
    assert [place for place, token in enumerate(row) if token == TOKENIZER.eos_id] == [0, 36, 39]
    assert {len(row) for row in prepared(folder, "sst2", length=8).train.ids} == {8}


def test_a_limit_reads_the_first_examples_of_each_split(folder: Path) -> None:
    assert [len(rows) for rows in prepared(folder, "mnli", limit=3).held_out.values()] == [3, 3]
    assert [len(rows) for rows in prepared(folder, "sst2", limit=2).held_out.values()] == [2]


@cases("extensions/cases.yaml")
def test_a_wrong_record_of_glue_is_one_message(folder: Path, split: str, changed: dict[str, Any], message: str) -> None:
    write(folder / "glue", "qnli", split, [QNLI[0] | changed])
    with pytest.raises(DataError, match=message):
        prepared(folder, "qnli")


def test_a_column_of_another_task_is_named(folder: Path) -> None:
    write(folder / "glue", "qnli", "train", [{"question": "Who?", "sentences": "He.", "label": 0}])
    with pytest.raises(DataError, match="no field 'sentence'; did you mean 'sentences'"):
        prepared(folder, "qnli")


def test_a_split_without_examples_and_a_label_without_examples_are_errors(folder: Path) -> None:
    write(folder / "glue", "qnli", "train", QNLI[:1])
    with pytest.raises(DataError, match="no example to train qnli on has the label 0, entailment"):
        prepared(folder, "qnli")
    (folder / "glue/qnli/validation.jsonl").write_text("\n")
    write(folder / "glue", "qnli", "train", QNLI)
    with pytest.raises(DataError, match="the split 'validation' of qnli has no example"):
        prepared(folder, "qnli")


def test_missing_files_are_found_without_opening_any(folder: Path) -> None:
    assert unreadable_reason(Glue(data="glue"), folder, folder) == ""
    assert unreadable_reason(Glue(), folder, folder) == ""
    assert unreadable_reason(Glue(data="none", tasks=("ordered", "halves")), folder, folder) == ""
    (folder / "glue/qnli/validation.jsonl").unlink()
    reason = unreadable_reason(Glue(data="glue"), folder, folder)
    assert "qnli has no file validation.jsonl or validation*.parquet; the folder has train" in reason
    assert "there is no folder" in unreadable_reason(Glue(data="glu"), folder, folder)
    os.mkfifo(folder / "glue/qnli/validation.jsonl")
    assert "validation.jsonl is not a file that can be read" in unreadable_reason(Glue(data="glue"), folder, folder)


def test_the_hub_is_read_at_a_fixed_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo: str, name: str, revision: str) -> Path:
        asked.append((repo, name, revision))
        return folder / "glue" / name

    monkeypatch.setattr(examples, "download", download)
    found = prepare_task("mnli", Glue(), TOKENIZER, folder, lambda message: None)
    names = [f"mnli/{split}-00000-of-00001.parquet" for split in RECORDS["mnli"]]
    assert asked == [(HUB, name, REVISION) for name in names]
    assert found.identity == prepared(folder, "mnli").identity


@pytest.mark.parametrize("task", ["ordered", "halves"])
def test_embedded_tasks_have_both_labels_and_one_or_two_texts(tmp_path: Path, task: str) -> None:
    found = prepared(tmp_path, task)
    held_out = found.held_out[task]
    assert (len(found.train), len(held_out)) == (1_000, 1_200)
    for own in (found.train, held_out):
        assert 0.45 < sum(own.labels) / len(own) < 0.55
    assert prepared(tmp_path, task).identity == found.identity
    ends = [list(row).count(TOKENIZER.eos_id) for row in found.train.ids]
    assert set(ends) == {len(found.task.texts) + 1}
