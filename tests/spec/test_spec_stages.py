"""The stages after pretraining: finetuning, tasks and texts."""

from dataclasses import replace
from typing import Any

import pytest
from cases import cases, tables
from refusals import refused

from gpas_cli.events import Score
from gpas_cli.report.recorded import standard_error
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.downstream import (
    _PAPER,
    GROUPS,
    KNOWN_TASKS,
    averages,
    columns,
    local_path,
    metrics_of,
    task_title,
    text_name,
)
from gpas_cli.spec.extensions import main_result, stage_kinds
from gpas_cli.spec.finetune import _COMMONSENSE_TOKENS, Finetune, finetuning_tokens
from gpas_cli.spec.parse import own_fields
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence
from gpas_cli.spec.stage import STAGE_KINDS


def cell(finetune: dict[str, Any] | None = None, **values: Any) -> Cell:
    return cell_from({"size": "71m", "optim": {"lr": 1e-3, "warmup": 1, "steps": 10}, "finetune": finetune, **values})


def key(finetune: dict[str, Any], **values: Any) -> str:
    return cell(finetune, **values).stages[1].key


def test_the_defaults_are_those_of_the_paper_and_its_scripts() -> None:
    spec: Finetune = cell({}).parameters("finetune")
    assert (spec.data, spec.template, spec.loss_on) == ("commonsense170k", "alpaca", "output")
    assert (spec.method, spec.lisa_layers, spec.lisa_interval, spec.lisa_state) == ("lisa", 4, 3, "keep")
    assert (spec.epochs, spec.batch, spec.length, spec.layout) == (4, 16, 512, "pack")
    assert (spec.precision, spec.seed) == ("fp32", 42)
    recipe = spec.optim(100)
    assert [recipe.learning_rate(update) for update in (1, 51, 100)] == pytest.approx([3e-4, 1.5e-4, 3e-6])
    assert (recipe.clip, recipe.clip_gates, recipe.beta1, recipe.beta2, recipe.eps) == (1.0, 0.0, 0.9, 0.999, 1e-8)


# There is only one optimizer.
@pytest.mark.parametrize("name", [field.name for field in own_fields(Finetune) if field.name != "optimizer"])
def test_every_field_is_in_the_key(name: str) -> None:
    others = tables("spec/cases.yaml")["every_field_is_in_the_key"]
    assert key({name: others[name]}) != key({})


@cases("spec/cases.yaml")
def test_different_spellings_of_a_finetuning_have_one_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key(one) == key(other)
    assert cell_from(cell(other).to_mapping()) == cell(one)


def test_seed_and_precision_are_those_of_the_cell_unless_declared() -> None:
    spec = cell({}, seed=3, precision="bf16").parameters("finetune")
    assert (spec.seed, spec.precision) == (3, "bf16")
    own = cell({"precision": "bf16"})
    assert (own.precision, own.trained_precision, own.before("finetune").trained_precision) == ("fp32", "bf16", "fp32")


def test_what_a_stage_builds_on() -> None:
    whole = cell({}, importance={}, downstream={})
    assert [stage.kind for stage in whole.before("importance").stages] == ["pretrain", "finetune"]
    assert [stage.kind for stage in whole.before("finetune").stages] == ["pretrain"]
    assert whole.before("importance").trained.key == whole.trained.key


def test_the_cost_counts_frozen_layers_and_what_is_left() -> None:
    def cost(section: dict[str, Any], resumed: int = 0) -> float:
        found = cell(section)
        return finetuning_tokens(replace(found, data=replace(found.data, eval_tokens=1)), Cadence(), resumed)

    assert cost({"method": "full"}) == pytest.approx(4 * _COMMONSENSE_TOKENS, rel=1e-6)
    assert cost({}) == pytest.approx(4 * _COMMONSENSE_TOKENS * (2 + 4 / 12) / 3, rel=1e-6)
    steps = cell({}).parameters("finetune").steps(_COMMONSENSE_TOKENS // 512)
    assert cost({}, steps // 2) == pytest.approx(cost({}) / 2, rel=1e-3)
    assert cost({"epochs": 1}) == pytest.approx(cost({}) / 4, rel=1e-6)


LOCAL = "arc_easy@0123456789ab"
BASE = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 2}}


def scored(**section: Any) -> Cell:
    return cell_from({**BASE, "downstream": section})


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_its_tasks_in_any_order_with_one_key(group: str) -> None:
    names = list(GROUPS[group])
    assert scored(tasks=[group]).key == scored(tasks=names[::-1]).key == scored(tasks=[*names, group]).key
    assert set(scored(tasks=[group]).parameters("downstream").tasks) == set(names)


def test_the_default_is_the_paper() -> None:
    assert scored().key == scored(tasks=["paper"]).key
    assert scored().parameters("downstream").tasks == _PAPER


@pytest.mark.parametrize(
    "change", [{"shots": 1}, {"max_length": 256}, {"limit": 100}, {"tasks": ["piqa"]}, {"tasks": [LOCAL]}]
)
def test_every_setting_changes_the_key(change: dict[str, Any]) -> None:
    assert scored(**change).key != scored().key


