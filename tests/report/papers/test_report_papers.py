"""The published numbers against a second transcription; their remarks, and the language of printed tables."""

import re
import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from named_papers import NUMBERS, PACKS, SOURCES, load, published, tables, value_of

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.packs import Pack, pack_named
from gpas_cli.report.papers import PublishedCell, PublishedTable, Remark
from gpas_cli.report.papers.printed import printed
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.sheet import PLAIN

DIGEST = Path(__file__).parents[2] / "golden" / "paper_numbers.yaml"
EVERY_TABLE = {f"{source}: {name}": published(source, name) for source in SOURCES for name in tables(source)}
# What every cell of the GPAS experiments is.
LLAMA = {"family": "llama", "init": "normal", "std": "usual", "data": "c4", "text": "c4"}
UL2 = {"family": "llama", "size": "ul2", "data": "arxiv+c4+github+wikipedia"}


@pytest.mark.parametrize("axis", ["family", "norm", "init", "std", "data", "text"])
def test_a_cell_that_differs_in_any_label_of_the_row_gets_no_number(axis: str) -> None:
    table = published("gpas", "table2_perplexity")
    cell = {**LLAMA, "size": "71m", "norm": "pre"}
    assert value_of(table, cell) == 34.23
    assert value_of(table, {**cell, axis: "other"}) is None
    assert value_of(table, {name: label for name, label in cell.items() if name != axis}) is None


def test_every_row_says_which_network_and_text_it_is_of() -> None:
    for name, table in EVERY_TABLE.items():
        needed = {"family", "norm", "init", "data"} - set(load(table.source).get("unstated", ()))
        measured = {"text"} if table.metric == "perplexity" else set()
        for row in table.rows:
            assert needed | measured <= {*row.labels, table.axis}, (name, row.labels)


def test_the_row_with_the_most_labels_is_used() -> None:
    table = published("raptr", "table3_loss")
    full = {**UL2, "depth": "full", "schedule": "cosine"}
    assert value_of(table, full) == 2.06
    assert value_of(table, {**full, "budget": "equal"}) == 2.07


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(GpasError, match="no paper 'postr'; did you mean 'poster'"):
        pack_named("postr", PACKS)
    with pytest.raises(GpasError, match="did you mean 'table2_perplexity'"):
        published("gpas", "table2_perplexities")
    with pytest.raises(GpasError, match="has no column '130'; did you mean '130m'"):
        published("gpas", "table2_perplexity@130")


SECOND: dict[str, Any] = yaml.load(DIGEST.read_text(), Loader=yaml.CSafeLoader)


@pytest.mark.parametrize("name", [f"{source}: {name}" for source in NUMBERS for name in tables(source)])
def test_every_number_is_that_of_the_second_transcription(name: str) -> None:
    table = published(*name.split(": "))
    second = SECOND["numbers"][table.source][table.name]
    for labels, *numbers in second["cells"]:
        cell = table.cell({**second["where"], **labels})
        found = (cell.value, cell.delta, cell.std) if cell else (None, None, None)
        assert found == (*numbers, None, None)[:3], labels
    assert sum(value is not None for _, value, *_ in second["cells"]) == sum(
        value is not None for row in table.rows for value in row.values
    )


@pytest.mark.parametrize("source", SECOND["settings"])
def test_settings_are_those_of_the_second_transcription(source: str) -> None:
    settings = load(source)["settings"]
    assert {name: settings[name] for name in SECOND["settings"][source]} == SECOND["settings"][source]


def test_a_baseline_of_equal_work_is_not_one_of_equal_steps() -> None:
    table = published("raptr", "table1_loss@bert-base")
    toy = {"size": "-", "family": "llama", "norm": "pre", "depth": "full"}
    assert value_of(table, toy) == 1.76
    assert value_of(table, {**toy, "budget": "equal"}) is None
    assert value_of(published("raptr", "table7_loss@bert-base"), {**toy, "budget": "equal"}) == 1.74
    with pytest.raises(GpasError, match="no column 'bert-bas'; did you mean"):
        published("raptr", "table1_loss@bert-bas")


