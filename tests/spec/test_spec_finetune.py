"""The section finetune: defaults, canonical spellings, contradictions, recipe and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.finetune import _COMMONSENSE_TOKENS, Finetune, finetuning_tokens
from gpas_cli.spec.parse import own_fields
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence


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
    others = {
        "data": "records.json", "validation": "held-out.json", "template": "plain", "loss_on": "all", "layout": "pad",
        "length": 256, "method": "full", "lisa_layers": 2, "lisa_interval": 20, "lisa_state": "reset", "epochs": 1,
        "batch": 8, "lr": 1e-4, "schedule": "cosine", "min_ratio": 0.1, "warmup": 5, "clip": 0.0, "beta1": 0.8,
        "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "precision": "bf16", "seed": 7,
    }  # fmt: skip
    assert key({name: others[name]}) != key({})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"seed": 42, "precision": "fp32", "template": "alpaca"}),
        ({"data": "embedded"}, {"data": "embedded", "template": "plain"}),
        ({"method": "full"}, {"method": "full", "lisa_layers": 2, "lisa_interval": 9, "lisa_state": "reset"}),
        ({"method": "full"}, {"lisa_layers": 12}),
        ({"schedule": "constant"}, {"schedule": "constant", "min_ratio": 0.5}),
    ],
)
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


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"data": ""}, "finetune.data: is empty; name commonsense170k, embedded or a path"),
        ({"data": "a.json", "validation": "a.json"}, "finetune.validation: names the training data"),
        ({"method": "lora"}, "finetune.method: unknown value 'lora'"),
        ({"epoch": 1}, "finetune.epoch: unknown key 'epoch'; did you mean 'epochs'"),
    ],
)
def test_contradictions_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments) as error:
        cell(section)
    assert message in str(error.value)


def test_rows_longer_than_learned_positions_are_refused() -> None:
    family = {"like": "gpt", "context": 256}
    data = {"source": "c4", "length": 256}
    with pytest.raises(InvalidExperiments, match="512 is longer than the 256 positions"):
        cell({}, family=family, data=data)


def test_the_cost_counts_frozen_layers_and_what_is_left() -> None:
    def cost(section: dict[str, Any], resumed: int = 0) -> float:
        found = cell(section)
        return finetuning_tokens(replace(found, data=replace(found.data, eval_tokens=1)), Cadence(), resumed)

    assert cost({"method": "full"}) == pytest.approx(4 * _COMMONSENSE_TOKENS, rel=1e-6)
    assert cost({}) == pytest.approx(4 * _COMMONSENSE_TOKENS * (2 + 4 / 12) / 3, rel=1e-6)
    steps = cell({}).parameters("finetune").steps(_COMMONSENSE_TOKENS // 512)
    assert cost({}, steps // 2) == pytest.approx(cost({}) / 2, rel=1e-3)
    assert cost({"epochs": 1}) == pytest.approx(cost({}) / 4, rel=1e-6)
