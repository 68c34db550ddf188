"""The papers' tables in their printed layout; the recipes of their numbers, and deviations of cells from them."""

import csv
import hashlib
import io
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from named_papers import PACKS, SOURCES, TABLES, load, numbers, printed, published, tables, value_of
from report_cells import entry
from shipped import cells_of

from gpas_cli.errors import GpasError
from gpas_cli.extensions.glue.stage import Glue
from gpas_cli.report.labels import facts
from gpas_cli.report.papers.printed import printed_named
from gpas_cli.report.papers.recipes import Deviation, deviations, recipe, recipes
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.paper_table import published_table
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.sheet import PLAIN, Sheet
from gpas_cli.report.tables.table import Table
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.optim import optimizer_settings
from gpas_cli.spec.parse import plain
from gpas_cli.spec.parse_cell import cell_from

EVERY_PART = [part for source in SOURCES for number in numbers(source) for part in printed(source, number)]
IN_THE_TEXT = {("gpas", "text_activation"), ("code", "readme_perplexity")}  # numbers that no table prints

TIMES = "\N{MULTIPLICATION SIGN}"
# The papers' tables, with x for the multiplication sign: rows are lines, columns are separated by "|".
AS_PRINTED = sorted((Path(__file__).parents[2] / "golden" / "printed_tables").glob("*.txt"))


def as_text(part: Table) -> Sheet:
    return sheet(published_table(part))


@pytest.mark.parametrize("path", AS_PRINTED, ids=lambda path: path.stem)
def test_a_table_is_as_printed(path: Path) -> None:
    name = path.stem.replace("-", ":")
    parts = [
        "\n".join("|".join(line) for line in text.texts(PLAIN)) for text in map(as_text, printed_named(name, PACKS))
    ]
    assert "\n\n".join(parts) == path.read_text().strip().replace(" x ", f" {TIMES} ")


