"""The published numbers: each one against a second transcription of the papers, and looking them up."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpas_cli.errors import GpasError
from gpas_cli.report.papers import SOURCES, UNCHANGED, PublishedRow, PublishedTable, load, published, tables

DIGEST = Path(__file__).parents[2] / "golden" / "paper_numbers.yaml"
EVERY_TABLE = {f"{source}: {name}": published(source, name) for source in SOURCES for name in tables(source)}

Numbers = list[float | None]

# What every cell of the GPAS experiments is.
LLAMA = {"family": "llama", "init": "normal", "std": "usual", "data": "c4", "text": "c4"}
GPT = {"family": "gpt", "norm": "pre", "init": "small", "std": "usual", "data": "c4"}
BERT = {"family": "bert", "size": "bert-base", "data": "wikipedia+books"}
UL2 = {"family": "llama", "size": "ul2", "data": "arxiv+c4+github+wikipedia"}


def of_cell(labels: dict[str, Any]) -> dict[str, Any]:
    """Return the labels of a cell that has those of a row: of several, the first."""
    return {axis: label[0] if isinstance(label, tuple) else label for axis, label in labels.items()}


def cells() -> Iterator[tuple[str, PublishedTable, PublishedRow, int, dict[str, Any]]]:
    """Yield every published number: its table's name, its row, its place in the row, and its labels."""
    for name, table in EVERY_TABLE.items():
        for row in table.rows:
            for i in range(len(row.values)):
                column = {table.axis: table.columns[i]} if table.axis else {}
                yield name, table, row, i, of_cell({**row.labels, **column})


def difference(table: PublishedTable, labels: dict[str, Any], base: dict[str, Any]) -> float | None:
    found = table.cell(labels)
    return found.minus(table.cell(base)) if found else None


def test_every_table_is_whole() -> None:
    for name, table in EVERY_TABLE.items():
        assert table.better in ("lower", "higher"), name
        assert table.what, name
        assert table.metric, name
        width = len(table.columns) if table.axis else 1
        assert all(len(row.values) == width for row in table.rows), name
        assert all(len(more) in (0, width) for row in table.rows for more in (row.deltas, row.stds)), name
        labels = [tuple(sorted(({**UNCHANGED, **row.labels}).items(), key=str)) for row in table.rows]
        assert len(set(labels)) == len(labels), name
        assert len(table.train_tokens) in (0, width), name


def test_a_remark_is_about_numbers_that_are_printed() -> None:
    for name, table in EVERY_TABLE.items():
        found = [table.cell(labels) for other, *_, labels in cells() if other == name]
        for remark in table.remarks:
            assert any(cell and remark in cell.remarks for cell in found), (name, remark)


def test_known_misprints_are_remarked() -> None:
    said = {
        ("raptr", "table10_speed"): "reversed",
        ("raptr", "table4_scores"): "shifted",
        ("raptr", "table8_scores"): "rate at which layers are kept",
        ("raptr", "table5_accuracy"): "87.5",
        ("spike_no_more", "table1_perplexity"): "30.35",
        ("spike_no_more", "table7_perplexity"): "30.03",
        ("gpas", "table4_activation"): "0.01",
    }
    for (source, name), words in said.items():
        assert any(words in remark.text for remark in published(source, name).remarks), (source, name)


def test_every_number_is_found_by_its_own_labels() -> None:
    for name, table, row, i, labels in cells():
        assert table.value(labels) == row.values[i], (name, labels)


def test_printed_differences_are_those_of_printed_numbers() -> None:
    for name, table, row, i, labels in cells():
        if row.deltas and (printed := row.deltas[i]) is not None:
            plain = "deepnorm" if labels["norm"] == "deepnorm" else "normal"
            derived = difference(table, labels, {**labels, "gate": "none", "init": plain})
            # Large differences are printed without decimals, and without rounding.
            assert derived == pytest.approx(printed, abs=0.0101 if abs(printed) < 100 else 1), (name, labels)


def test_the_number_everyone_asks_for() -> None:
    table = published("gpas", "table2_perplexity")
    cell = {**LLAMA, "size": "71m", "norm": "pre", "gate": "gpas", "seed": 3}
    assert table.value(cell) == 33.49
    assert difference(table, cell, {**cell, "gate": "none"}) == -0.74
    found = table.cell(cell)
    assert found.tokens == 1_000_000_000
    assert table.better == "lower"


