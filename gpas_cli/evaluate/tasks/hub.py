"""Tasks of data sets of the hub or of their authors' files: SQuAD v1.1, and those whose answers the network generates.

The prompts are those of lm-evaluation-harness; DROP has GPT-3's (Brown et al. 2020, appendix G), and QuAC that of CoQA:
a question of a conversation has the earlier ones with their answers before it. A prompt may begin with solved examples
from the training split, the same ones for all questions.

SQuAD v2 and the gold passage task of TyDi QA have files of the form of SQuAD v1.1 (Rajpurkar et al., 2016).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gpas_cli.data.hub import load_rows
from gpas_cli.errors import DataError
from gpas_cli.evaluate.tasks import TaskUnavailable
from gpas_cli.evaluate.tasks.forms import Prompted, form_of
from gpas_cli.spec.downstream import MOST_EXAMPLES, SQUAD
from gpas_cli.structure import Frozen

_Row = TypeVar("_Row")
_Questions = Iterator[dict[str, Any]]
_SEED = 1234  # as in lm-evaluation-harness
_ENGLISH = "english-"  # begins the ids of English questions in TyDi QA


class HubTask(Frozen):
    """One of the data sets of the hub, or of its cache. Raises TaskUnavailable where they are read."""

    name: str

    def questions(self) -> Sequence[Any]:
        """Return the validation questions, in the order of the data set."""
        return [form_of(self.name).read(row) for row in _hub_rows(self.name, _DATA_SETS[self.name].tested)]

    def examples(self, count: int) -> Sequence[Prompted]:
        """Return `count` questions of the training split."""
        return [form_of(self.name).read(row) for row in drawn_examples(_hub_rows(self.name, "train"))[:count]]


def _hub_rows(task: str, split: str) -> Sequence[Any]:
    """Return the questions of a split of a data set of the hub or its cache. Raises TaskUnavailable."""
    data_set = _DATA_SETS[task]
    own = f"import the file {data_set.file}: `gpas data import-task FILE --task {task}`"
    try:
        rows = load_rows(f"cannot load the documents of {task}", own, split=split, **data_set.where)
    except DataError as error:
        raise TaskUnavailable(str(error)) from error
    return data_set.on_hub(rows)


def drawn_examples(training: Sequence[_Row]) -> list[_Row]:
    """Return the questions of a training split that prompts can have as examples, at most MOST_EXAMPLES."""
    drawn = random.Random(_SEED).sample(range(len(training)), min(MOST_EXAMPLES, len(training)))
    return [training[place] for place in drawn]


def rows_in(document: Any, task: str) -> _Questions:
    """Yield the questions of the authors' file of a task in the form of the hub; of TyDi QA those in English."""
    return iter(_DATA_SETS[task].in_file(document))


def _squad(document: Mapping[str, Any], *, labelled: bool = True) -> _Questions:
    """Yield the questions of {"data": [{"paragraphs": [{"context", "qas"}]}]}; if `labelled` with `id`, and with the
    `title` of their article, "" where the file has none."""
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = {"text": [answer["text"] for answer in asked["answers"]]}
                labels = {"id": asked["id"], "title": article.get("title", "")} if labelled else {}
                yield {**labels, "question": asked["question"], "context": paragraph["context"], "answers": answers}


def _is_english(row: Mapping[str, Any]) -> bool:
    return bool(row["id"].startswith(_ENGLISH))


def _triviaqa(document: Mapping[str, Any]) -> _Questions:
    for asked in document["Data"]:
        answer = {"value": asked["Answer"]["Value"], "aliases": asked["Answer"]["Aliases"]}
        yield {"question": asked["Question"], "answer": answer}


