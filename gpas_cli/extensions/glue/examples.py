"""The examples of a task of GLUE as rows of tokens with a label: from the hub, local files, or the standard library.

    </s> premise </s> hypothesis </s>          the label is the target of the first token, all tokens see the whole row

Pretraining rows have the end token </s> before each document, and no other special token, so it stands for BERT's
[CLS] and [SEP]; all tokens have the first token type, as in pretraining.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpas_cli.data import disk
from gpas_cli.data.corpora import Notify
from gpas_cli.data.encode import Ids, id_type
from gpas_cli.data.files import check_file, opened_parquet, text_of
from gpas_cli.data.hub import download
from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.data.records import json_values
from gpas_cli.data.rows import Ints
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, nearest
from gpas_cli.extensions.glue.stage import HUB, REVISION, TASKS, TRAIN, Glue, Task
from gpas_cli.structure import Frozen

_SETTING = "glue.data"
_FEWEST, _MOST = 4, 12  # words of a line of the embedded tasks


class _Example(NamedTuple):
    texts: tuple[str, ...]
    label: int


class LabelledRows(Frozen):
    """Tokenised examples."""

    ids: Sequence[Ids]
    labels: Sequence[int]
    pad_id: int
    fingerprint: str  # a digest of tokens and labels
    cut: int  # how many are longer than a row

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Ints) -> Batch:
        """Return the batch of these rows, as long as the longest: the label is the target of the first token."""
        numbers = indices.tolist()
        sizes = np.array([len(self.ids[index]) for index in numbers], np.int64)
        inputs = np.full((len(sizes), int(sizes.max())), self.pad_id, np.int64)
        for number, index in enumerate(numbers):
            inputs[number, : sizes[number]] = self.ids[index]
        targets = np.full_like(inputs, IGNORED)
        targets[:, 0] = [self.labels[index] for index in numbers]
        return Batch(inputs, targets, sizes)


class TaskRows(Frozen):
    """The rows of a task: for training, and for each score."""

    task: Task
    train: LabelledRows
    held_out: Mapping[str, LabelledRows]
    tokenizer: str

    @property
    def identity(self) -> str:
        """A digest of the rows to train on and their tokenizer. A run cannot be resumed with others."""
        return disk.digest({"text": self.train.fingerprint, "tokenizer": self.tokenizer})


def unreadable_reason(spec: Glue, cache: Path, root: Path) -> str:
    """Return why the files of the tasks cannot be read, "" if no reason is found. Opens no file, uses no network."""
    read = [TASKS[task] for task in spec.tasks if not TASKS[task].embedded]
    try:
        for task in read if spec.data != HUB else ():
            for split in (TRAIN, *task.held_out.values()):
                _files(task, split, root / Path(spec.data).expanduser())
    except DataError as error:
        return str(error)
    return ""


def prepare_task(name: str, spec: Glue, tokenizer: Tokenizer, root: Path, notify: Notify) -> TaskRows:
    """Return the rows of a task. Raises DataError if its files are unavailable, or have no or an invalid example."""
    task = TASKS[name]
    notify(f"reading {name}")

    def rows(split: str) -> LabelledRows:
        found = list(
            islice(_embedded(task, split) if task.embedded else _read(task, split, spec, root), spec.limit or None)
        )
        if not found:
            raise DataError(f"{_SETTING}: the split '{split}' of {name} has no example")
        return _encoded(found, spec.length, tokenizer)

    train = rows(TRAIN)
    if absent := [label for number, label in enumerate(task.labels) if number not in train.labels]:
        raise DataError(
            f"{_SETTING}: no example to train {name} on has the label {task.labels.index(absent[0])}, {absent[0]}"
        )
    return TaskRows(task, train, {score: rows(split) for score, split in task.held_out.items()}, tokenizer.identity)


def _encoded(examples: Sequence[_Example], length: int, tokenizer: Tokenizer) -> LabelledRows:
    columns = [tokenizer.encode_documents(texts) for texts in zip(*(one.texts for one in examples), strict=True)]
    ids, cut = [], 0
    for parts in zip(*columns, strict=True):
        fitted = _fitted([part.ids[:-1] for part in parts], length - 1 - len(parts))
        cut += sum(map(len, fitted)) < sum(len(part.ids) - 1 for part in parts)
        ends = ((*part, tokenizer.eos_id) for part in fitted)
        ids.append(np.array([tokenizer.eos_id, *chain.from_iterable(ends)], id_type(tokenizer.vocab)))
    labels = [one.label for one in examples]
    content = hashlib.sha256(disk.digest(labels).encode())
    for own in ids:
        content.update(hashlib.sha256(own.tobytes()).digest())
    return LabelledRows(ids, labels, tokenizer.pad_id, content.hexdigest(), cut)


def _fitted(parts: Sequence[Sequence[int]], room: int) -> list[Sequence[int]]:
    """Return the texts without the ends that do not fit: of the longer text first, as in BERT's own code."""
    if len(parts) == 1:
        return [parts[0][:room]]
    first, second = parts
    half = room // 2
    kept = min(len(first), max(room - len(second), room - half))
    return [first[:kept], second[: room - kept]]