def test_unprinted_numbers_are_none() -> None:
    table = published("gpas", "table2_perplexity")
    cell = {**LLAMA, "size": "71m", "norm": "pre"}
    assert table.value(cell) == 34.23
    assert table.value({**cell, "norm": "post", "gate": "gpas"}) is None
    assert table.value({**cell, "size": "7b"}) is None
    assert table.value({**cell, "embed": "scaled"}) is None
    assert table.value({**LLAMA, "norm": "pre"}) is None
    assert difference(table, {**cell, "gate": "gpas"}, {**cell, "size": "7b"}) is None


@pytest.mark.parametrize("axis", ["family", "norm", "init", "std", "data", "text"])
def test_a_cell_that_differs_in_any_label_of_the_row_gets_no_number(axis: str) -> None:
    table = published("gpas", "table2_perplexity")
    cell = {**LLAMA, "size": "71m", "norm": "pre"}
    assert table.value(cell) == 34.23
    assert table.value({**cell, axis: "other"}) is None
    assert table.value({name: label for name, label in cell.items() if name != axis}) is None


def test_every_row_says_which_network_and_text_it_is_of() -> None:
    for name, table in EVERY_TABLE.items():
        needed = {"family", "norm", "init", "data"} - set(load(table.source).get("unstated", ()))
        measured = {"text"} if table.metric == "perplexity" else set()
        for row in table.rows:
            assert needed | measured <= {*row.labels, table.axis}, (name, row.labels)


def test_the_row_with_the_most_labels_is_used() -> None:
    table = published("raptr", "table3_loss")
    full = {**UL2, "depth": "full", "schedule": "cosine"}
    assert table.value(full) == 2.06
    assert table.value({**full, "budget": "equal"}) == 2.07


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(GpasError, match="did you mean 'poster'"):
        published("postr", "pretrain_perplexity")
    with pytest.raises(GpasError, match="did you mean 'table2_perplexity'"):
        published("gpas", "table2_perplexities")
    with pytest.raises(GpasError, match="has no column '130'; did you mean '130m'"):
        published("gpas", "table2_perplexity@130")


def test_titles_are_there() -> None:
    assert all(
        load(source)["title"] and load(source)["short"] and load(source)["source"] == source for source in SOURCES
    )


# From here on: every number of the digest, by another way than the files were made.

SCHEMES = {
    "post": "post",
    "deeppost": "deepnorm",
    "pre": "pre",
    "sandwich": "sandwich",
    "post_pre": "mix",
    "lns": "lns",
}
TASKS = {
    "MMLU": "mmlu",
    "WinoG": "winogrande",
    "PIQA": "piqa",
    "OBQA": "openbookqa",
    "HellaSwag": "hellaswag",
    "BoolQ": "boolq",
    "ARC-e": "arc_easy",
    "ARC-c": "arc_challenge",
    "SIQA": "social_iqa",
    "average": "average",
    "MNLI": "mnli",
    "QNLI": "qnli",
    "SST-2": "sst2",
    "avg": "average",
}
EMBEDS = {
    "vanilla": {**GPT, "embed": "plain"},
    "embed_detach": {**GPT, "embed": "detach"},
    "embed_ln": {**GPT, "embed": "layernorm"},
    "scaled_embed": {**GPT, "embed": "scaled"},
    "xavier_init": {**GPT, "embed": "plain", "init": "xavier"},
    "xavier_init_scaled_embed": {**GPT, "embed": "scaled", "init": "xavier"},
}


@pytest.fixture
def digest() -> dict[str, Any]:
    data: dict[str, Any] = yaml.load(DIGEST.read_text(), Loader=yaml.CSafeLoader)
    return data


def method(key: str) -> dict[str, str]:
    """Return the labels of a NORM_TYPE of the reference."""
    gated = key.endswith("_gpas")
    init = {"init": "deepnorm"} if key == "deeppost" else {}
    return {**LLAMA, "norm": SCHEMES[key.removesuffix("_gpas")], "gate": "gpas" if gated else "none", **init}


def number(value: Any) -> float | None:
    return None if value in (None, "N/A") else value


def count(source: str, *names: str) -> int:
    return sum(value is not None for name in names for row in published(source, name).rows for value in row.values)