def _turns(
    context: str, questions: Sequence[str], answers: Sequence[str], accepted: Sequence[Sequence[str]]
) -> _Questions:
    """Yield each question of a conversation about a text. accepted: of each question, what counts as right too."""
    context = context.removesuffix("CANNOTANSWER").strip()
    for place, (question, right) in enumerate(zip(questions, accepted, strict=True)):
        before = [list(pair) for pair in zip(questions[:place], answers, strict=False)]
        yield {"context": context, "before": before, "question": question, "answers": [answers[place], *right]}


def _coqa(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the questions of conversations of CoQA: of the hub, whose turns are columns, or of the authors' file."""
    found = list[dict[str, Any]]()
    for row in rows:
        asked, answers, *others = (
            turns["input_text"] if isinstance(turns, Mapping) else [turn["input_text"] for turn in turns]
            for turns in (row["questions"], row["answers"], *row.get("additional_answers", {}).values())
        )
        found += _turns(row["story"], asked, answers, [*zip(*others, strict=True)] or [()] * len(asked))
    return found


def _quac(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the questions of conversations of QuAC on the hub."""
    return [
        turn
        for row in rows
        for turn in _turns(row["context"], row["questions"], row["orig_answers"]["texts"], row["answers"]["texts"])
    ]


def _quac_file(document: Mapping[str, Any]) -> _Questions:
    for paragraph in (paragraph for article in document["data"] for paragraph in article["paragraphs"]):
        asked = paragraph["qas"]
        texts = [[answer["text"] for answer in one["answers"]] for one in asked]
        first = [one.get("orig_answer", one["answers"][0])["text"] for one in asked]
        yield from _turns(paragraph["context"], [one["question"] for one in asked], first, texts)


class _DataSet(Frozen):
    """Where the hub has a data set, and the authors' file with its validation questions. Some have no fixed revision:
    the digest of their questions, which is recorded with each score, tells versions apart."""

    where: Mapping[str, str]
    file: str
    in_file: Callable[[Any], Iterable[dict[str, Any]]] = _squad  # returns the questions of the authors' file
    on_hub: Callable[[Any], Sequence[Any]] = lambda rows: rows  # returns the questions of the rows of the hub
    tested: str = "validation"  # the split with the questions


_DATA_SETS: dict[str, _DataSet] = {
    SQUAD: _DataSet({"path": "rajpurkar/squad"}, "dev-v1.1.json", partial(_squad, labelled=False)),
    "triviaqa": _DataSet(
        {
            "path": "mandarjoshi/trivia_qa",
            "name": "rc.nocontext",
            "revision": "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
        },
        "web-dev.json or wikipedia-dev.json",
        _triviaqa,
    ),
    "tydiqa": _DataSet(
        {"path": "google-research-datasets/tydiqa", "name": "secondary_task"},
        "tydiqa-goldp-v1.1-dev.json",
        lambda document: filter(_is_english, _squad(document)),
        lambda rows: rows.filter(_is_english),
    ),
    "squadv2": _DataSet(
        {"path": "rajpurkar/squad_v2", "revision": "3ffb306f725f7d2ce8394bc1873b24868140c412"}, "dev-v2.0.json"
    ),
    "webqs": _DataSet(  # which has no validation split
        {"path": "stanfordnlp/web_questions"}, "of its questions as JSON lines", tested="test"
    ),
    "nq_open": _DataSet({"path": "google-research-datasets/nq_open"}, "NQ-open.dev.jsonl"),
    "drop": _DataSet(
        {"path": "EleutherAI/drop"},
        "drop_dataset_dev.json",
        lambda document: ({**a, "passage": p["passage"]} for p in document.values() for a in p["qa_pairs"]),
    ),
    "coqa": _DataSet(
        {"path": "EleutherAI/coqa"}, "coqa-dev-v1.0.json", lambda document: _coqa(document["data"]), _coqa
    ),
    "quac": _DataSet({"path": "allenai/quac", "revision": "refs/convert/parquet"}, "val_v0.2.json", _quac_file, _quac),
}
IN_FILES = tuple(_DATA_SETS)  # tasks whose authors publish a file of another form than the hub's
