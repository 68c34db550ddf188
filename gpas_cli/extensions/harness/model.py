"""The model class through which lm-evaluation-harness computes likelihoods. Importing this module needs lm_eval."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate

from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.downstream import windows
from gpas_cli.evaluate.likelihood import Report, Request, Scorer
from gpas_cli.evaluate.tasks import NothingFits

_REMEMBERED_TEXTS = 64  # the choices of a question follow each other and share their context


class _ChoicesTooLong(Exception):
    """Some documents have a continuation that is longer than `max_length`: their numbers, from 0, by task."""

    def __init__(self, documents: dict[str, set[int]]):
        super().__init__()
        self.documents = documents


def evaluate_fitting(model: HarnessModel, loaded: Any, limit: int | None, **options: Any) -> tuple[Any, dict[str, int]]:
    """Return the harness's results without the documents that have a choice too long for the model, and their numbers.

    Raises NothingFits if no document of a task is left.
    """
    try:
        return evaluate(model, loaded, limit=limit, **options), {}
    except _ChoicesTooLong as error:
        skipped = error.documents
    sizes = {name: min(len(task.eval_docs), limit or sys.maxsize) for name, task in loaded["tasks"].items()}
    fitting = {name: sorted({*range(size)} - skipped.get(name, set())) for name, size in sizes.items()}
    if not all(fitting.values()):
        raise NothingFits(sum(sizes.values()), model.scorer.max_length)
    found = evaluate(model, loaded, samples=fitting, **options)
    return found, {name: len(numbers) for name, numbers in skipped.items()}


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A network behind a `Scorer`, with the tokenizer that it was trained with.

    The base class divides texts into context and continuation. No special tokens are added but the tokenizer's `start`:
    the network has never seen an end token between context and continuation.
    """

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer, progress: Report | None = None):
        super().__init__()
        self.scorer = scorer
        self.progress = progress
        self._tokens = tokenizer
        self._encode = lru_cache(_REMEMBERED_TEXTS)(tokenizer.encode)

    @property
    def eot_token_id(self) -> int:
        return self._tokens.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self._tokens.first_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_rest: Any) -> list[int]:
        start = () if add_special_tokens is False else self._tokens.start
        return [*start, *self._encode(string)]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """Return log p of each continuation. Raises _ChoicesTooLong before anything is computed."""
        self._instances = requests
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **_rest: Any
    ) -> list[tuple[float, bool]]:
        asked = [Request(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        too_long: dict[str, set[int]] = {}
        for instance, request in zip(self._instances, asked, strict=True):
            if not self.scorer.fits(request):
                too_long.setdefault(instance.task_name, set()).add(instance.doc_id)
        if too_long:
            raise _ChoicesTooLong(too_long)
        return [(one.total, one.greedy) for one in self.scorer.score(asked, self.progress)]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> list[float]:
        """Return log p of whole texts. The first token follows the start or end token, as in training.

        A text longer than the scorer's `max_length` is divided into windows, and every token is scored once, in the
        window with the most context.
        """
        asked: list[Request] = []
        spans: list[slice] = []
        for instance in requests:
            (text,) = instance.args
            tokens = (self.prefix_token_id, *self.tok_encode(text, add_special_tokens=False))
            start = len(asked)
            asked.extend(windows(tokens, self.scorer.max_length))
            spans.append(slice(start, len(asked)))
        totals = [one.total for one in self.scorer.score(asked, self.progress)]
        return [math.fsum(totals[span]) for span in spans]

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> NoReturn:
        raise GpasError("this task generates text by lm-evaluation-harness; only tasks of likelihoods are scored by it")
