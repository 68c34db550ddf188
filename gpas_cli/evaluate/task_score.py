"""The score of a network at a downstream task or on a text, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.errors import GpasError


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One metric of one task.

    metric: `acc`, `acc_norm`, `perplexity`, `word_perplexity`, ..., or `skipped`, the number of documents that were not
    scored. value: accuracies are fractions. stderr: its standard error, None if unknown. examples: how many documents
    were scored. harness: the program that scored them, and its version. shots: solved examples in each prompt.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    examples: int
    task_version: str
    harness: str
    shots: int = 0


@dataclass(frozen=True)
class MissingTask:
    """A task or text that could not be scored, and why."""

    task: str
    reason: str


class TaskUnavailable(GpasError):
    """A task has no documents to score, for instance because this machine has no network."""


class NothingFits(TaskUnavailable):
    """Every one of a task's `questions` has a choice of more than `max_length` tokens."""

    def __init__(self, questions: int, max_length: int):
        super().__init__(
            f"every question has a choice of more than max_length, {max_length} tokens; allow more of them"
        )
        self.questions = questions
