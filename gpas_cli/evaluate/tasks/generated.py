"""Tasks whose answers the network generates, TriviaQA and others, from the hub or from their authors' files.

The prompts are those of lm-evaluation-harness; DROP has GPT-3's (Brown et al. 2020, appendix G), and QuAC that of CoQA:
a question of a conversation has the earlier ones with their answers before it. A prompt may begin with solved examples
from the training split, the same ones for all questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from gpas_cli.evaluate.tasks.forms import Prompted, form_of
from gpas_cli.evaluate.tasks.squad import hub_rows, rows_of
from gpas_cli.spec.downstream import MOST_EXAMPLES, SQUAD

_Row = TypeVar("_Row")
_SEED = 1234  # as in lm-evaluation-harness
_ENGLISH = "english-"  # begins the ids of English questions in TyDi QA
# Where the hub has each data set, and the authors' file with its validation questions. Some have no fixed revision: the
# digest of their questions, which is recorded with each score, tells versions apart.
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
    "webqs": ({"path": "stanfordnlp/web_questions"}, "of its questions as JSON lines"),
    "nq_open": ({"path": "google-research-datasets/nq_open"}, "NQ-open.dev.jsonl"),
    "drop": ({"path": "EleutherAI/drop"}, "drop_dataset_dev.json"),
    "coqa": ({"path": "EleutherAI/coqa"}, "coqa-dev-v1.0.json"),
    "quac": ({"path": "allenai/quac", "revision": "refs/convert/parquet"}, "val_v0.2.json"),
}
_TESTED = "webqs"  # on the split `test`: it has no validation split
IN_FILES = (SQUAD, *_HUB)  # tasks whose authors publish a file of another form than the hub's


@dataclass(frozen=True)
class HubGenerated:
    """One of the data sets of the hub, or of its cache. Raises TaskUnavailable where they are read."""

    name: str

    def questions(self) -> Sequence[Prompted]:
        """Return the validation questions in the order of the data set."""
        return [form_of(self.name).read(row) for row in self._rows("test" if self.name == _TESTED else "validation")]

    def examples(self, count: int) -> Sequence[Prompted]:
        """Return `count` questions of the training split."""
        return [form_of(self.name).read(row) for row in drawn_examples(self._rows("train"))[:count]]

    def _rows(self, split: str) -> Sequence[Any]:
        where, file = _HUB[self.name]
        rows = hub_rows(self.name, file, split=split, **where)
        if self.name in _ROWS_OF:
            return [*chain.from_iterable(map(_ROWS_OF[self.name], rows))]
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
    if task == "drop":
        for passage in document.values():
            for asked in passage["qa_pairs"]:
                yield {**asked, "passage": passage["passage"]}
        return
    if task == "coqa":
        yield from chain.from_iterable(map(_coqa, document["data"]))
        return
    if task == "quac":
        for paragraph in (paragraph for article in document["data"] for paragraph in article["paragraphs"]):
            asked = paragraph["qas"]
            texts = [[answer["text"] for answer in one["answers"]] for one in asked]
            first = [one.get("orig_answer", one["answers"][0])["text"] for one in asked]
            yield from _turns(paragraph["context"], [one["question"] for one in asked], first, texts)
        return
    for row in rows_of(document, labelled=task != SQUAD):
        if task != "tydiqa" or row["id"].startswith(_ENGLISH):
            yield row


def _turns(
    context: str, questions: Sequence[str], answers: Sequence[str], accepted: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield each question of a conversation about a text. accepted: of each question, what counts as right too."""
    context = context.removesuffix("CANNOTANSWER").strip()
    for place, (question, right) in enumerate(zip(questions, accepted, strict=True)):
        before = [list(pair) for pair in zip(questions[:place], answers, strict=False)]
        yield {"context": context, "before": before, "question": question, "answers": [answers[place], *right]}


def _coqa(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the questions of a conversation of CoQA: of the hub, whose turns are columns, or of the authors' file."""
    asked, answers, *others = (
        turns["input_text"] if isinstance(turns, Mapping) else [turn["input_text"] for turn in turns]
        for turns in (row["questions"], row["answers"], *row.get("additional_answers", {}).values())
    )
    yield from _turns(row["story"], asked, answers, [*zip(*others, strict=True)] or [()] * len(asked))


def _quac(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the questions of a conversation of QuAC on the hub."""
    yield from _turns(row["context"], row["questions"], row["orig_answers"]["texts"], row["answers"]["texts"])


_ROWS_OF = {"coqa": _coqa, "quac": _quac}  # tasks whose rows on the hub are conversations