@pytest.mark.parametrize(
    ("source", "section", "ours"), [("gpas", "paper", "table2_perplexity"), ("poster", "poster", "pretrain_perplexity")]
)
def test_pretraining(digest: dict[str, Any], source: str, section: str, ours: str) -> None:
    table = published(source, ours)
    checked = 0
    for key, sizes in digest[section][ours].items():
        for size, printed in sizes.items():
            cell = {**method(key), "size": size.lower()}
            assert table.value(cell) == printed["ppl"]
            row = next(row for row in table.rows if row.fits(cell))
            delta = row.deltas[table.columns.index(size.lower())] if row.deltas else None
            assert delta == printed.get("delta")
            checked += 1
    assert checked == count(source, ours)


@pytest.mark.parametrize(
    ("source", "section", "theirs", "ours"),
    [
        ("gpas", "paper", "table3_sft_1b_zero_shot_acc", "table3_accuracy"),
        ("poster", "poster", "sft_1b_acc", "finetuned_accuracy"),
    ],
)
def test_finetuning(digest: dict[str, Any], source: str, section: str, theirs: str, ours: str) -> None:
    table = published(source, ours)
    checked = 0
    for key, scores in digest[section][theirs].items():
        cell = {**method(key), "size": "1b"}
        row = next(row for row in table.rows if row.fits(cell))
        assert (row.deltas[-1] if row.deltas else None) == scores.pop("average_delta", None)
        for task, score in scores.items():
            average = "average_paper" if source == "gpas" else "average_poster"
            assert table.value({**cell, "task": average if task == "average" else TASKS[task]}) == score
            checked += 1
    assert checked == count(source, ours)