# Files


def _files(task: Task, split: str, folder: Path) -> list[Path]:
    """Return the files of a split: <task>/<split>.jsonl, or <task>/<split>*.parquet. Raises DataError without any."""
    for form in (f"{split}.jsonl", f"{split}*.parquet"):
        if found := sorted(folder.glob(f"{task.name}/{form}")):
            for path in found:
                check_file(path, f"{_SETTING}: ")
            return found
    if not folder.is_dir():
        raise DataError(f"{_SETTING}: there is no folder {folder}; name {HUB} or a folder with its files")
    others = sorted({path.stem.partition("-")[0] for path in folder.glob(f"{task.name}/*")})
    hint = f"; the folder has {', '.join(others)}" if others else ""
    raise DataError(f"{_SETTING}: {folder / task.name} has no file {split}.jsonl or {split}*.parquet{hint}")


def _read(task: Task, split: str, spec: Glue, root: Path) -> Iterator[_Example]:
    if spec.data == HUB:
        paths = [download(HUB, f"{task.name}/{split}-00000-of-00001.parquet", REVISION)]
    else:
        paths = _files(task, split, root / Path(spec.data).expanduser())
    for path in paths:
        for where, value in _parquet_rows(path) if path.suffix == ".parquet" else json_values(path, listed=False):
            yield _example(task, where, value)


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a Parquet file with their places. Raises DataError if it cannot be read."""
    with opened_parquet(path) as file:
        rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def _example(task: Task, where: object, value: object) -> _Example:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: a {type(value).__name__}, not a record of {', '.join((*task.texts, 'label'))}")
    texts = tuple(text_of(value, name, where) for name in task.texts)
    if "label" not in value:
        raise DataError(f"{where}: no field 'label'; {nearest('label', value)}")
    label = value["label"]
    if label == -1:
        raise DataError(
            f"{where}: the label is -1: it is hidden, as in GLUE's test splits, which cannot be scored here"
        )
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(task.labels):
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(task.labels))
        raise DataError(f"{where}: the label {label!r} is not one of {task.name}: {known}")
    return _Example(texts, label)


# The standard library


def _embedded(task: Task, split: str) -> Iterator[_Example]:
    """Yield lines of source files, as many of each file, half of them with their words in another order.

    Hashes of the lines decide what could be random. A task with two texts has the halves of the lines.
    """
    documents = [one.text for one in Stdlib().documents(split) if one.id.startswith("lib/")]
    count = task.examples if split == TRAIN else task.evaluated
    each = -(-2 * count // len(documents))
    found = [one for text in documents for one in islice(_lines(text), each)]
    for number in range(min(count, len(found))):
        words, label = found[number * len(found) // count]
        bounds = [round(part * len(words) / len(task.texts)) for part in range(len(task.texts) + 1)]
        yield _Example(tuple(" ".join(words[first:last]) for first, last in pairwise(bounds)), label)


def _lines(text: str) -> Iterator[tuple[list[str], int]]:
    """Yield the words of lines in the last two thirds of a file, with the label: 0 as they are, 1 shuffled."""
    for line in text[len(text) // 3 :].split("\n"):
        words = line.split()
        shuffled = sorted(words, key=lambda word: hashlib.sha256(f"{line} {word}".encode()).digest())
        if _FEWEST <= len(words) <= _MOST and words != shuffled:
            label = hashlib.sha256(line.encode()).digest()[0] % 2
            yield (shuffled if label else words), label
