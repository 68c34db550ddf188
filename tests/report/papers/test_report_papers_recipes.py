"""The recipes of published numbers, and the deviations of cells from them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from report_cells import entry

from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load as load_experiments
from gpas_cli.project import packaged
from gpas_cli.report.labels import facts
from gpas_cli.report.papers import SOURCES, load, published, tables
from gpas_cli.report.papers.recipes import Deviation, deviations, recipe, recipes
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.optim import optimizer_settings
from gpas_cli.spec.parse_cell import cell_from

EXPERIMENTS = load_experiments(packaged("experiments.yaml"))
EVERY_TABLE = [published(source, name) for source in SOURCES for name in tables(source)]
OPTIM = {"lr": 1e-3, "warmup": 1_000, "steps": 10_000}  # of 71m
WHOLE = cell_from({"size": "71m", "optim": OPTIM, "finetune": {}, "downstream": {}}).to_mapping()


def differing(one: Any, table: str, source: str = "gpas") -> dict[str, tuple[Any, Any]]:
    return {d.setting: (d.published, d.ours) for d in deviations([one], published(source, table))}


def test_every_table_names_its_recipe() -> None:
    untrained = {"raptr: table9_speed", "raptr: table10_speed", "spike_no_more: table9_bleu"}
    named = {f"{table.source}: {table.name}" for table in EVERY_TABLE if not recipes(table)}
    assert named == untrained


def test_recipes_name_settings_of_cells() -> None:
    for source in SOURCES:
        for name in load(source).get("recipes", {}):
            one = recipe(source, name)
            assert one.stated_in
            stated = [*one.settings, *one.code, *(key for exception in one.exceptions for key in exception["settings"])]
            for setting in [*stated, *one.unstated]:
                section, _, key = setting.partition(".")
                assert section in WHOLE, (source, setting)
                inside = WHOLE[section]
                # Of one scheme, of one schedule, of depth schedules, of UL2, of Adafactor.
                optional = {"norm.apply", "optim.decay_shape", "objective.denoisers", "objective.modes"}
                optional |= {f"depth.{one.name}" for one in fields(Depth)}
                optional |= {f"optim.{one.name}" for one in fields(optimizer_settings()["adafactor"])}
                assert not key or key in inside or setting in optional, (source, setting)


def test_lists_have_one_value_for_each_column() -> None:
    for source in SOURCES:
        for name in load(source).get("recipes", {}):
            one = recipe(source, name)
            for values in (*one.settings.values(), *one.code.values()):
                assert not isinstance(values, list) or len(values) == len(one.columns["labels"]), (source, name)


def test_the_recipe_of_gpas_is_its_table_1() -> None:
    printed = load("gpas")["settings"]["table1_pretraining"]
    one = recipe("gpas", "pretraining")
    names = ["optim.lr", "optim.warmup", "optim.steps", "optim.batch", "data.eval_tokens"]
    for size, (lr, warmup, steps, batch, _, eval_tokens) in list(printed.items())[1:]:
        found = one.settings_of({"size": size.lower(), "norm": "pre"})
        assert [found[name] for name in names] == [(v, "paper") for v in (lr, warmup, steps, batch, eval_tokens)]


def test_the_recipe_of_spike_no_more_is_its_table_4() -> None:
    printed = load("spike_no_more")["settings"]["table4_hyperparameters"]
    settings = recipe("spike_no_more", "pretraining").settings
    assert settings["optim.batch"] == printed["batch_size"]
    assert settings["optim.steps"] == printed["updates"]
    assert settings["optim.beta2"] == printed["adam_beta2"]
    fractions = zip(printed["updates"], printed["lr_warmup_fraction"], strict=True)
    assert settings["optim.warmup"] == [round(steps * fraction) for steps, fraction in fractions]
    shapes = zip(*(printed[name] for name in ("layers", "hidden", "ffn", "heads")), strict=True)
    sizes = ["x".join(map(str, shape)) for shape in shapes]
    assert load("spike_no_more")["sizes"] == dict(zip([s.lower() for s in printed["columns"]], sizes, strict=True))


def test_table2_differs_from_the_code_only_in_the_means_of_an_update() -> None:
    means = {"71m": 256, "130m": 256, "250m": 128, "350m": 128, "1b": 32}
    for one in expand(EXPERIMENTS, ["table2"]):
        assert differing(one, "table2_perplexity") == {"optim.mean_rows": (means[str(one.axes["size"])], 0)}, one.id


@pytest.mark.parametrize(
    ("more", "setting", "values", "origin"),
    [
        ({"precision": "bf16"}, "precision", ("pure_bf16", "bf16"), "code"),
        ({"optim": {**OPTIM, "lr": 2e-3}}, "optim.lr", (0.001, 0.002), "paper"),
        ({"optim": {**OPTIM, "batch": 256}}, "optim.batch", (512, 256), "paper"),
        ({"norm": {"scheme": "lns", "apply": "scale"}}, "norm.apply", ("init", "scale"), "paper"),
        ({"data": {"like": "c4", "length": 512}}, "data.length", (256, 512), "code"),
    ],
)
def test_every_changed_setting_is_a_deviation(
    more: dict[str, Any], setting: str, values: tuple[Any, Any], origin: str
) -> None:
    found = deviations([entry(**more)], published("gpas", "table2_perplexity"))
    assert Deviation(setting, *values, origin) in found
    assert {one.setting for one in found} == {setting, "optim.mean_rows"}


def test_the_one_clipped_row_is_expected_to_be_clipped() -> None:
    optim = {"lr": 5e-4, "warmup": 10_000, "steps": 100_000, "mean_rows": 32}
    unclipped = entry("sandwich", "gpas", size="1b", optim=optim)
    clipped = entry("sandwich", "gpas", size="1b", optim={**optim, "clip_gates": 0.01})
    assert differing(unclipped, "table2_perplexity") == {"optim.clip_gates": (0.01, 0.0)}
    assert differing(clipped, "table2_perplexity") == {}
    assert differing(entry("pre", "gpas", size="1b", optim={**optim, "clip_gates": 0.01}), "table2_perplexity") == {
        "optim.clip_gates": (0, 0.01)
    }


def test_sections_that_a_cell_does_not_have_are_not_compared() -> None:
    assert all(not setting.startswith("finetune") for setting in differing(entry(), "table3_accuracy"))
    tuned = entry(finetune={"epochs": 2})
    assert differing(tuned, "table3_accuracy")["finetune.epochs"] == (4, 2)


def test_another_size_has_no_recipe_to_differ_from() -> None:
    small = entry(size="quickstart", data="quickstart")
    assert deviations([small], published("gpas", "table2_perplexity@71m")) == ()


GPT_350M = {
    "size": {"hidden": 1024, "ffn": 4096, "heads": 16, "layers": 24},
    "family": "gpt",
    "init": "small",
    "optim": {"lr": 5e-4, "warmup": 1750, "steps": 35_000, "batch": 528, "clip": 1.0, "weight_decay": 0.01},
    "data": {"like": "c4", "length": 2048},
    "downstream": {"tasks": ["spike"]},
}


def test_a_gpt_gets_the_numbers_of_spike_no_more() -> None:
    table = published("spike_no_more", "table1_perplexity")
    cell = {**facts(entry(axes={"size": "mine"}, **GPT_350M)), "embed": "scaled"}
    assert table.value({**cell, "text": "wikitext"}) == 29.86
    assert table.value({**cell, "text": "lambada_openai"}) == 24.37
    assert table.value(cell) is None  # its perplexity on C4
    found = table.cell({**cell, "embed": "plain", "text": "wikitext"})
    assert [remark.text[:9] for remark in found.remarks] == ["the paper"] * 2


def test_a_llama_of_any_shape_gets_no_number_of_spike_no_more() -> None:
    table = published("spike_no_more", "table1_perplexity")
    for more in ({"size": "350m"}, {"size": GPT_350M["size"], "axes": {"size": "mine"}}):
        cell = facts(entry(**{"optim": OPTIM, **more}))
        for text in ("wikitext", "lambada_openai", "c4"):
            assert table.value({**cell, "init": "small", "text": text}) is None


def test_what_no_setting_expresses_is_a_deviation_too() -> None:
    found = deviations([entry(axes={"size": "mine"}, **GPT_350M)], published("spike_no_more", "table1_perplexity"))
    assert Deviation("dropout", 0.1, None) in found
    assert {one.setting for one in found} == {"dropout", "precision", "data.tokenizer", "size.vocab"}


def test_the_baseline_of_equal_work_is_expected_to_have_fewer_updates() -> None:
    table = published("raptr", "table3_loss")
    found = {one.axes["depth"]: deviations([one], table) for one in expand(EXPERIMENTS, ["raptr-ul2"])}
    assert {name: one for name, one in found.items() if one} == {
        "equal-flops": (Deviation("optim.lr", "the best of 0.01, 0.015, 0.02", 0.01),)
    }


def test_the_best_of_several_settings_differs_from_each_of_them_and_not_from_all() -> None:
    table = published("raptr", "table7_loss")
    dropped = [one for one in expand(EXPERIMENTS, ["raptr-bert-layerdrop"]) if one.axes["depth"] == "layerdrop"]
    assert deviations(dropped, table) == ()
    assert deviations(dropped[:1], table) == (
        Deviation("optim.lr", "the best of 0.0001, 0.00016, 0.00025, 0.0004", 0.0001),
    )