ABLATIONS = {
    "table4_activation": {
        "identity": "activation=identity",
        "relu": "activation=relu",
        "leaky_relu": "activation=leaky-relu",
        "tanh": "activation=tanh",
        "scale_silu_beta8": "activation=silu-beta-8",
        "silu": "gpas",
    },
    "table4_position": {
        "after_sublayer": "gpas",
        "before_sublayer": "site=before-sublayer",
        "after_norm": "site=after-norm",
        "after_module": "site=after-module",
    },
    "table5_stop_gradient": {"with_sg": "gpas", "without_sg": "stop_gradient=false"},
    "table5_gate": {"learnable": "gpas", "predefined": "learnable=false, from_trained=true"},
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations(digest: dict[str, Any], name: str) -> None:
    table = published("gpas", name)
    rows = digest["paper"][f"{name}_350m_pre"]
    for key, printed in rows.items():
        cell = {**LLAMA, "norm": "pre", "size": "350m", "gate": {**ABLATIONS[name], "no_gpas": "none"}[key]}
        assert table.value(cell) == printed["ppl"]
        row = next(row for row in table.rows if row.fits(cell))
        assert (row.deltas[0] if row.deltas else None) == printed.get("delta")
    assert len(rows) == count("gpas", name)


def test_the_rest_of_gpas_and_its_code(digest: dict[str, Any]) -> None:
    paper, readme = digest["paper"], digest["code"]["readme_and_comments"]
    settings = load("gpas")["settings"]
    assert settings["table1_pretraining"] == paper["table1_pretraining"]
    text = dict(paper["text"])
    one = text.pop("activation_1b")
    assert settings["text"] == text
    pre = {**LLAMA, "norm": "pre", "size": "1b"}
    activation = published("gpas", "text_activation")
    assert activation.value({**pre, "gate": "activation=identity"}) == one["identity"]
    assert activation.value({**pre, "gate": "gpas"}) == one["silu"]
    seven = dict(paper["appendix_a_7b"])
    for key in ("pre", "pre_gpas"):
        assert published("gpas", "appendix_7b").value({**method(key), "size": "7b"}) == seven.pop(key)["ppl"]
    assert settings["appendix_7b"] == seven
    pair = readme.pop("350m_default_embedding_init_std0.02")
    table = published("code", "readme_perplexity")
    cell = {**LLAMA, "norm": "pre", "size": "350m", "std": "embed_std=0.02"}
    assert table.value(cell) == pair["pre"]["ppl"]
    assert table.value({**cell, "gate": "gpas"}) == pair["pre_gpas"]["ppl"]
    assert difference(table, {**cell, "gate": "gpas"}, cell) == -pair["gain"]
    assert load("code")["settings"] == readme


def test_curse_of_depth(digest: dict[str, Any]) -> None:
    numbers = digest["curse_of_depth"]
    table = published("curse_of_depth", "table1_perplexity")
    tokens = numbers["table1_ppl"].pop("training_tokens")
    assert [f"{t / 1e9:.1f}B" for t in table.train_tokens] == list(tokens.values())
    for key, sizes in numbers["table1_ppl"].items():
        assert {size.lower(): table.value({**method(key), "size": size.lower()}) for size in sizes} == {
            size.lower(): value for size, value in sizes.items()
        }
    accuracy = published("curse_of_depth", "table2_accuracy")
    for size, methods in numbers["table2_sft"].items():
        for key, scores in methods.items():
            cell = {**method(key), "size": size.lower()}
            named = {"average": "average_paper"}
            assert all(
                accuracy.value({**cell, "task": named.get(task) or TASKS[task]}) == score
                for task, score in scores.items()
            )
    assert load("curse_of_depth")["settings"] == {"text": numbers["text"]}
    assert count("curse_of_depth", "table1_perplexity", "table2_accuracy") == 20 + 80


TEXTS = {"WikiText": "wikitext", "LAMBADA": "lambada_openai"}


def spike_cells(numbers: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield every number of Spike No More: (our table, labels, number)."""
    for no in ("1", "6"):
        for size, methods in numbers[f"table{no}_ppl"].items():
            for key, texts in methods.items():
                for text, value in texts.items():
                    yield f"table{no}_perplexity", {**EMBEDS[key], "text": TEXTS[text], "size": size.lower()}, value
    for key, texts in numbers["table2_ppl_13b"].items():
        for text, rates in texts.items():
            for lr, value in rates.items():
                cell = {**EMBEDS[key], "text": TEXTS[text], "size": "13b", "lr": float(lr)}
                yield "table2_perplexity", cell, value
    for size, methods in numbers["table7_ppl_vs_lr"].items():
        for key, texts in methods.items():
            for text, rates in texts.items():
                for lr, value in rates.items():
                    cell = {**EMBEDS[key], "text": TEXTS[text], "size": size.lower(), "lr": float(lr)}
                    yield "table7_perplexity", cell, value
    tasks = ["piqa", "openbookqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge"]
    for lr, methods in ((k, v) for k, v in numbers["table3_acc_13b"].items() if k.startswith("lr_")):
        for key, scores in methods.items():
            for task, value in zip(tasks, [None] * 6 if scores == "N/A" else scores, strict=True):
                yield "table3_accuracy", {**EMBEDS[key], "size": "13b", "lr": float(lr[3:]), "task": task}, value
    wmt = {**GPT, "family": "encoder-decoder", "data": "wmt-en-de", "embed": "scaled", "size": "wmt"}
    usual = {"std": "embed_std=0.0441942"}
    rows = {
        "deepnet": {"norm": "deepnorm", "init": "deepnorm", **usual},
        "b2t": {"norm": "b2t", "init": "xavier", **usual},
        "scaled_embed": {"norm": "pre"},
    }
    years = numbers["table9_bleu"].pop("columns")
    for lr, methods in numbers["table9_bleu"].items():
        for key, scores in methods.items():
            tests = [year if year == "average" else f"newstest{year}" for year in years]
            for test, value in zip(tests, [None] * 8 if scores == "N/A" else scores, strict=True):
                yield "table9_bleu", {**wmt, **rows[key], "lr": float(lr[3:]), "task": test}, value


def test_spike_no_more(digest: dict[str, Any]) -> None:
    numbers = digest["spike_no_more"]
    cells = list(spike_cells(numbers))
    for name, labels, value in cells:
        assert published("spike_no_more", name).value(labels) == number(value), (name, labels)
    assert sum(number(value) is not None for *_, value in cells) == count("spike_no_more", *tables("spike_no_more"))
    settings = load("spike_no_more")["settings"]
    for name in ("table4_hyperparameters", "table5_conditions", "table8_hyperparameters_mt", "init"):
        assert settings[name] == numbers[name]


def in_order(table: PublishedTable, part: str = "values") -> list[float | None]:
    return [value for row in table.rows for value in getattr(row, part)]


def scores_of(rows: list[dict[str, Any]], names: list[str], part: str = "mean") -> Numbers:
    cells = [row[name] for row in rows for name in names]
    return [cell[part] if isinstance(cell, dict) else cell for cell in cells]


def raptr_columns(numbers: dict[str, Any]) -> Iterator[tuple[str, Numbers]]:
    """Yield every table of RaPTr as its numbers, row by row in the printed order of rows."""
    glue, ul2 = ["MNLI", "QNLI", "SST-2"], ["TriviaQA", "TydiQA", "SQuADv2", "SuperGLUE"]
    for no, key, flops, names in (
        ("1", "table1_bert", "relative_flops", glue),
        ("3", "table3_ul2", "rel_flops", ul2),
        ("4", "table4_ul2_extra", "rel_flops", ul2),
        ("5", "table5_schedules", "rel_flops", [*glue, "avg"]),
        ("6", "table6_fixed_set", "", [*glue, "avg"]),
        ("7", "table7_layerdrop_bert", "rel_flops", [*glue, "avg"]),
        ("8", "table8_layerdrop_ul2", "", ul2),
    ):
        section = numbers[key]
        rows = section["rows"] if "rows" in section else list(section.values())
        kind = "scores" if names == ul2 else "accuracy"
        yield f"table{no}_{kind}", scores_of(rows, names)
        if no != "8":
            yield f"table{no}_loss", scores_of(rows, ["eval_loss"])
        if flops:
            yield f"table{no}_flops", scores_of(rows, [flops])
    for size in ("base", "large"):
        section = numbers["table2_bert_equal_flops"][f"bert_{size}"]
        yield f"table2_{size}_loss", [row[m] for m in ("baseline", "stacking", "raptr") for row in section.values()]
    yield "table9_speed", list(numbers["table9_steps_per_sec_ul2"].values())
    yield "table10_speed", list(numbers["table10_steps_per_sec_bert_base"].values())
    for shot in ("1shot", "5shot"):
        rows = [task[shot] for task in numbers["table11_ul2_downstream"].values()]
        methods = ("baseline", "raptr", "stacking", "raptr_init_train")
        yield f"table11_{shot}", [v for m in methods for v in scores_of(rows, [m])]


def test_raptr(digest: dict[str, Any]) -> None:
    found = dict(raptr_columns(digest["raptr"]))
    assert set(found) == set(tables("raptr"))
    for name, values in found.items():
        assert in_order(published("raptr", name)) == values, name
    ul2 = ["TriviaQA", "TydiQA", "SQuADv2", "SuperGLUE"]
    rows = digest["raptr"]["table3_ul2"].values()
    stds = [tuple(row[name]["std"] for name in ul2) for row in rows]
    ours = [row.stds or (None,) * 4 for row in published("raptr", "table3_scores").rows]
    assert ours == stds


def test_a_baseline_of_equal_work_is_not_one_of_equal_steps() -> None:
    table = published("raptr", "table1_loss@bert-base")
    toy = {"size": "-", "family": "llama", "norm": "pre", "depth": "full"}
    assert table.value(toy) == 1.76
    assert table.value({**toy, "budget": "equal"}) is None
    assert published("raptr", "table7_loss@bert-base").value({**toy, "budget": "equal"}) == 1.74
    with pytest.raises(GpasError, match="no column 'bert-bas'; did you mean"):
        published("raptr", "table1_loss@bert-bas")


def test_raptr_rows_bear_the_right_names(digest: dict[str, Any]) -> None:
    table = digest["raptr"]["table1_bert"]
    for name, row in table.items():
        stages = re.search(r"[\d-]{5,}$", name)
        depth = "raptr" if name.startswith("RAPTR") else "stacking" if "Stacking" in name else "full"
        path = {"fixed": "1,12", "scale": "sqrt"} if depth == "raptr" else {}
        labels = {**BERT, **path, "depth": depth, **({"stages": stages[0]} if stages else {})}
        assert published("raptr", "table1_loss").value(labels) == row["eval_loss"]
    fixed = digest["raptr"]["table6_fixed_set"]
    for name, row in fixed.items():
        paths = {"depth": "raptr", "stages": "6-8-10-12"}
        labels = {**BERT, **paths, "scale": "sqrt", "fixed": name[1:-1].replace(" ", "") or "none"}
        assert published("raptr", "table6_loss").value(labels) == row["eval_loss"]
