"""The section `downstream`: names of tasks and groups, averages, keys, cost."""

from __future__ import annotations

from typing import Any

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.downstream import _PAPER, GROUPS, KNOWN_TASKS, averages, columns, metrics_of, task_title
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.stage import STAGE_KINDS

LOCAL = "arc_easy@0123456789ab"
OPTIM = {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 4}


def cell(**section: Any) -> Cell:
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": OPTIM, "downstream": section})


def problem(**section: Any) -> str:
    with pytest.raises(InvalidExperiments) as caught:
        cell(**section)
    return str(caught.value)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_its_tasks_in_any_order_with_one_key(group: str) -> None:
    names = list(GROUPS[group])
    assert cell(tasks=[group]).key == cell(tasks=names[::-1]).key == cell(tasks=[*names, group]).key
    assert set(cell(tasks=[group]).parameters("downstream").tasks) == set(names)


def test_the_default_is_the_paper() -> None:
    assert cell().key == cell(tasks=["paper"]).key
    assert cell().parameters("downstream").tasks == _PAPER


@pytest.mark.parametrize(
    "change", [{"shots": 1}, {"max_length": 256}, {"limit": 100}, {"tasks": ["piqa"]}, {"tasks": [LOCAL]}]
)
def test_every_setting_changes_the_key(change: dict[str, Any]) -> None:
    assert cell(**change).key != cell().key


def test_another_digest_is_another_task() -> None:
    assert cell(tasks=[LOCAL]).key != cell(tasks=["arc_easy@ba9876543210"]).key


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"tasks": ["arc_esay"]}, "unknown task 'arc_esay'; did you mean 'arc_easy'?"),
        ({"tasks": ["arc_easy@12"]}, "'arc_easy@12' is not NAME@DIGEST, as `gpas data import-task` prints it"),
        ({"tasks": []}, "downstream.tasks: names no task"),
        ({"tasks": ["arc_easy", LOCAL]}, "downstream.tasks: names 'arc_easy' more than once"),
        ({"tasks": ["indent", "piqa"], "shots": 2}, "downstream.shots: has no effect on indent"),
        ({"tasks": [3]}, "downstream.tasks"),
    ],
)
def test_a_wrong_section_has_one_clear_message(section: dict[str, Any], message: str) -> None:
    assert message in problem(**section)


def test_the_averages_of_the_paper_and_of_the_poster_are_different_columns() -> None:
    assert list(averages(GROUPS["paper"])) == ["average_paper"]
    assert list(averages(GROUPS["poster"])) == ["average_paper", "average_poster"]
    assert averages(["piqa", "boolq", "wikitext"]) == {"average": ("piqa", "boolq")}
    assert averages(["wikitext"]) == {}
    assert columns(["piqa", "wikitext"], "accuracy") == ("piqa",)
    assert columns(["piqa", "wikitext"], "task_perplexity") == ("wikitext",)
    assert columns(["piqa", "boolq", LOCAL], "accuracy_norm") == ("piqa", LOCAL)


def test_files_with_the_questions_of_the_paper_have_its_average() -> None:
    tasks = [LOCAL if task == "arc_easy" else task for task in _PAPER]
    assert averages(tasks)["average_paper"][-1] == LOCAL
    assert task_title(LOCAL) == "ARC-e (local)"


def test_an_average_needs_all_its_scores() -> None:
    scores = {(task, "acc"): 0.5 for task in _PAPER}
    assert metrics_of(scores, _PAPER)["accuracy/average_paper"] == 50
    del scores["piqa", "acc"]
    assert "accuracy/average_paper" not in metrics_of(scores, _PAPER)
    assert metrics_of({("wikitext", "word_perplexity"): 30.5}, ["wikitext"]) == {"task_perplexity/wikitext": 30.5}


def test_metrics_are_the_scores_that_tables_show() -> None:
    scores = {("piqa", "acc"): 0.6, ("piqa", "acc_norm"): 0.7, ("lambada_openai", "acc"): 0.1}
    assert metrics_of(scores, ["piqa", "lambada_openai"]) == {
        "accuracy/piqa": 60.0, "accuracy_norm/piqa": 70.0, "accuracy/average": 60.0,
    }  # fmt: skip


def test_the_cost_is_a_third_of_the_tokens_of_the_questions() -> None:
    cost = STAGE_KINDS["downstream"].cost
    assert cost is not None
    piqa = KNOWN_TASKS["piqa"]
    assert cost(cell(tasks=["piqa"]), Cadence(), 0) == pytest.approx(piqa.questions * piqa.tokens / 3)
    assert cost(cell(tasks=["piqa"], limit=10), Cadence(), 0) == pytest.approx(10 * piqa.tokens / 3)
    assert cost(cell(tasks=["piqa"], limit=10, shots=2), Cadence(), 0) == pytest.approx(10 * piqa.tokens)