def test_every_table_is_as_it_was() -> None:
    texts = {part.spec.title: str(as_text(part).texts(PLAIN)) for part in EVERY_PART}
    found = [f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {title}" for title, text in texts.items()]
    assert sorted(found) == sorted((AS_PRINTED[0].parents[1] / "printed_tables.txt").read_text("utf-8").splitlines())


@pytest.mark.parametrize("part", EVERY_PART, ids=lambda part: part.spec.title)
def test_texts_are_the_published_numbers(part: Table) -> None:
    for cell in (cell for line in part.rows for cell in line.published if cell.table.name):
        found = [float(number) for number in re.findall(r"(?<![\w.])[+-]?\d+(?:\.\d*)?", cell.text)]
        printed_numbers = [number for number in (cell.value, cell.delta) if number is not None]
        assert found[: max(1, len(printed_numbers))] == printed_numbers, (part.printed, cell.text)


@pytest.mark.parametrize("source", [source for source in SOURCES if numbers(source)])
def test_every_published_number_is_in_one_place(source: str) -> None:
    parts = [part for part in EVERY_PART if part.source == source]
    shown = {table.name: table for part in parts for table in part.tables}
    every = [
        (name, i, j) for name, one in shown.items() for i, row in enumerate(one.rows) for j in range(len(row.values))
    ]
    places = [cell.place for part in parts for row in part.rows for cell in row.published if cell.table.name]
    assert sorted(places) == sorted(every)
    assert {(source, name) for name in {*tables(source)} - shown.keys()} <= IN_THE_TEXT


def test_names_of_tables() -> None:
    assert printed_named("curse:2", PACKS) is printed_named("curse_of_depth:2", PACKS)
    assert printed_named("2", PACKS)[0].printed == "gpas:2"
    with pytest.raises(GpasError, match="GPAS paper has no table '9'; valid: 1, 2, 3, 4, 5, A"):
        printed_named("gpas:9", PACKS)
    with pytest.raises(GpasError, match="no paper 'gaps'; did you mean 'gpas'"):
        printed_named("gaps:2", PACKS)


def test_underlined_numbers_are_underlined() -> None:
    text = render(published_table(printed("poster", "1")[0]), "markdown")
    assert "| LNS+GPAS | 32.68 (-1.90) | <u>24.95</u> (-0.96) |" in text
    assert "\\underline{24.95} ($-$0.96)" in render(published_table(printed("poster", "1")[0]), "latex")


def test_csv_and_json_have_the_text_and_the_number() -> None:
    rows = list(csv.DictReader(io.StringIO(render(published_table(printed("gpas", "2")[0]), "csv"))))
    assert len(rows) == 55
    row = next(row for row in rows if (row["row"], row["column"]) == ("DeepNorm + GPAS", "1B"))
    assert (row["table"], row["text"], row["value"], row["delta"]) == ("gpas:2", "18.10 (-1386)", "18.1", "-1386")
    data = json.loads(render(published_table(printed("poster", "1")[0]), "json"))
    cell = data["rows"][-1]["cells"][1]
    assert cell == {"text": "24.95 (-0.96)", "value": 24.95, "delta": -0.96, "mark": "underlined"}


def test_latex_needs_no_character_beyond_pdflatex() -> None:
    for part in EVERY_PART:
        assert all(ord(character) < 256 for character in render(published_table(part), "latex")), part.spec.title


OPTIM = {"lr": 1e-3, "warmup": 1_000, "steps": 10_000}  # of 71m
WHOLE = cell_from({"size": "71m", "optim": OPTIM, "finetune": {}, "downstream": {}}).to_mapping() | {
    "glue": plain(Glue())
}


def differing(one: Any, table: str, source: str = "gpas") -> dict[str, tuple[Any, Any]]:
    return {d.setting: (d.published, d.ours) for d in deviations([one], published(source, table))}


def test_every_table_names_its_recipe() -> None:
    untrained = {"raptr: table9_speed", "raptr: table10_speed"}
    named = {f"{table.source}: {table.name}" for table in TABLES if not recipes(table)}
    assert named == untrained


def test_recipes_name_settings_of_cells_and_have_one_value_for_each_column() -> None:
    for source in SOURCES:
        for name in load(source).get("recipes", {}):
            one = recipe(PACKS[source], name)
            assert one.stated_in
            stated = [*one.settings, *one.code, *(key for exception in one.exceptions for key in exception["settings"])]
            for setting in [*stated, *one.unstated]:
                section, _, key = setting.partition(".")
                assert section in WHOLE, (source, setting)
                inside = WHOLE[section]
                # Of one scheme, of one schedule, of depth schedules, of UL2, of Adafactor.
                optional = {"norm.apply", "optim.decay_shape", "objective.denoisers", "objective.modes"}
                optional |= {"objective.word_dropout", "objective.rate"}  # of translation, of masked tokens
                optional |= {f"depth.{one.name}" for one in fields(Depth)}
                optional |= {f"optim.{one.name}" for one in fields(optimizer_settings()["adafactor"])}
                assert not key or key in inside or setting in optional, (source, setting)
            for values in (*one.settings.values(), *one.code.values()):
                assert not isinstance(values, list) or len(values) == len(one.columns["labels"]), (source, name)


def test_the_recipe_of_gpas_is_its_table_1() -> None:
    printed = load("gpas")["settings"]["table1_pretraining"]
    one = recipe(PACKS["gpas"], "pretraining")
    names = ["optim.lr", "optim.warmup", "optim.steps", "optim.batch", "data.eval_tokens"]
    for size, (lr, warmup, steps, batch, _, eval_tokens) in list(printed.items())[1:]:
        found = one.settings_of({"size": size.lower(), "norm": "pre"})
        assert [found[name] for name in names] == [(v, "paper") for v in (lr, warmup, steps, batch, eval_tokens)]


def test_the_recipe_of_spike_no_more_is_its_table_4() -> None:
    printed = load("spike_no_more")["settings"]["table4_hyperparameters"]
    settings = recipe(PACKS["spike_no_more"], "pretraining").settings
    assert settings["optim.batch"] == printed["batch_size"]
    assert settings["optim.steps"] == printed["updates"]
    assert settings["optim.beta2"] == printed["adam_beta2"]
    assert (printed["dropout"], printed["precision"]) == ([settings["dropout"]] * 3, ["float16"] * 3)
    assert settings["precision"] == "fp16"
    fractions = zip(printed["updates"], printed["lr_warmup_fraction"], strict=True)
    assert settings["optim.warmup"] == [round(steps * fraction) for steps, fraction in fractions]
    shapes = zip(*(printed[name] for name in ("layers", "hidden", "ffn", "heads")), strict=True)
    sizes = ["x".join(map(str, shape)) for shape in shapes]
    declared = dict(zip([s.lower() for s in printed["columns"]], sizes, strict=True))
    assert load("spike_no_more")["sizes"] == declared | {"wmt": "36x512x2048x8"}  # Table 8: 18 layers of each stack


def test_table2_differs_from_the_code_only_in_the_means_of_an_update() -> None:
    means = {"71m": 256, "130m": 256, "250m": 128, "350m": 128, "1b": 32}
    for one in cells_of("table2"):
        assert differing(one, "table2_perplexity") == {"optim.mean_rows": (means[str(one.axes["size"])], 0)}, one.id


@cases("report/cases.yaml", of="gpas: table2_perplexity")
def test_changed_settings_deviate(more: dict[str, Any], of: str, found: list[list[Any]]) -> None:
    """`found` has settings, the published values, ours, and where the published one is from if it is not the paper."""
    made = deviations([entry(**more)], published(*of.split(": ")))
    assert sorted(made, key=str) == sorted((Deviation(*one) for one in found), key=str)


def test_sections_that_a_cell_does_not_have_are_not_compared() -> None:
    assert all(not setting.startswith("finetune") for setting in differing(entry(), "table3_accuracy"))
    tuned = entry(finetune={"epochs": 2})
    assert differing(tuned, "table3_accuracy")["finetune.epochs"] == (4, 2)


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
    assert value_of(table, {**cell, "text": "wikitext"}) == 29.86
    assert value_of(table, {**cell, "text": "lambada_openai"}) == 24.37
    assert value_of(table, cell) is None  # its perplexity on C4
    found = table.cell({**cell, "embed": "plain", "text": "wikitext"})
    assert [remark.text[:9] for remark in found.remarks] == ["the paper"] * 2


def test_what_no_setting_expresses_is_a_deviation_too() -> None:
    found = deviations([entry(axes={"size": "mine"}, **GPT_350M)], published("spike_no_more", "table1_perplexity"))
    absent = "dropout of attention probabilities"
    assert Deviation(absent, 0.1, None) in found
    assert {one.setting for one in found} == {absent, "dropout", "precision", "data.tokenizer", "size.vocab"}


def test_the_baseline_of_equal_work_is_expected_to_have_fewer_updates() -> None:
    table = published("raptr", "table3_loss")
    entries = cells_of("raptr-ul2")
    tuned = [one for one in entries if (one.axes["depth"], one.axes["optim"]) == ("equal-flops", "cosine")]
    assert len(tuned) == 3
    assert [one for one in entries if one not in tuned and deviations([one], table)] == []
    assert deviations(tuned, table) == ()
    assert deviations(tuned[:1], table) == (Deviation("optim.lr", "the best of 0.01, 0.015, 0.02", 0.01),)


def test_the_best_of_several_settings_differs_from_each_of_them_and_not_from_all() -> None:
    table = published("raptr", "table7_loss")
    dropped = [one for one in cells_of("raptr-bert-layerdrop") if one.axes["depth"] == "layerdrop"]
    assert deviations(dropped, table) == ()
    assert deviations(dropped[:1], table) == (
        Deviation("optim.lr", "the best of 0.0001, 0.00016, 0.00025, 0.0004", 0.0001),
    )