def test_another_digest_is_another_task() -> None:
    assert scored(tasks=[LOCAL]).key != scored(tasks=["arc_easy@ba9876543210"]).key


@cases("spec/cases.yaml")
def test_a_wrong_section_has_one_clear_message(stage: str, section: dict[str, Any], message: str) -> None:
    with refused(message):
        cell_from({**BASE, stage: section})


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


def test_scores_of_several_kinds_are_averaged_with_superglue_as_one() -> None:
    """RaPTr's Table 11: exact match, F1, accuracy, and the average over the rows of which SuperGLUE is one."""
    superglue = (*GROUPS["superglue"], "multirc", "record")
    tasks = ["lambada_openai", *superglue, "triviaqa", "coqa", "wikitext"]
    scores = {
        ("lambada_openai", "acc"): 0.2, ("lambada_openai", "perplexity"): 9.0, ("triviaqa", "exact_match"): 0.3,
        ("triviaqa", "f1"): 0.4, ("coqa", "f1"): 0.5, ("coqa", "exact_match"): 0.0, ("record", "em"): 0.9,
        **{(task, "acc"): 0.1 for task in superglue if task != "record"},
    }  # fmt: skip
    found = {name: value for name, value in metrics_of(scores, tasks).items() if name.startswith("score/")}
    one = {"lambada_openai": 20.0, "triviaqa": 30.0, "coqa": 50.0, "superglue": 20.0}
    assert found == pytest.approx({f"score/{name}": value for name, value in {**one, "average": 30.0}.items()})
    assert columns(tasks, "score") == (*one, "average")
    errors = [Score(task, metric, value, 10, 0.08, "1", "h") for (task, metric), value in scores.items()]
    assert standard_error(errors, "score/coqa") == pytest.approx(8.0)
    assert standard_error(errors, "score/superglue") == pytest.approx(8 / 8**0.5)
    assert standard_error(errors, "score/average") == pytest.approx(8 * (3 + 1 / 8) ** 0.5 / 4)
    del scores["wic", "acc"]
    assert not {"score/superglue", "score/average"} & metrics_of(scores, tasks).keys()


@pytest.mark.parametrize("tasks", [["piqa", "lambada_openai", "wikitext"], ["triviaqa", "squadv2"], ["boolq", LOCAL]])
def test_tasks_of_one_kind_have_no_further_score(tasks: list[str]) -> None:
    assert columns(tasks, "score") == ()


def test_the_cost_is_a_third_of_the_tokens_of_the_questions() -> None:
    cost = STAGE_KINDS["downstream"].cost
    piqa = KNOWN_TASKS["piqa"]
    assert cost(scored(tasks=["piqa"]), Cadence(), 0) == pytest.approx(piqa.questions * piqa.tokens / 3)
    assert cost(scored(tasks=["piqa"], limit=10), Cadence(), 0) == pytest.approx(10 * piqa.tokens / 3)
    assert cost(scored(tasks=["piqa"], limit=10, shots=2), Cadence(), 0) == pytest.approx(10 * piqa.tokens)


def test_scores_on_texts_are_a_stage_of_their_own() -> None:
    plain, scored = cell_from(BASE), cell_from({**BASE, "texts": {"texts": ["wikitext", "own=held-out/*.txt"]}})
    assert [stage.kind for stage in scored.stages] == ["pretrain", "texts"]
    assert scored.stages[0] == plain.stages[0]
    assert scored.key != cell_from({**BASE, "texts": {}}).key != plain.key
    assert cell_from(scored.to_mapping()) == scored
    assert cell_from({**BASE, "texts": {}}).parameters("texts").names == ("wikitext", "lambada_openai")


@cases("spec/cases.yaml")
def test_names_and_paths(text: str, name: str, path: str) -> None:
    assert (text_name(text), local_path(text)) == (name, path)


def test_the_cost_of_texts_counts_only_the_documents_that_are_scored() -> None:
    cost = STAGE_KINDS["texts"].cost
    whole, half, more = (
        cost(cell_from({**BASE, "texts": {"texts": ["wikitext"], "limit": limit}}), Cadence(), 0)
        for limit in (0, 31, 900)
    )
    assert (half, more) == (pytest.approx(whole / 2), whole)


def test_generated_answers_stand_for_a_stage_without_accuracies() -> None:
    metric, value = main_result({"f1/recall": 5.0, "exact_match/recall": 4.0})
    assert (metric.name, value) == ("exact_match", 4.0)
    assert main_result({"exact_match/recall": 4.0, "accuracy/indent": 30.0})[0].name == "accuracy"


@pytest.mark.whole
def test_trainings_come_first_in_the_order_of_stages() -> None:
    assert list(stage_kinds()) == [
        *("pretrain", "finetune", "glue", "downstream", "texts", "importance", "quantised", "translation", "layers")
    ]
