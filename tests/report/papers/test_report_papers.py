"""The published numbers against a second transcription; their remarks, and the language of printed tables."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import cases, file_text
from named_papers import NUMBERS, PACKS, TABLES, load, published, tables, value_of

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.packs import Pack, pack_named
from gpas_cli.report.papers import PublishedCell, PublishedTable
from gpas_cli.report.papers.printed import printed
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.sheet import PLAIN

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
    for table in TABLES:
        needed = {"family", "norm", "init", "data"} - set(load(table.source).get("unstated", ()))
        measured = {"text"} if table.metric == "perplexity" else set()
        for row in table.rows:
            assert needed | measured <= {*row.labels, table.axis}, (table.source, table.name, row.labels)


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


SECOND: dict[str, Any] = yaml.load(file_text("golden/paper_numbers.yaml"), Loader=yaml.CSafeLoader)


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


def cells(table: PublishedTable) -> list[PublishedCell]:
    """Return the cell of each number, which is found by its own labels."""
    found = [PublishedCell(table, i, j) for i, row in enumerate(table.rows) for j in range(len(row.values))]
    for cell in found:
        labels = {axis: label[0] if isinstance(label, tuple) else label for axis, label in cell.labels.items()}
        assert table.cell(labels) == cell
    return found


def test_printed_differences_are_those_of_printed_numbers() -> None:
    for cell in (cell for table in TABLES for cell in cells(table) if cell.delta is not None):
        plain = "deepnorm" if cell.labels["norm"] == "deepnorm" else "normal"
        derived = cell.minus(cell.table.cell({**cell.labels, "gate": "none", "init": plain}))
        # Large differences are printed without decimals, and without rounding.
        assert derived == pytest.approx(cell.delta, abs=0.0101 if abs(cell.delta) < 100 else 1), cell.labels


def test_remarks_stand_at_the_numbers_of_which_they_are_true() -> None:
    """Whoever adds one to the golden file has calculated it from its numbers, which stand before it."""
    found = [
        f"{table.source} {table.name}: {[cell.value for cell in cells(table) if remark in cell.remarks]}: {remark.text}"
        for table in TABLES
        for remark in table.remarks
    ]
    assert found == file_text("golden/remarks.txt").splitlines()
    assert published("curse_of_depth", "table1_perplexity").train_tokens == (2.2e9, 3.9e9, 6.0e9, 8.9e9)


def test_only_perplexities_over_1000_are_of_runs_that_diverged() -> None:
    """And all of them are; in a table whose numbers are `null` where a run failed, the remark says how."""
    seen = 0
    for table in TABLES:
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


@cases("report/cases.yaml")
def test_mistakes_name_lines(old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXAMPLE.count(old) == 1
    with pytest.raises(InvalidExperiments) as caught:
        lines(EXAMPLE.replace(old, new), tmp_path, monkeypatch)
    assert f"numbers.yaml:{message}" in str(caught.value)
