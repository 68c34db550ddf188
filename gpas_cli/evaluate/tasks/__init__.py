"""Tasks that are scored without lm-evaluation-harness.

Task          name; questions()
├── EmbeddedTask   made from the held-out half of the standard library     local.py
├── LocalTask      a file of the project, NAME@DIGEST                      local.py
├── RecallTask     names in that half, which the network completes         local.py
└── HubTask        SQuAD, TriviaQA and others, from the hub                hub.py
forms.py      the documents of known tasks -> questions, with the prompts of lm-evaluation-harness
"""

from __future__ import annotations

from collections.abc import Callable

from gpas_cli.errors import GpasError
from gpas_cli.events import Score

# Scores a network at a task that has been read, any number of times: called with what gets the requests that are done
# and their total, or None. Raises ScoringStopped as its scorer.
TaskScorer = Callable[..., list[Score]]


class TaskUnavailable(GpasError):
    """A task cannot be scored: it has no documents, for instance because this machine has no network, or no reader."""


class NothingFits(TaskUnavailable):
    """Every one of a task's `questions` has a choice of more than `max_length` tokens."""

    def __init__(self, questions: int, max_length: int):
        super().__init__(
            f"every question has a choice of more than max_length, {max_length} tokens; allow more of them"
        )
        self.questions = questions
