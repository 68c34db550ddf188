"""The score of a network at a downstream task or on a text, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpas_cli.errors import GpasError

# Called with the requests that are done, and their total.
Report = Callable[[int, int], None]
# Scores a network at a task that has been read, any number of times: called with `progress` and `stop`. Raises
# ScoringStopped after `stop`.
TaskScorer = Callable[..., "list[TaskScore]"]
# Called with the task or text, its place among them (from 0), the requests that are done, and their total.
Progress = Callable[[str, int, int, int], None]


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


def scored_in_turn(
    names: Sequence[str],
    score: Callable[[str, Report | None], list[TaskScore]],
    skip: Iterable[str] = (),
    progress: Progress | None = None,
) -> Iterator[list[TaskScore] | MissingTask]:
    """Yield what `score` returns for each of `names` that is not in `skip`, or the message of its GpasError."""
    done = frozenset(skip)
    for place, name in enumerate(names):
        if name in done:
            continue
        try:
            yield score(name, partial(progress, name, place) if progress else None)
        except GpasError as error:
            yield MissingTask(name, str(error))
