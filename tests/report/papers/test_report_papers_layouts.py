"""The papers' tables in their printed layout; the recipes of their numbers, and deviations of cells from them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from report_cells import entry

from gpas_cli.errors import GpasError
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load as load_experiments
from gpas_cli.project import packaged
from gpas_cli.report.labels import facts
from gpas_cli.report.papers import SOURCES, load, published, tables
from gpas_cli.report.papers.layouts import PrintedPart, numbers, printed, printed_named
from gpas_cli.report.papers.recipes import Deviation, deviations, recipe, recipes
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.paper_table import published_table
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.sheet import PLAIN, Sheet
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.optim import optimizer_settings
from gpas_cli.spec.parse_cell import cell_from

EVERY_PART = [part for source in SOURCES for number in numbers(source) for part in printed(source, number)]
IN_THE_TEXT = {("gpas", "text_activation"), ("code", "readme_perplexity")}  # numbers that no table prints

TIMES = "\N{MULTIPLICATION SIGN}"
# The papers' tables, with x for the multiplication sign: rows are lines, columns are separated by "|".
AS_PRINTED = {
    "gpas:1": """
        Model Size|Learning Rate|Warmup Steps|Training Steps|Batch Size|Train Tokens|Eval Tokens
        71M|1 x 10⁻³|1K|10K|512|1B|10M
        130M|1 x 10⁻³|2K|20K|512|2B|10M
        250M|1 x 10⁻³|4K|40K|512|4B|10M
        350M|5 x 10⁻⁴|6K|60K|512|6B|10M
        1B|5 x 10⁻⁴|10K|100K|512|10B|10M
    """,
    "gpas:2": """
        Method|71M|130M|250M|350M|1B
        Post-LN|33.97|26.62|1412.13|22.78|1404.98
        DeepNorm|35.89|26.96|22.47|22.06|1404.22
        Pre-LN|34.23|26.75|21.77|21.35|16.92
        Sandwich-LN|32.82|25.57|20.52|21.54|16.87
        Mix-LN|34.00|26.36|21.90|21.41|16.73
        LNS|34.70|26.03|20.65|20.43|15.65
        DeepNorm + GPAS|34.97 (-0.92)|26.65 (-0.31)|21.81 (-0.66)|21.03 (-1.03)|18.10 (-1386)
        Pre + GPAS|33.49 (-0.74)|26.34 (-0.41)|21.42 (-0.35)|20.35 (-1.00)|16.25 (-0.67)
        Sandwich + GPAS|32.34 (-0.48)|25.05 (-0.52)|20.45 (-0.07)|19.79 (-1.75)|15.90 (-0.97)
        Mix + GPAS|33.48 (-0.52)|26.22 (-0.14)|21.78 (-0.12)|20.51 (-0.90)|16.49 (-0.24)
        LNS + GPAS|32.93 (-1.77)|25.07 (-0.96)|19.93 (-0.72)|19.44 (-0.99)|14.88 (-0.77)
    """,
    "gpas:3": """
        Method|MMLU|WinoG|PIQA|OBQA|HellaSwag|BoolQ|ARC-e|Average
        Post-LN|22.95|49.49|52.88|11.60|26.24|37.83|27.44|32.63
        DeepNorm|22.95|49.64|52.61|11.60|26.20|37.83|27.23|32.58
        Pre-LN|23.35|50.99|68.72|17.80|32.29|50.37|49.33|41.83
        Sandwich|23.27|51.07|67.63|21.20|32.70|61.74|47.43|43.58
        Mix-LN|23.22|52.88|68.82|20.80|33.11|61.90|48.91|44.23
        LNS|23.16|52.09|69.37|20.00|34.68|62.08|51.18|44.65
        DeepNorm + GPAS|23.71|50.67|67.95|21.20|31.43|53.82|47.22|42.29 (+9.71)
        Pre + GPAS|23.46|52.25|68.99|22.20|33.72|59.76|49.87|44.32 (+2.49)
        Sandwich + GPAS|23.14|50.36|69.10|22.20|34.62|61.96|50.97|44.62 (+1.04)
        Mix + GPAS|23.22|52.88|70.18|21.00|33.52|61.93|49.79|44.65 (+0.42)
        LNS + GPAS|23.34|52.01|70.95|24.40|36.09|61.59|52.40|45.83 (+1.18)
    """,
    "gpas:4": """
        Activation|Perplexity
        Identity|20.08 (-1.27)
        ReLU|21.17 (-0.18)
        LeakyReLU|21.17 (-0.18)
        Tanh|20.09 (-1.26)
        SiLU (β=8)|20.26 (-1.09)
        SiLU (default)|20.35 (-1.00)
        No GPAS|21.35

        GPAS Position|Perplexity
        After sub-layer (default)|20.35 (-1.00)
        Before sub-layer|20.73 (-0.62)
        After LayerNorm|21.33 (-0.02)
        After Attn / FFN|21.23 (-0.12)
        No GPAS|21.35
    """,
    "gpas:5": """
        Method|Perplexity
        w/ sg()|20.35 (-1.00)
        w/o sg()|21.34 (-0.01)
        No GPAS|21.35

        Method|Perplexity
        Learnable gate|20.35 (-1.00)
        Predefined gate|22.46 (+1.11)
        No GPAS|21.35
    """,
    "gpas:A": """
        Method|7B
        Pre-LN|15.27
        Pre + GPAS|13.82
    """,
    "curse_of_depth:1": """
        |LLaMA-130M|LLaMA-250M|LLaMA-350M|LLaMA-1B
        Post-LN|26.95|1409.79|1368.33|1390.75
        DeepNorm|27.17|22.77|1362.59|1409.08
        Mix-LN|26.07|21.39|1363.21|1414.78
        Pre-LN|26.73|21.92|19.58|17.02
        Pre-LN + LayerNorm Scaling|25.76|20.35|18.20|15.71
    """,
    "spike:1": """
        Model|WikiText ↓|LAMBADA ↓
        350M parameters||
        Vanilla|30.03|24.73
        Embed Detach|30.69|26.93
        Embed LN|29.85|25.03
        Scaled Embed|29.86|24.37
        1.7B parameters||
        Vanilla|22.58|15.22
        Embed Detach|22.00|13.88
        Embed LN|21.29|13.00
        Scaled Embed|21.29|12.53
    """,
    "spike:2": """
        Model|WikiText ↓ lr = 3.0 x 10⁻⁴|WikiText ↓ lr = 1.0 x 10⁻⁴|LAMBADA ↓ lr = 3.0 x 10⁻⁴|LAMBADA ↓ lr = 1.0 x 10⁻⁴
        Vanilla|N/A|15.12|N/A|6.50
        Scaled Embed|14.47|15.25|5.97|6.53
    """,
    "spike:7": """
        Model|WikiText ↓ lr = 1.0 x 10⁻³|WikiText ↓ lr = 5.0 x 10⁻⁴|WikiText ↓ lr = 1.0 x 10⁻⁴|\
