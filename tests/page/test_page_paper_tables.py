"""The papers' tables on the report page: those that a grid names and in which a cell has a number."""

from __future__ import annotations

from pathlib import Path

from report_cells import result

from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.page.content import paper_tables
from gpas_cli.report.recorded import Recorded

EXPERIMENTS = load(Path(__file__).parents[2] / "experiments.yaml")
ENTRIES = tuple(entry for entry in expand(EXPERIMENTS, ["table2"]) if entry.axes["norm"] == "lns")


def test_each_source_that_the_grid_names_has_its_table() -> None:
    results = result(ENTRIES[0], metrics={"perplexity": 35.5, "perplexity_reference": 34.5})
    gpas, poster = paper_tables(EXPERIMENTS, Recorded(ENTRIES, {}, results), ["table2"])
    assert gpas.title.startswith("GPAS paper, Table 2: ")
    assert poster.title.startswith("GPAS poster, ")
    assert gpas.command == "gpas table gpas:2"
    assert '<td class="ours">34.50</td><td class="published">34.70</td><td class="ours">35.50</td>' in gpas.html
    assert "notes" not in gpas.html
    assert "Our numbers are those of the grid table2." in gpas.notes


def test_a_grid_without_numbers_has_none() -> None:
    assert list(paper_tables(EXPERIMENTS, Recorded(ENTRIES), ["table2"])) == []
    results = result(ENTRIES[0], 34.5)
    assert list(paper_tables(EXPERIMENTS, Recorded(ENTRIES, {}, results), ["quickstart", "gone"])) == []
