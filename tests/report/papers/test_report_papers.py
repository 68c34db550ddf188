"""The published numbers: each one against a second transcription of the papers, and looking them up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from named_papers import NUMBERS, PACKS, SOURCES, load, published, tables

from gpas_cli.errors import GpasError
from gpas_cli.grid.packs import pack_named
from gpas_cli.report.papers import PublishedRow, PublishedTable

DIGEST = Path(__file__).parents[2] / "golden" / "paper_numbers.yaml"
EVERY_TABLE = {f"{source}: {name}": published(source, name) for source in SOURCES for name in tables(source)}

# What every cell of the GPAS experiments is.
LLAMA = {"family": "llama", "init": "normal", "std": "usual", "data": "c4", "text": "c4"}
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
    for labels, *printed in second["cells"]:
        cell = table.cell({**second["where"], **labels})
        found = (cell.value, cell.delta, cell.std) if cell else (None, None, None)
        assert found == (*printed, None, None)[:3], labels
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
    assert table.value(toy) == 1.76
    assert table.value({**toy, "budget": "equal"}) is None
    assert published("raptr", "table7_loss@bert-base").value({**toy, "budget": "equal"}) == 1.74
    with pytest.raises(GpasError, match="no column 'bert-bas'; did you mean"):
        published("raptr", "table1_loss@bert-bas")