LAMBADA ↓ lr = 1.0 x 10⁻³|LAMBADA ↓ lr = 5.0 x 10⁻⁴|LAMBADA ↓ lr = 1.0 x 10⁻⁴
        350M parameters||||||
        Vanilla|29.96|30.35|34.51|25.12|24.73|32.49
        Scaled Embed|28.09|29.86|35.66|22.03|24.37|37.14
        1.7B parameters||||||
        Vanilla|N/A|22.58|23.54|N/A|15.22|16.17
        Scaled Embed|20.95|21.29|23.78|12.26|12.53|15.39
    """,
    "raptr:1": """
        |Relative FLOPs|Eval Loss|MNLI|QNLI|SST-2
        Baseline|1.33|1.76|81.5|90.5|91.4
        Gradual Stacking|||||
        6-8-10-12|1|1.78|-|-|-
        6-9-12|1|1.77|80.9|89.8|91.1
        RAPTR|||||
        6-8-10-12|1|1.75|82.1|89.8|92.4
        6-9-12|1|1.75|-|-|-
    """,
    "raptr:3": """
        |Rel. FLOPs|Eval Loss|Trivia QA|Tydi QA|SQuADv2|SuperGLUE
        Baseline|1.2|2.06 (0.01)|25.0 (0.2)|34.4 (3.1)|42.1 (2.9)|60.0 (0.4)
        Equiflop Baseline|1|2.07 (←)|24.3 (←)|35.7 (←)|42.37 (←)|60.6 (←)
        12-16-20-24 Stacking|1|2.08 (0.00)|20.1 (1.3)|28.6 (2.4)|36.0 (1.9)|60.4 (0.9)
        12-16-20-24 RAPTR|1|2.08 (←)|22.2 (←)|38.2 (←)|40.6 (←)|60.1 (←)
        (+30k initial full-model train)|1|2.06 (0.00)|25.8 (0.2)|36.7 (1.0)|44.1 (0.5)|60.9 (0.2)
    """,
    "raptr:2": """
        BERT-base FLOPs|Baseline|Stacking|RAPTR
        75k|2.09|2.02|2.01
        170k|1.90|1.88|1.86
        510k|1.74|1.75|1.73

        BERT-large FLOPs|Baseline|Stacking|RAPTR
        62.5k|1.84|1.78|1.80
        140k|1.63|1.60|1.61
        625k|1.40|1.41|1.41
    """,
}


def as_text(part: PrintedPart) -> Sheet:
    return sheet(published_table(part))


@pytest.mark.parametrize("name", AS_PRINTED)
def test_a_table_is_as_printed(name: str) -> None:
    lines = AS_PRINTED[name].replace(" x ", f" {TIMES} ").strip().splitlines()
    wanted = "\n".join(line.strip() for line in lines)
    parts = ["\n".join("|".join(line) for line in text.texts(PLAIN)) for text in map(as_text, printed_named(name))]
    assert "\n\n".join(parts) == wanted


@pytest.mark.parametrize("part", EVERY_PART, ids=lambda part: part.title)
def test_texts_are_the_published_numbers_with_a_cell_for_every_heading(part: PrintedPart) -> None:
    assert len({len(line) for line in as_text(part).texts(PLAIN)}) == 1
    for line in part.lines:
        assert len(line.cells) == len(part.headings)
        for cell in line.cells:
            found = [float(number) for number in re.findall(r"(?<![\w.])[+-]?\d+(?:\.\d*)?", cell.text)]
            if cell.table is None:
                continue
            assert (found[0] if found else None) == cell.value, (part.name, line.title, cell.text)
            if cell.delta is not None:
                assert found[1] == cell.delta, (part.name, line.title, cell.text)


@pytest.mark.parametrize("source", [source for source in SOURCES if numbers(source)])
def test_every_published_number_is_in_one_place(source: str) -> None:
    places = Counter(
        (cell.table.name, cell.row, cell.column)
        for part in EVERY_PART
        if part.source == source
        for line in part.lines
        for cell in line.cells
        if cell.table
    )
    assert set(places.values()) == {1}
    shown = {name for name, _, _ in places}
    assert {(source, name) for name in tables(source)} - {(source, name) for name in shown} <= IN_THE_TEXT
    for table in {cell.table.name: cell.table for p in EVERY_PART if p.source == source
                  for line in p.lines for cell in line.cells if cell.table}.values():  # fmt: skip
        cells = len(table.rows) * len(table.rows[0].values)
        assert sum(name == table.name for name, _, _ in places) == cells, table.name


def test_settings_are_those_of_the_source() -> None:
    factors = {"K": 1e3, "M": 1e6, "B": 1e9}
    (part,) = printed("gpas", "1")
    settings = load("gpas")["settings"]["table1_pretraining"]
    for line in part.lines:
        for cell, wanted in zip(line.cells, settings[line.title], strict=True):
            power = re.fullmatch(rf"(\d) {TIMES} 10⁻(.)", cell.text)
            if power:
                number = float(f"{power[1]}e-{'⁰¹²³⁴⁵⁶⁷⁸⁹'.index(power[2])}")
            else:
                number = float(cell.text.rstrip("KMB")) * factors.get(cell.text[-1], 1)
            assert number == wanted, (line.title, cell.text)


def test_names_of_tables() -> None:
    assert printed_named("curse:2") is printed_named("2", "curse_of_depth")
    assert printed_named("2")[0].name == "gpas:2"
    with pytest.raises(GpasError, match="GPAS paper has no table '9'; valid: 1, 2, 3, 4, 5, A"):
        printed_named("gpas:9")
    with pytest.raises(GpasError, match="unknown source 'gaps'; did you mean 'gpas'"):
        printed_named("gaps:2")


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
        assert all(ord(character) < 256 for character in render(published_table(part), "latex")), part.title


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
