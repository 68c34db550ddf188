"""Tasks whose answers the network generates: TriviaQA, TyDi QA and SQuAD v2, from the hub or from their authors' files.

The prompts are those of lm-evaluation-harness. A prompt may begin with solved examples from the training split, the
same ones for all questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpas_cli.evaluate.tasks.forms import Prompted, form_of
from gpas_cli.evaluate.tasks.squad import hub_rows, rows_of
from gpas_cli.spec.downstream import MOST_EXAMPLES, SQUAD

_Row = TypeVar("_Row")
_SEED = 1234  # as in lm-evaluation-harness
_ENGLISH = "english-"  # begins the ids of English questions in TyDi QA
# Where the hub has each data set, and the authors' file with its validation questions. TyDi QA has no fixed revision:
# the digest of its questions, which is recorded with each score, tells its versions apart.
_HUB: dict[str, tuple[dict[str, str], str]] = {
    "triviaqa": (
        {
            "path": "mandarjoshi/trivia_qa",
            "name": "rc.nocontext",
            "revision": "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
        },
        "web-dev.json or wikipedia-dev.json",
    ),
    "tydiqa": (
        {"path": "google-research-datasets/tydiqa", "name": "secondary_task"},
        "tydiqa-goldp-v1.1-dev.json",
    ),
    "squadv2": (
        {"path": "rajpurkar/squad_v2", "revision": "3ffb306f725f7d2ce8394bc1873b24868140c412"},
        "dev-v2.0.json",
    ),
}
IN_FILES = (SQUAD, *_HUB)  # tasks whose authors publish a file of another form than the hub's


@dataclass(frozen=True)
class HubGenerated:
    """One of the data sets of the hub, or of its cache. Raises TaskUnavailable where they are read."""

    name: str

    def questions(self) -> Sequence[Prompted]:
        """Return the validation questions in the order of the data set."""
        return [form_of(self.name).read(row) for row in self._rows("validation")]

    def examples(self, count: int) -> Sequence[Prompted]:
        """Return `count` questions of the training split."""
        return [form_of(self.name).read(row) for row in drawn_examples(self._rows("train"))[:count]]

    def _rows(self, split: str) -> Sequence[Any]:
        where, file = _HUB[self.name]
        rows = hub_rows(self.name, file, split=split, **where)
        return rows.filter(lambda row: row["id"].startswith(_ENGLISH)) if self.name == "tydiqa" else rows  # type: ignore[no-any-return]


def drawn_examples(training: Sequence[_Row]) -> list[_Row]:
    """Return the questions of a training split that prompts can have as examples, at most MOST_EXAMPLES."""
    drawn = random.Random(_SEED).sample(range(len(training)), min(MOST_EXAMPLES, len(training)))
    return [training[place] for place in drawn]


def rows_in(document: Mapping[str, Any], task: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of the authors' file of a task in the form of the hub; of TyDi QA those in English."""
    if task == "triviaqa":
        for asked in document["Data"]:
            answer = {"value": asked["Answer"]["Value"], "aliases": asked["Answer"]["Aliases"]}
            yield {"question": asked["Question"], "answer": answer}
        return
    for row in rows_of(document, labelled=task != SQUAD):
        if task != "tydiqa" or row["id"].startswith(_ENGLISH):
            yield row
