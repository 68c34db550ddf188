"""Tables of many rows: aligned, wrapped in their last column, cut in their first."""

import io

import pytest
from rich.console import Console

from gpas_cli.cli.views.columns import Columns

ROWS = [("pre-s1", ("done", "green"), "1.50"), ("pre-gpas-s1", "a word or two or three", "12.25")]


def drawn(columns: Columns, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(columns)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_columns_are_aligned() -> None:
    columns = Columns(("cell", "state", "loss"), ROWS, "many", frozenset({"loss"}))
    assert drawn(columns, 60) == [
        "many",
        "cell         state                    loss",
        "pre-s1       done                     1.50",
        "pre-gpas-s1  a word or two or three  12.25",
    ]


def test_a_name_is_wrapped_after_its_punctuation() -> None:
    columns = Columns(("cell", "state"), [("quickstart-ablations/pre-s1", "x" * 14)])
    assert [line.split()[0] for line in drawn(columns, 28)[1:]] == ["quickstart-", "ablations/", "pre-s1"]


def test_the_last_column_wraps_without_loss() -> None:
    path = "/" + "x" * 40
    lines = drawn(Columns(("cell", "why"), [("a", f"one two\nthree {path}")]), 36)
    assert lines[:2] == ["cell  why", "a     one two"]
    assert "".join(line.strip() for line in lines[2:]).replace("three", "") == path
    assert all(len(line) <= 36 for line in lines)


def test_a_narrow_terminal_wraps_the_first_column_or_cuts_it_on_request() -> None:
    heads, rows = ("cell", "why"), [("a-very-long-name-of-a-cell", "short")]
    lines = drawn(Columns(heads, rows), 24)
    assert "".join(line[:17].strip() for line in lines[1:]) == "a-very-long-name-of-a-cell"
    assert "…" not in "".join(lines)
    _, line = drawn(Columns(heads, rows, wrapped=False), 24)
    assert (line.startswith("a-very-long-nam"), "…" in line) == (True, True)


def test_padding_goes_before_columns_continue_beneath() -> None:
    heads = ("cell", "documents", "tokens", "text bytes")
    columns = Columns(heads, [("one", "1,234,567", "7,654,321", "12.5 GB")], right=frozenset(heads[1:]))
    assert len(drawn(columns, 38)) == 2
    assert drawn(columns, 35)[0] == "cell documents    tokens text bytes"
    beneath = drawn(columns, 34)
    assert [line.split() for line in beneath] == [
        ["cell", "documents", "tokens"],
        ["one", "1,234,567", "7,654,321"],
        ["cell", "text", "bytes"],
        ["one", "12.5", "GB"],
    ]


@pytest.mark.parametrize("width", [16, 20, 30, 40, 60, 80])
@pytest.mark.parametrize("wrapped", [True, False])
def test_no_number_is_cut_at_any_width(width: int, wrapped: bool) -> None:
    heads = ("cell", *(f"n{i}" for i in range(9)))
    rows = [(f"row-{row}", *(f"{1000 * row + i}.25" for i in range(9))) for row in range(3)]
    lines = drawn(Columns(heads, rows, "many", frozenset(heads[1:]), wrapped=wrapped), width)
    words = " ".join(lines).split()
    assert all(f"{1000 * row + i}.25" in words for row in range(3) for i in range(9))
    assert all(len(line) <= width for line in lines)


def test_columns_are_dropped_one_after_the_other() -> None:
    columns = Columns(("cell", "state", "loss"), ROWS, droppable=("loss", "state"))
    assert [len(columns.fitting(room).headers) for room in (42, 41, 35, 34, 5)] == [3, 2, 2, 1, 1]
    assert drawn(columns, 20) == ["cell", "pre-s1", "pre-gpas-s1"]


def test_markup_in_a_cell_is_text_and_wide_characters_count_twice() -> None:
    assert drawn(Columns(("a", "b"), [("[bold]", "x"), ("層", "y")]), 40) == ["a       b", "[bold]  x", "層      y"]
