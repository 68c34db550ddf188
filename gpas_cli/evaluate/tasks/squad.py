"""SQuAD v1.1 (Rajpurkar et al., 2016): the validation questions of the hub, and the file that its authors publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.data.hub import first_line, offline_if_unreachable
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
        import datasets

        try:
            with offline_if_unreachable():
                rows = datasets.load_dataset(_REPOSITORY, split="validation")
        except Exception as error:
            # Network, hub and builders raise many classes of exceptions; all of them mean that there are no documents.
            raise TaskUnavailable(
                f"the documents of {SQUAD} are unavailable: {type(error).__name__}: {first_line(error)}; connect this "
                "machine to the network, set HF_HOME to a cache that has them, or import the file dev-v1.1.json: "
                f"`gpas data import-task FILE --task {SQUAD}`"
            ) from error
        return [form_of(SQUAD).read(row) for row in rows]


def rows_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the questions of the authors' file, {"data": [{"paragraphs": [{"context", "qas"}]}]}, in the form of the
    hub."""
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = {"text": [answer["text"] for answer in asked["answers"]]}
                yield {"question": asked["question"], "context": paragraph["context"], "answers": answers}