REMARKED = [published(source, name) for source in SOURCES for name in tables(source)]
REMARKS = [(table, remark) for table in REMARKED for remark in table.remarks]


def cells(table: PublishedTable) -> list[PublishedCell]:
    """Return the cell of each number, which is found by its own labels."""
    found = [PublishedCell(table, i, j) for i, row in enumerate(table.rows) for j in range(len(row.values))]
    for cell in found:
        labels = {axis: label[0] if isinstance(label, tuple) else label for axis, label in cell.labels.items()}
        assert table.cell(labels) == cell
    return found


def test_printed_differences_are_those_of_printed_numbers() -> None:
    for cell in (cell for table in REMARKED for cell in cells(table) if cell.delta is not None):
        plain = "deepnorm" if cell.labels["norm"] == "deepnorm" else "normal"
        derived = cell.minus(cell.table.cell({**cell.labels, "gate": "none", "init": plain}))
        # Large differences are printed without decimals, and without rounding.
        assert derived == pytest.approx(cell.delta, abs=0.0101 if abs(cell.delta) < 100 else 1), cell.labels


def values(table: PublishedTable, remark: Remark | None = None, **labels: Any) -> list[Any]:
    """Return the numbers of the cells with these labels, of those only that the remark is about."""
    return [
        cell.value
        for cell in cells(table)
        if (remark is None or remark in cell.remarks)
        and labels.items() <= {"full_steps": "none", **cell.labels}.items()
    ]


def gain(table: PublishedTable, axis: str, worse: Any, better: Any, **labels: Any) -> float:
    """Return by how much the number with one label is smaller than that with another."""
    ((old,), (new,)) = ({*values(table, **labels, **{axis: label})} for label in (worse, better))
    return round(old - new, 4)


def by_both_tables(table: PublishedTable, remark: Remark) -> bool:
    vanilla = {"size": "350m", "embed": "plain", "text": "wikitext"}
    one = values(published("spike_no_more", "table1_perplexity"), **vanilla)
    other = values(published("spike_no_more", "table7_perplexity"), **vanilla, lr=5e-4)
    return ({*one}, {*other}) == ({30.03}, {30.35}) and {*values(table, remark)} <= {*one, *other}


def better_only_here(table: PublishedTable, remark: Remark) -> bool:
    pairs = product(("350m", "1.7b"), ("wikitext", "lambada_openai"))
    *others, here = (gain(table, "embed", "plain", "scaled", lr=1e-4, size=size, text=text) for size, text in pairs)
    return here == 0.78 and all(other < 0 for other in others)


def of_both_depths(table: PublishedTable, remark: Remark) -> bool:
    pairs = product(remark.where["depth"], remark.where["steps"])
    gains = [gain(table, "depth", "full", depth, steps=steps) for depth, steps in pairs]
    return (min(gains), max(gains)) == (0.02, 0.06)


def of_the_schedule(table: PublishedTable, remark: Remark) -> bool:
    rows = (("raptr", "none"), ("stacking", "none"), ("raptr", 30000))
    stages = ("stages", "12-16-20-24", "6-12-18-24")
    return [gain(table, *stages, depth=depth, full_steps=whole) for depth, whole in rows] == [0.02, 0.02, 0]


