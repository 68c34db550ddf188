"""Cells of tables by the words that name them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from report_cells import entry, quickstart, spec

from gpas_cli.errors import UnknownCell
from gpas_cli.report.tables.table import Table, build
from gpas_cli.report.tables.table_place import RETRIED, Hole, Place, find_place, place_name, to_run


def table() -> Table:
    """Pre-LN and LNS, with and without GPAS, at 71m; Pre-LN without it at 130m too."""
    entries, results, states = quickstart()
    return build([*entries, entry("pre", "none", 1, "130m")], states, results, spec())


def find(words: str) -> Place:
    name = place_name(f"demo[{words}]")
    assert name is not None
    return find_place(table(), name)


@pytest.mark.parametrize(
    "words", ["pre+gpas,71m", "Pre-LN + GPAS, 71M", "gpas,pre,71m", "norm=pre+gate=gpas,size=71m", " pre , gpas , 71m "]
)
def test_a_row_is_named_by_labels_or_titles_in_any_order(words: str) -> None:
    found = find(words)
    assert found.row.key == ("pre", "gpas")
    assert found.words == "pre+gpas,71m"
    assert found.base.words == "pre,71m"
    assert found.cell.summary.n == 3


def test_labels_none_may_be_left_out() -> None:
    assert find("pre,130m").row.key == find("pre+none,130m").row.key == ("pre", "none")
    assert find("pre,71m").base is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpas,71m", "'gpas' matches 2 rows; name one of pre+gpas, lns+gpas"),
        ("pre+gaps,71m", "no row has 'gaps'; did you mean 'gpas'?"),
        ("pre+lns,71m", "'pre+lns' matches no row; name one of pre, pre+gpas, lns, lns+gpas"),
        ("pre+gpas,72m", "no column '72m'; did you mean '71m'?"),
        ("pre+gpas", "name the column after a comma: 71m, 130m"),
        ("lns,130m", "the grid has no such cell; lns is in 71m"),
        (",71m", "'' matches 4 rows"),
    ],
)
def test_an_unknown_or_ambiguous_name_gets_the_choices(words: str, message: str) -> None:
    with pytest.raises(UnknownCell) as caught:
        find(words)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["pre-gpas-s1", "table2/pre", "abcd", "optim.lr=1e-3", "[pre]", "a[b]c"])
def test_other_names_are_not_those_of_table_cells(text: str) -> None:
    assert place_name(text) is None


def hole(*states: str) -> Hole:
    runs: Any = tuple(SimpleNamespace(state=state, entry=SimpleNamespace(key=state)) for state in states)
    return Hole("Pre-LN", "toy", runs)


@pytest.mark.parametrize("state", ["failed", "cancelled", "unknown"])
def test_what_waits_for_a_retry_is_not_left_to_run(state: str) -> None:
    found = [hole(state, "missing", "interrupted", "not finite")]
    assert [entry.key for entry in to_run(found)] == ["missing", "interrupted"]
    assert [entry.key for entry in to_run(found, RETRIED)] == [state]
