"""The types that several JSON documents share. A document stands beside the function that makes it.

`tools/schemas.py` names the document of each command. `schema` grows when a reader of the old
form would misread the new one; new fields may come at any time.
"""

from typing import Annotated, Literal

from gpas_cli.events import Score
from gpas_cli.structure import Document, Number

StateJson = Annotated[
    str, ("missing", "queued", "running", "interrupted", "done", "diverged", "failed", "cancelled", "unknown")
]
CellStateJson = Annotated[
    str,
    ("missing", "queued", "running", "interrupted", "done", "diverged", "not finite", "failed", "cancelled", "unknown"),
    "not finite: diverged in the first tenth of its updates, which is no result; counts and --state say diverged",
]
Time = Annotated[float, "unix time, seconds"]


class DocumentJson(Document):
    """Every document begins with its version."""

    schema: Annotated[Literal[1], "version of the document's form"] = 1


class ScoreJson(Document):
    """One metric of one task."""

    task: str
    metric: Annotated[str, "acc, acc_norm, perplexity, word_perplexity, ..., skipped (a number of questions)"]
    value: Annotated[Number, "accuracies are fractions"]
    stderr: Annotated[Number | None, "the standard error, null if unknown"]
    examples: Annotated[int, "how many questions were scored"]
    shots: Annotated[int, "answered examples before each question"]
    task_version: str
    harness: Annotated[str, "the program that scored the task, its version and, of a text, how"]

    @classmethod
    def of(cls, score: Score) -> "ScoreJson":
        """Return the document of a score."""
        return cls(
            task=score.task, metric=score.metric, value=score.value, stderr=score.stderr, examples=score.examples,
            shots=score.shots, task_version=score.task_version, harness=score.harness,
        )  # fmt: skip