def twice_the_same(table: PublishedTable, remark: Remark) -> bool:
    found = values(table, remark)
    return len(found) > 1 and found[: len(found) // 2] == found[len(found) // 2 :]


def shifted(table: PublishedTable, remark: Remark) -> bool:
    above = max(value for value in values(table, task="triviaqa") if value != 32.1)
    below = min(value for value in values(table, task="tydiqa") if value != 22.1)
    return values(table, remark)[:3] == [32.1, 22.1, None] and above < 30 and below > 25


def average(table: PublishedTable, remark: Remark) -> bool:
    (cell,) = (cell for cell in cells(table) if remark in cell.remarks)
    scores = [value for value in table.rows[cell.row].values[:-1] if value is not None]
    printed, computed = map(float, re.findall(r"\d+\.\d", remark.text))
    return cell.value == printed and round(sum(scores) / len(scores), 1) == computed


def speeds(table: PublishedTable, remark: Remark) -> bool:
    per_second = dict(zip(table.columns, table.rows[0].values, strict=True))
    taken = sum(steps / per_second[layers] for steps, layers in ((40, 12), (80, 16), (120, 20), (160, 24)))
    return f"{taken / (400 / per_second[24]):.3f}" == "0.828"


def reversed_speeds(table: PublishedTable, remark: Remark) -> bool:
    found = [value for value in table.rows[0].values if value is not None]
    right = dict(zip(table.columns, sorted(found, reverse=True), strict=True))
    share = sum(right[12] / right[layers] for layers in (6, 8, 10, 12)) / 4  # stages of equal length
    return found == sorted(found) and (right[6], right[12]) == (17.9, 10.2) and f"{share:.2f}" == "0.79"


def standard_deviations(table: PublishedTable, remark: Remark) -> bool:
    other = published("raptr", "table11_1shot")
    pairs = [
        (task, row.stds[i], twin.stds[other.columns.index(task)])
        for row, (i, task), twin in product(table.rows, enumerate(table.columns), other.rows)
        if row.stds and twin.stds and {**row.labels, "schedule": 0} == {**twin.labels, "schedule": 0}
    ]
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    return len(pairs) > 8 and differing == [("squadv2", 2.9, 2.0), ("tydiqa", 2.4, 2.7), ("squadv2", 1.9, 0.9)]


def more_exact_matches(table: PublishedTable, remark: Remark) -> bool:
    rows = [
        values(table, task=task) for task in ("tydiqa", "squadv2")
    ]  # baseline, equal work, stacking, paths, after 30k
    gains = [round(paths - others[i], 1) for i in (0, 2) for *others, paths in rows]
    return gains == [2.3, 2.0, 8.1, 8.1] and values(table, remark) == [row[-1] for row in rows]


def of_updates(table: PublishedTable, remark: Remark) -> bool:
    thousands = [round(tokens / 512 / 195.3 / 1000) for tokens in table.train_tokens]
    return table.train_tokens == (2.2e9, 3.9e9, 6.0e9, 8.9e9) and thousands == [22, 39, 60, 89]


# Words of a remark -> whether it is true of the numbers that it stands at.
CHECKS: dict[str, Callable[[PublishedTable, Remark], bool]] = {
    "a perplexity near 1400": lambda table, remark: all(abs(one / 1400 - 1) < 0.05 for one in values(table, remark)),
    "the training failed": lambda table, remark: {*values(table, remark)} == {None},
    "30.03 in Table 1 and 30.35 in Table 7": by_both_tables,
    "is the better one at 1.7B, by 0.78; in the other three": better_only_here,
    "0.02 better than stacking at all FLOPs; in the table it is 0.01 at 75k": lambda table, _: (
        [gain(table, "depth", "stacking", "raptr", steps=steps) for steps in table.columns] == [0.01, 0.02, 0.02]
    ),
    "in the table it is 0.02 to 0.06": of_both_depths,
    "its loss falls by 0.02, as that of stacking does": of_the_schedule,
    "prints the same numbers, in all columns": twice_the_same,
    "TriviaQA 32.1 is far above, TydiQA 22.1 far below": shifted,
    "average is 88.0": average,
    "the printed average of RaPTr's": average,
    "steps take 0.828 of the time of 400k": speeds,
    "0.79 t follows from 17.9 steps/s with 6 layers and 10.2 with 12": reversed_speeds,
    "SQuADv2 2.9 and 2.0, TydiQA 2.4 and 2.7, SQuADv2 1.9 and 0.9": standard_deviations,
    "its numbers are worse": lambda table, remark: (
        min(own := values(table, remark)) >= max(one for one in values(table) if one not in own)
    ),
    "the text counts eight tasks; the table has these seven": lambda table, _: len(table.columns) - 1 == 7,
    "2.2B, 3.9B, 6.0B and 8.9B, are 22, 39, 60 and 89 thousand updates of 512 x 195.3 tokens": of_updates,
    "on BoolQ, Pre-LN has 62.20 and LNS 61.80": lambda table, remark: values(table, remark) == [62.2, 61.8],
    "1 of 1.33 is 75 %, 25 % fewer": lambda table, _: values(table, depth="full") == [1.33],
    "1 of 1.2 is 17 % fewer": lambda table, _: values(table, depth="full") == [1.2, 1],
    "it is 2.3 and 2.0 more than the baseline and 8.1 more than stacking": more_exact_matches,
    "on Trivia QA it is 0.8 more than the baseline": lambda table, remark: (
        [round(one - 25.0, 1) for one in values(table, remark)] == [0.8] and 25.0 in values(table, task="triviaqa")
    ),
    "on Trivia QA the standard deviations are 0.2 and 0.2": lambda table, _: (
        [row.stds[0] for row in table.rows if row.stds] == [0.2, 1.3, 0.2]
    ),
    "an average of 27.52 for B2T at this rate, the paper 26.89": lambda table, remark: 26.89 in values(table, remark),
    "of all 3,003 sentences": lambda _, remark: remark.where == {"task": "newstest2014"},
}
# Beginnings of remarks on texts and codes, of which the tables have no number.
ABOUT_TEXTS = (
    "the paper gives DeepNorm an init", "LNS without GPAS raises", "the paper does not state where its ReLU",
    '"before the sub-layer" is read', "in the published code DeepNorm", "the paper states neither the unit",
    "Table 8 names no number", "the caption of Table 3 has peak", "not stated: ", "appendix B.2 prints the bound",
    "the paper reports the best model", "the text says that layer drop", "the published code (3ac54dd) cannot",
    "Table 8 prints 7168 max tokens", "the architecture is that of Peitz", "here the encoder and the decoder end",
)  # fmt: skip


@pytest.mark.parametrize(("table", "remark"), REMARKS, ids=lambda one: getattr(one, "name", ""))
def test_a_remark_is_true_of_the_numbers_that_it_stands_at(table: PublishedTable, remark: Remark) -> None:
    checks = [check for words, check in CHECKS.items() if words in remark.text]
    assert checks or remark.text.startswith(ABOUT_TEXTS), "add a check of this remark to CHECKS"
    assert values(table, remark)
    assert all(check(table, remark) for check in checks), remark.text


def test_every_check_has_its_remark() -> None:
    texts = [remark.text for _, remark in REMARKS]
    assert all(any(words in text for text in texts) for words in (*CHECKS, *ABOUT_TEXTS))


def test_only_perplexities_over_1000_are_of_runs_that_diverged() -> None:
    """And all of them are; in a table whose numbers are `null` where a run failed, the remark says how."""
    seen = 0
    for table in REMARKED:
        for cell in cells(table):
            value, said = cell.value, " ".join(remark.text for remark in cell.remarks)
            exploded = value is None and ("failed" in said or "exploded" in said)
            over = table.metric == "perplexity" and value is not None and value > 1000
            where = (table.source, table.name, cell.labels, value)
            assert ("diverged" in said) == over, where
            assert ("exploded" in said) == exploded, where
            seen += over
    assert seen == 6 + 7


PAGE = Path(__file__).parents[3] / "docs/reference/numbers.md"
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", PAGE.read_text("utf-8"), re.MULTILINE)]
EXAMPLE = "short: Mine\n" + "".join(BLOCKS)


def lines(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return Table 2 of a file of numbers."""
    (folder / "numbers.yaml").write_text(text)
    monkeypatch.chdir(folder)
    (table,) = printed(Pack("mine", folder), "2")
    return sheet(table).texts(PLAIN)


def test_the_example_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(EXAMPLE, tmp_path, monkeypatch) == [
        ["Method", "71M", "1B"],
        ["Pre-LN", "34.23", "16.92"],
        ["Pre + GPAS", "33.49 (-0.74)", "16.25 (-0.67)"],
    ]


MORE = """\
    bands: {Small: {size: 71m}}
    columns: {All: {}}
    rows: {Pre: {norm: pre}, Largest: {size: 1b, gate: gpas}}
    digits: {All: all}
    suffix: {Pre: ' (?)'}
    texts: {Largest: {All: 16.250}}
    underlined: {Pre: [All]}
"""


def test_bands_and_notation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXAMPLE[: EXAMPLE.index("    columns: {71M")] + MORE
    found = lines(text.replace("16.250", "'16.250'"), tmp_path, monkeypatch)
    assert found == [["Method", "All"], ["Largest", "16.250"], ["Small", ""], ["Pre", "34.23 (?)"]]


LINE = EXAMPLE[: EXAMPLE.index("    columns: {71M")].count("\n") + 1  # of the columns


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("corner: M", "cornr: M", f"{LINE - 2}:5: printed.2.cornr: unknown key 'cornr'; did you mean 'corner'?"),
        (": {size: 1b}}\n", ": {size: 2b}}\n", f"{LINE + 2}:15: printed.2.rows.Pre-LN: no number has the labels of "
         "this row and of the column '1B': size 2b, norm pre; valid: 71m, 1b"),
        ("{71M: {size: 71m}, 1B: {size: 1b}}", "{All: {}}", f"{LINE + 2}:15: printed.2.rows.Pre-LN: 2 numbers have the "
         "labels of this row and of the column 'All': norm pre"),
        ("corner: Method", "digits: few", f"{LINE - 2}:13: printed.2.digits: 'few' is not a whole number"),
        ("corner: Method", "texts: {Post: {1B: x}}", f"{LINE - 2}:13: printed.2.texts.Post: unknown key 'Post'"),
        ("corner: Method", "texts: {Pre-LN: {1B: 9.0}}", f"{LINE - 2}:26: printed.2.texts.Pre-LN.1B: '9.0' is"),
        ("corner: Method", "underlined: {Pre-LN: [1b]}", f"{LINE - 2}:26: printed.2.underlined.Pre-LN: there is no "
         "'1b'; valid: 71M, 1B"),
        ("corner: Method", "cells_of: 3", f"{LINE - 2}:15: printed.2.cells_of: '3' is not a"),
        ("published: t", "published: T", f"{LINE - 1}:16: printed.2.published: there is no 'Table2_perplexity'; "
         "did you mean"),
        ("  better: lower", "  beter: lower", "6:5: tables.table2_perplexity.beter: unknown key 'beter'; did you mean"),
        ("34.23, 16.92", "34.23", "11:39: tables.table2_perplexity.rows.values: has 1 number for 2 columns"),
        ("34.23, 16.92", "34.23, -", "11:47: tables.table2_perplexity.rows.values: '-' is not a number"),
        ("values: [33.49, 16.25]", "value: [33.49, 16.25]", "12:43: tables.table2_perplexity.rows.value: unknown key"),
        ("printed:", "prnted:", "13:1: prnted: unknown key 'prnted'; did you mean 'printed'?"),
        ("    published: table2_perplexity\n", "", f"{LINE + 1}:15: printed.2.rows.Pre-LN: a mapping is not a list"),
        ("    columns: {71M: {size: 71m}, 1B: {size: 1b}}\n", "", f"{LINE - 3}:5: printed.2: needs 'columns'"),
    ],
)  # fmt: skip
def test_mistakes_name_lines(old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXAMPLE.count(old) == 1
    with pytest.raises(InvalidExperiments) as caught:
        lines(EXAMPLE.replace(old, new), tmp_path, monkeypatch)
    assert f"numbers.yaml:{message}" in str(caught.value)
