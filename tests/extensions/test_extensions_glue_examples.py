"""Examples of GLUE's tasks: files as on the hub, labels, rows of tokens, and messages with file and place."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from gpas_cli.data.loader import IGNORED, MadeBatches, RowOrder
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.extensions.glue import examples
from gpas_cli.extensions.glue.examples import TaskRows, prepare_task, unreadable_reason
from gpas_cli.extensions.glue.stage import HUB, REVISION, Glue

# Among the first records of the training splits of nyu-mll/glue, with its columns (MNLI: Williams et al. 2018, OANC
# licence and others; QNLI from SQuAD: Rajpurkar et al. 2016, CC BY-SA 4.0; SST-2: Socher et al. 2013).
MNLI = [
    {
        "premise": "Conceptually cream skimming has two basic dimensions - product and geography.",
        "hypothesis": "Product and geography are what make cream skimming work. ",
        "label": 1,
        "idx": 0,
    },
    {
        "premise": "How do you know? All this is their information again.",
        "hypothesis": "This information belongs to them.",
        "label": 0,
        "idx": 3,
    },
    {
        "premise": "At the end of Rue des Francs-Bourgeois is what many consider to be the city's most handsome "
        "residential square, the Place des Vosges, with its stone and red brick facades.",
        "hypothesis": "Place des Vosges is constructed entirely of gray marble.",
        "label": 2,
        "idx": 10,
    },
]
QNLI = [
    {
        "question": "When did the third Digimon series begin?",
        "sentence": "Unlike the two seasons before it and most of the seasons that followed, Digimon Tamers takes a "
        "darker and more realistic approach to its story.",
        "label": 1,
        "idx": 0,
    },
    {
        "question": "What two things does Popper argue Tarski's theory involves in an evaluation of truth?",
        "sentence": "He bases this interpretation on the fact that examples such as the one described above refer to "
        "two things: assertions and the facts to which they refer.",
        "label": 0,
        "idx": 2,
    },
]
SST2 = [
    {"sentence": "hide new secretions from the parental units ", "label": 0, "idx": 0},
    {
        "sentence": "that loves its characters and communicates something rather beautiful about human nature ",
        "label": 1,
    },
]
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
    assert batch.prefix is not None
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


def test_batches_are_a_function_of_the_seed_and_the_update(folder: Path) -> None:
    rows = prepared(folder, "mnli").train

    def batches(seed: int) -> MadeBatches:
        return MadeBatches(RowOrder(len(rows), 2, seed), rows.batch)

    digests = [[batches(seed).at(step).digest() for step in range(6)] for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    labels = Counter(label for step in range(3) for label in batches(1).at(step).targets[:, 0].tolist())
    assert labels == {0: 2, 1: 2, 2: 2}  # two epochs


def test_a_limit_reads_the_first_examples_of_each_split(folder: Path) -> None:
    assert [len(rows) for rows in prepared(folder, "mnli", limit=3).held_out.values()] == [3, 3]
    assert [len(rows) for rows in prepared(folder, "sst2", limit=2).held_out.values()] == [2]


@pytest.mark.parametrize(
    ("split", "changed", "message"),
    [
        (
            "validation",
            {"label": -1},
            r"qnli/validation.jsonl:1: the label is -1: it is hidden, as in GLUE's test splits",
        ),
        (
            "train",
            {"label": 2},
            r"qnli/train.jsonl:1: the label 2 is not one of qnli: 0 \(entailment\), 1 \(not_entail",
        ),
        ("train", {"label": True}, "the label True is not one of qnli"),
        ("train", {"label": "entailment"}, "the label 'entailment' is not one of qnli"),
        ("train", {"sentence": None}, "the field 'sentence' is not text but null"),
    ],
)
def test_a_wrong_record_is_one_message(folder: Path, split: str, changed: dict[str, Any], message: str) -> None:
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
    for rows in (found.train, held_out):
        assert 0.45 < sum(rows.labels) / len(rows) < 0.55
    assert prepared(tmp_path, task).identity == found.identity
    ends = [list(row).count(TOKENIZER.eos_id) for row in found.train.ids]
    assert set(ends) == {len(found.task.texts) + 1}
