"""Schedules of the rate, and settings of a run that change no result."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from cases import cases

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.spec import parse
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.optim import SCHEDULES, Optim
from gpas_cli.spec.parse import own_fields, setting_classes
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Resources, _period_seconds, time_seconds


def cell(finetune: dict[str, Any] | None = None, **optim: Any) -> Cell:
    recipe = {"lr": 0.5, "warmup": 10, "steps": 100, "batch": 4, "min_ratio": 0.1, **optim}
    return cell_from({"size": "71m", "optim": recipe, "finetune": finetune})


def rates(**optim: Any) -> list[float]:
    recipe = cell(**optim).optim
    return [recipe.learning_rate(update) / recipe.lr for update in range(1, recipe.steps + 2)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_warms_up_to_the_peak_and_never_rises_again(name: str) -> None:
    found = rates(schedule=name)
    assert found[:11] == pytest.approx([k / 10 for k in range(11)])
    assert all(after <= before for before, after in pairwise(found[10:100]))
    assert found[99] > 0
    assert found[100] == 1e-7  # the reference's additional update


def test_the_keys_of_recipes_without_the_new_settings_are_those_of_before() -> None:
    keys = [cell(schedule=name).key for name in ("cosine", "linear", "constant")]
    assert keys == ["a7b5486b4aec21a6", "51939f7f8b72e760", "2b6f09c0bc229654"]


@pytest.mark.parametrize(
    ("shape", "at"),
    [
        ("linear", lambda p: 0.1 + 0.9 * (1 - p)),
        ("cosine", lambda p: 0.1 + 0.9 * (1 + math.cos(math.pi * p)) / 2),
        ("sqrt", lambda p: 0.1 + 0.9 * (1 - math.sqrt(p))),
        ("exponential", lambda p: 0.1**p),
    ],
)
def test_the_rate_is_the_peak_until_the_decay(shape: str, at: Any) -> None:
    found = rates(schedule="wsd", decay=0.25, decay_shape=shape)
    assert found[10:76] == [1.0] * 66
    assert found[76:100] == pytest.approx([at((k - 75) / 25) for k in range(76, 100)])


def test_raptrs_recipe_for_bert_is_constant_until_the_last_of_four_stages_and_falls_to_zero() -> None:
    recipe = cell(warmup=10_000, steps=675_000, schedule="wsd", decay=0.25, min_ratio=0).optim
    last = 675_000 * 3 // 4  # updates before the last stage
    assert [recipe.learning_rate(update) for update in (10_001, last, last + 1)] == [0.5, 0.5, 0.5]
    middle = last + 1 + 675_000 // 8
    assert recipe.learning_rate(middle) == pytest.approx(0.25)
    assert recipe.learning_rate(675_000) == pytest.approx(0.5 / 168_750)


@cases("spec/cases.yaml")
def test_a_decay_may_be_as_long_as_the_last_stage_of_the_depth(depth: dict[str, Any], share: float) -> None:
    def made(decay: float | str) -> Cell:
        recipe = {"lr": 0.5, "warmup": 10, "steps": 120 if "full_steps" not in depth else 100, "batch": 4}
        schedule = {"schedule": "wsd", "decay": decay, "decay_shape": "linear", "min_ratio": 0}
        return cell_from({"size": "71m", "depth": depth, "optim": {**recipe, **schedule}})

    cell = made("last-stage")
    start = cell.layer_schedule.starts[-1]
    assert cell.optim.learning_rate(start) == 0.5
    assert cell.optim.learning_rate(start + 1) < 0.5
    assert cell == made(share)
    assert cell_from(cell.to_mapping()) == cell


def test_the_inverse_square_root_is_that_of_t5() -> None:
    assert rates(schedule="inverse-sqrt")[40] == 0.5
    found = rates(schedule="inverse-sqrt", timescale=25, warmup=0)
    assert (found[:26], found[99]) == ([1.0] * 26, pytest.approx(5 / math.sqrt(99)))


@cases("spec/cases.yaml")
def test_different_spellings_of_a_schedule_have_one_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert cell(**one).key == cell(**other).key
    assert cell(**one) == cell(**other)


@cases("spec/cases.yaml")
def test_contradictions_are_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidExperiments, match=said):
        cell(**settings)


def test_finetuning_reads_the_same_schedules() -> None:
    made = cell({"schedule": "wsd", "decay": 0.5})
    spec = made.parameters("finetune")
    found = [spec.optim(8).learning_rate(update) / spec.lr for update in range(1, 9)]
    assert found == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert cell_from(made.to_mapping()) == made
    assert made.key != cell({"schedule": "wsd", "decay": 0.25}).key
    for settings in ({"schedule": "wsd", "decay": "last-stage"}, {"schedule": "inverse-sqrt"}, {"decay": 0.5}):
        with pytest.raises(InvalidExperiments, match=r"finetune\.(decay|timescale): "):
            cell(settings)


@pytest.mark.parametrize("section", [Optim, Finetune])
def test_settings_of_schedules_and_optimizers_have_names_of_their_own(section: type) -> None:
    """They are written flat in one section: no two of them, and no field of the section, may have one name."""
    parts = {part for _, part in setting_classes(section).values()}
    names = [field.name for part in (section, *parts) for field in own_fields(part)]
    assert len(names) == len(set(names))


def cadence(every: object) -> tuple[Cadence | None, list[str]]:
    problems: list[Problem] = []
    made = parse.build(Cadence, {"checkpoint_every": every}, (), problems)
    return made, [problem.message for problem in problems]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("10 min", 600)])
def test_a_period_is_read_in_seconds(text: str, seconds: float) -> None:
    assert _period_seconds(text) == seconds
    made, faults = cadence(text)
    assert not faults
    assert not made.checkpoint_due(500, seconds - 1)
    assert made.checkpoint_due(501, seconds)


def test_a_number_counts_updates() -> None:
    made, _ = cadence(500)
    assert made.checkpoint_due(1000, 0.0)
    assert not made.checkpoint_due(1001, 1e9)


@pytest.mark.parametrize("wrong", ["10", "10 m", "0s", "min", "-1h", "1e3s", ""])
def test_another_text_is_refused_with_examples(wrong: Any) -> None:
    assert cadence(wrong) == (
        None,
        [f"'{wrong}' is neither a number of updates nor a period; write 500, 90s, 10min or 1h"],
    )


def test_a_checkpoint_after_no_update_is_refused() -> None:
    assert cadence(0) == (None, ["0 is too small; at least 1"])


@cases("spec/cases.yaml")
def test_time_limits_are_read_as_sbatch_reads_them(word: str, seconds: int | None) -> None:
    assert time_seconds(word) == seconds


TABLE = ("cpu gpus=0 mem<=100G", "short gpus<=4 time<=4:00:00", "long time<=7-0 cpus<=64 nodes<=2", "rest")


@cases("spec/cases.yaml")
def test_a_job_goes_to_the_first_partition_whose_limits_it_keeps(asked: dict[str, Any], partition: str) -> None:
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
    made = Resources(**{"partition": TABLE, **lists})
    assert made.chosen_partition == partition
    assert not made.faults


def test_a_job_that_no_partition_takes_is_a_fault() -> None:
    assert "a last one without limits" in Resources(gpus=8, partition=TABLE[:2]).faults["partition"]


def test_a_later_attempt_with_more_time_goes_to_another_partition() -> None:
    growing = Resources(gpus=1, time=("1:00:00", "5:00:00"), partition=TABLE)
    assert (growing.first.chosen_partition, replace(growing, time="5:00:00").chosen_partition) == ("short", "long")


def test_the_notice_is_shorter_than_the_time_limit() -> None:
    assert list(Resources(time="2", notice=120).faults) == ["notice"]
    assert not Resources(time="2", notice=119).faults
    assert not Resources(notice=3600).faults
