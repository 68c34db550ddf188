"""A text of a few pages and a few finetuning records, cut from the standard library's source, for smoke tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gpas_cli.data.stdlib import Stdlib
from gpas_cli.files import replace_file

TRAINING_TEXT = "train.jsonl"
VALIDATION_TEXT = "validation.jsonl"
FINETUNING_RECORDS = "records.jsonl"

TRAINING_DOCUMENTS = 96
VALIDATION_DOCUMENTS = 24
DOCUMENT_CHARACTERS = 1200  # at most
RECORDS = 12
RECORD_CHARACTERS = 60  # of an instruction, and of its answer


def write_sample(folder: Path) -> None:
    """Write the text and the records to `folder`, unless they are there.

    Raises DataError if the source of the standard library is not installed.
    """
    if (folder / FINETUNING_RECORDS).is_file():
        return
    source = Stdlib()
    training = [document.text for document in islice(source.documents("train"), TRAINING_DOCUMENTS)]
    validation = [document.text for document in islice(source.documents("validation"), VALIDATION_DOCUMENTS)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TRAINING_TEXT, ({"text": text[:DOCUMENT_CHARACTERS]} for text in training))
    _write(folder / VALIDATION_TEXT, ({"text": text[:DOCUMENT_CHARACTERS]} for text in validation))
    _write(folder / FINETUNING_RECORDS, map(_record, training[:RECORDS]))


def _write(path: Path, records: Iterable[dict[str, str]]) -> None:
    replace_file(path, "".join(f"{json.dumps(record)}\n" for record in records))


def _record(text: str) -> dict[str, str]:
    """Return a record whose answer continues its instruction, a piece of code."""
    words = " ".join(text.split())
    half, whole = RECORD_CHARACTERS, 2 * RECORD_CHARACTERS
    return {"instruction": words[:half], "input": "", "output": words[half:whole]}
