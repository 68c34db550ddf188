"""Tasks of lm-evaluation-harness on documents of the tests' own, in the harness's own format."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.likelihood import Report, Scorer
from gpas_cli.events import Score
from gpas_cli.extensions.harness import scoring as harness


def write(path: Path, documents: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def score_local(
    task: str,
    scorer: Scorer,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    shots: int = 0,
    limit: int | None = None,
    progress: Report | None = None,
) -> list[Score]:
    """Score the harness's task on folder/TASK.jsonl, with solved examples of TASK.train.jsonl."""
    load = harness._load
    paths = {"test": folder / f"{task}.jsonl", **({"train": folder / f"{task}.train.jsonl"} if shots else {})}
    splits = {name: [json.loads(line) for line in path.read_text().splitlines()] for name, path in paths.items()}

    def datasets(config_source: str = "", **_rest: Any) -> Any:
        """Return the documents; of MMLU those of one subject, which the name of its definition has."""
        from datasets import Dataset

        subject = Path(config_source).stem.removeprefix("mmlu_")
        return {
            name: Dataset.from_list([one for one in documents if one.get("subject", subject) == subject])
            for name, documents in splits.items()
        }

    train = "train" if shots else None
    own = {"training_split": train, "validation_split": None, "test_split": "test", "fewshot_split": train}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "_load", lambda name, fields: load(name, {**fields, **own, "custom_dataset": datasets}))
        return harness.official_scorer(task, scorer, tokenizer, shots=shots, limit=limit)(progress)
