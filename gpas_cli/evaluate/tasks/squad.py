"""SQuAD v1.1 (Rajpurkar et al., 2016): the validation questions of the hub, and the file that its authors publish.

SQuAD v2 and the gold passage task of TyDi QA have files of the same form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.data.hub import offline_if_unreachable, unavailable
from gpas_cli.evaluate.task_score import TaskUnavailable
from gpas_cli.evaluate.tasks.forms import SpanQuestion, form_of
from gpas_cli.spec.downstream import SQUAD

_REPOSITORY = "rajpurkar/squad"


@dataclass(frozen=True)
class HubSquad:
    """The 10,570 validation questions, from the hub or its cache."""

    name: str = SQUAD

    def questions(self) -> Sequence[SpanQuestion]:
        """Return the questions in the order of the data set. Raises TaskUnavailable."""
        rows = hub_rows(SQUAD, "dev-v1.1.json", path=_REPOSITORY, split="validation")
        return [form_of(SQUAD).read(row) for row in rows]


def hub_rows(task: str, file: str, **where: Any) -> Any:
    """Return the rows of a data set of the hub or its cache; `where`: arguments of `datasets.load_dataset`.

    `file`: the authors' file with the same questions. Raises TaskUnavailable.
    """
    import datasets

    try:
        with offline_if_unreachable():
            return datasets.load_dataset(**where)
    except Exception as error:
        # Network, hub and builders raise many classes of exceptions; all of them mean that there are no documents.
        own = f"import the file {file}: `gpas data import-task FILE --task {task}`"
        raise TaskUnavailable(unavailable(f"cannot load the documents of {task}", error, own)) from error


def rows_of(document: Mapping[str, Any], *, labelled: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the questions of the authors' file, {"data": [{"paragraphs": [{"context", "qas"}]}]}, in the form of the
    hub. `labelled`: with `id`, and with the `title` of their article, "" where the file has none."""
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = {"text": [answer["text"] for answer in asked["answers"]]}
                labels = {"id": asked["id"], "title": article.get("title", "")} if labelled else {}
                yield {**labels, "question": asked["question"], "context": paragraph["context"], "answers": answers}
