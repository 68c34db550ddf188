"""The language of printed tables: the example of the reference prints as it says, and mistakes name their line."""

import re
import textwrap
from pathlib import Path

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.packs import Pack
from gpas_cli.report.papers.printed import printed
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.sheet import PLAIN

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
