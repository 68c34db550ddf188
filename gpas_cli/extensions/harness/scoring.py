"""Score a network at tasks of EleutherAI's lm-evaluation-harness, which is imported when it is needed.

The tasks of the papers:

    mmlu winogrande piqa openbookqa hellaswag boolq arc_easy    GPAS, table 3
    social_iqa arc_challenge                                    the poster, besides those
    cb copa sglue_rte wic wsc multirc record                    SuperGLUE in RaPTr, table 3, with boolq
    xstorycloze_en                                              RaPTr, table 11: StoryCloze, with hellaswag and LAMBADA
    wikitext lambada_openai                                     Spike No More

Any other task of likelihoods that the installed harness has is scored as well.
"""

from __future__ import annotations

import io
import logging
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpas_cli.data.hub import offline_if_unreachable, unavailable
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError, nearest
from gpas_cli.evaluate.likelihood import Report, Scorer
from gpas_cli.evaluate.tasks import TaskScorer, TaskUnavailable
from gpas_cli.events import Score
from gpas_cli.spec.downstream import SKIPPED

# The folders of lm_eval/tasks with the definitions of these tasks: reading all 14,000 definitions takes 6 seconds.
_FOLDERS = {
    "mmlu": "mmlu/default",
    "winogrande": "winogrande",
    "piqa": "piqa",
    "openbookqa": "openbookqa",
    "hellaswag": "hellaswag",
    "boolq": "super_glue/boolq",
    "cb": "super_glue/cb",
    "copa": "super_glue/copa",
    "sglue_rte": "super_glue/rte",
    "wic": "super_glue/wic",
    "wsc": "super_glue/wsc",
    "multirc": "super_glue/multirc",
    "record": "super_glue/record",
    "arc_easy": "arc",
    "arc_challenge": "arc",
    "social_iqa": "siqa",
    "wikitext": "wikitext",
    "lambada_openai": "lambada",
    "xstorycloze_en": "xstorycloze",
}
_FEWSHOT_SEED = 1234  # the harness's own, which decides which solved examples a prompt has
_BOOTSTRAP_SAMPLES = 1000  # for the standard error of perplexity; a mean's is computed exactly
# Keeps the harness's bootstrap in this process: forking one that has computed with torch can hang.
_WITHOUT_POOL = patch.dict(os.environ, DISABLE_MULTIPROC="1")


def official_scorer(
    task: str, scorer: Scorer, tokenizer: Tokenizer, *, shots: int = 0, limit: int | None = None
) -> TaskScorer:
    """Return what measures the metrics of the harness's own task of that name.

    For a group with a score of its own (mmlu) they are the group's, for another group (ai2_arc) each task's.

    The harness downloads the documents, or finds them in the cache of `datasets`. `limit`: documents per task. Raises
    TaskUnavailable without the harness or if the documents are unavailable, and GpasError for an unknown task; the
    scorer, NothingFits if no document fits.
    """
    if find_spec("lm_eval") is None:
        raise TaskUnavailable(
            "this task needs lm-evaluation-harness, which is not installed: pip install 'gpas-cli[downstream]'"
        )
    with _quiet(), _random_state_kept(), offline_if_unreachable():
        loaded = _load(task, {"num_fewshot": shots})

    def score(progress: Report | None = None) -> list[Score]:
        with _quiet() as aloud, _random_state_kept(), _WITHOUT_POOL:
            from gpas_cli.extensions.harness.model import HarnessModel, evaluate_fitting

            for each in loaded["tasks"].values():
                each.set_fewshot_seed(seed=_FEWSHOT_SEED)
            model = HarnessModel(scorer, tokenizer, aloud(progress) if progress else None)
            kept = scorer.samples
            found, skipped = evaluate_fitting(
                model, loaded, limit, bootstrap_iters=_BOOTSTRAP_SAMPLES, log_samples=kept is not None
            )
            if kept is not None:
                kept.extend(_samples(found["samples"]))
        return _scores(task, shots, found, skipped)

    return score


def _load(task: str, fields: Mapping[str, Any]) -> Any:
    """Return a task with `fields` replaced and its documents, as `evaluate` of the harness takes them."""
    import lm_eval.tasks
    from lm_eval.tasks._factory import TaskFactory

    definitions = Path(lm_eval.tasks.__file__).parent
    chosen = _FOLDERS.get(task)
    manager = lm_eval.tasks.TaskManager(
        include_path=str(definitions / chosen) if chosen else None, include_defaults=not chosen
    )
    if task not in manager.task_index:
        raise GpasError(f"lm-evaluation-harness has no task '{task}'; {nearest(task, manager.all_tasks)}")
    try:
        # `load` alone cannot replace fields of a group's tasks.
        built = TaskFactory().build(manager.task_index[task], overrides=dict(fields), registry=manager.task_index)
        loaded = manager.load(built if isinstance(built, list) else [built])
    except Exception as error:
        # `datasets`, the hub and the disk raise many classes of exceptions here.
        raise TaskUnavailable(unavailable(f"cannot load the documents of {task}", error)) from error
    return loaded


def _samples(logged: Mapping[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield what the harness logs of each question, without its texts."""
    for task, samples in logged.items():
        for one in samples:
            names = ("doc_id", "doc_hash", "target", "filtered_resps", *one["metrics"])
            yield {"task": task, **{name: one[name] for name in names}}


def _scores(task: str, shots: int, found: Any, skipped: Mapping[str, int]) -> list[Score]:
    """Return the metrics of `task`; for a tag, which has no results of its own, the metrics of its tasks.

    skipped: the number of documents that were left out, by task.
    """
    results = {**found["results"], **found.get("groups", {})}
    counts = {name: int(count["effective"]) for name, count in found["n-samples"].items()}
    scores = []
    for name in [task] if task in results else results:
        metrics = [*_metrics(results[name])]
        if left_out := _total(name, skipped, counts):
            metrics.append((SKIPPED, left_out, None))
        made = partial(Score, name, examples=_total(name, counts, counts), harness=f"lm_eval {version('lm_eval')}")
        task_version = str(found["versions"].get(name, ""))
        for metric, value, stderr in metrics:
            scores.append(made(metric, value, stderr=stderr, task_version=task_version, shots=shots))
    return scores


def _total(name: str, by_task: Mapping[str, int], tasks: Mapping[str, int]) -> int:
    """Return the number of a task, or the sum over the tasks of a group."""
    return by_task.get(name, 0) if name in tasks else sum(by_task.values())


def _metrics(results: Mapping[str, object]) -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and standard error of each metric, which the harness names "acc,none" and "acc_stderr,none"."""
    for key, value in results.items():
        metric, separator, filtered = key.partition(",")
        number = _number(value)
        if separator and not metric.endswith("_stderr") and number is not None:
            stderr = _number(results.get(f"{metric}_stderr,{filtered}"))
            yield metric if filtered == "none" else f"{metric}/{filtered}", number, stderr


def _number(value: object) -> float | None:
    """Return a finite number, None for anything else: the harness writes "N/A" where it has no standard error."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


@contextmanager
def _quiet() -> Iterator[Callable[[Report], Report]]:
    """Discard what the harness prints and logs; functions wrapped by the context's value still print."""
    shown, before = (sys.stdout, sys.stderr), logging.root.manager.disable

    def aloud(function: Report) -> Report:
        def report(done: int, total: int) -> None:
            with redirect_stdout(shown[0]), redirect_stderr(shown[1]):
                function(done, total)

        return report

    try:
        logging.disable()
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield aloud
    finally:
        logging.disable(before)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore Python's random state afterwards: loading documents draws from it."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
