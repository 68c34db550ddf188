"""Published numbers beside the metric that they are compared with, and the declared metric beside both."""

from __future__ import annotations

from report_cells import entry, result, spec

from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.cell_text import corner, sheet
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.side_by_side import beside_published

TABLE = spec(published={"gpas": "table2_perplexity"})


def test_the_perplexity_over_all_tokens_is_beside_the_compared_one() -> None:
    entries = [entry(gate=gate, size=size) for gate in ("none", "gpas") for size in ("71m", "130m")]
    results = {}
    for i, one in enumerate(entries):
        results |= result(one, metrics={"perplexity": 34.5 - i, "perplexity_reference": 34.25 - i})
    table = beside_published(Recorded(tuple(entries), {}, results), TABLE)
    titles = [(column.title, column.metric.name, column.sources) for column in table.columns]
    assert titles == [
        ("71m", "perplexity_reference", ("gpas",)),
        ("71m, validation perplexity", "perplexity", ()),
        ("130m", "perplexity_reference", ("gpas",)),
        ("130m, validation perplexity", "perplexity", ()),
    ]
    assert [cell.values for cell in table.rows[0].cells] == [{1: 34.25}, {1: 34.5}, {1: 33.25}, {1: 33.5}]
    assert [cell.values for cell in table.rows[1].cells] == [{1: 32.25}, {1: 32.5}, {1: 31.25}, {1: 31.5}]
    assert corner(table) == "reference perplexity"
    assert sheet(table)
    assert any(note.kind == "compared" for note in notes(table))


def test_a_run_without_the_compared_average_still_shows_the_other() -> None:
    lone = entry()
    results = result(lone, metrics={"perplexity": 34.84})
    cells = beside_published(Recorded((lone,), {}, results), TABLE).rows[0].cells
    assert [(cell.status, cell.values) for cell in cells] == [("not recorded", {}), ("", {1: 34.84})]


def test_one_metric_has_no_second_column() -> None:
    small = entry(size="quickstart", data="quickstart")
    known = Recorded((small,), {}, result(small, 40.0))
    table = beside_published(known, spec(published={"gpas": "table2_perplexity@71m"}))
    assert [column.metric.name for column in table.columns] == ["perplexity"]
