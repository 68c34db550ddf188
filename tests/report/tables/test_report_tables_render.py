"""The text of every format, letter by letter."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_cases import quickstart
from report_cells import entry, result, spec, valued
from rich.console import Console

from gpas_cli.errors import GpasError
from gpas_cli.report.quantities import recorded_metric
from gpas_cli.report.recorded import Recorded, Result
from gpas_cli.report.tables.cell_text import number, sheet
from gpas_cli.report.tables.grid_table import build, by_metrics
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.render import FORMATS, render, to_csv, to_json
from gpas_cli.report.tables.sheet import PLAIN, THEMES, Drawn, Note, latex_escape, to_latex
from gpas_cli.report.tables.table import Table

SIZES = ("71m", "130m", "250m")
NORMS = ("pre", "sandwich", "deepnorm")


@pytest.fixture
def table() -> Table:
    known = quickstart()
    return build(
        known.entries, known.states, known.results, spec(title="Demo", published={"gpas": "table2_perplexity"})
    )


# The table above in each format; numbers in full have nine digits here.
GOLDEN = Path(__file__).parents[2] / "golden/tables"


@pytest.mark.parametrize("form", ["markdown", "latex", "html"])
def test_text_is_that_of_the_golden_file(table: Table, form: str) -> None:
    assert render(table, form) == (GOLDEN / f"demo.{form}").read_text("utf-8")


def test_json_is_that_of_the_golden_file(table: Table) -> None:
    texts = (to_json(table), (GOLDEN / "demo.json").read_text("utf-8"))
    found, golden = (json.loads(text, parse_float=lambda number: f"{float(number):.9g}") for text in texts)
    assert found == golden


def test_csv_is_that_of_the_golden_file(table: Table) -> None:
    texts = (to_csv(table), (GOLDEN / "demo.csv").read_text("utf-8"))
    found, golden = (re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.9g}", text) for text in texts)
    assert found == golden


def test_latex_has_a_dash_for_a_run_that_has_not_ended() -> None:
    cell, other = entry(), entry("lns")
    made = build([cell, other], {cell.cell.key: ("running", 0.27)}, result(other, outcome="diverged"), spec())
    text = render(made, "latex")
    assert r"    Pre-LN & -- \\" in text
    assert r"    LNS & diverged \\" in text
    assert "1 of 2 runs has no result: 1 running." in text
    assert "running 27 %" in render(made, "markdown")


def test_html_has_no_markup_of_labels() -> None:
    table = build([entry(axes={"norm": "<script>a&b</script>\x1b"})], {}, {}, spec(title="<b>"))
    text = render(table, "html")
    assert "&lt;script&gt;a&amp;b&lt;/script&gt;" in text
    assert "<caption>&lt;b&gt;</caption>" in text
    assert "<script" not in text
    assert "\x1b" not in text


def test_rich(table: Table) -> None:
    text = "\n".join(drawn(table, 160)) + "\n"
    wide = re.compile(" {2,}|─+")  # old versions of rich make columns wider
    assert wide.sub("  ", text) == wide.sub("  ", (GOLDEN / "demo.txt").read_text("utf-8"))


@pytest.mark.parametrize("width", [60, 90, 160])
def test_short_notes_take_no_more_lines_than_the_table(table: Table, width: int) -> None:
    lines = drawn(table, width, "short")
    start = next(i for i, line in enumerate(lines) if line.startswith(("reading", "runs")))
    *notes, left = lines[start:]
    assert 3 < len(notes) <= 9, "lines of the table"
    assert re.fullmatch(r"\d more notes: --notes all", left.rstrip())
    assert any("diverged runs are not in the mean" in line for line in notes)


def test_notes_are_grouped_by_theme(table: Table) -> None:
    lines = drawn(table, 60)
    start = next(i for i, line in enumerate(lines) if line.startswith("reading"))
    assert [line.split()[0] for line in lines[start:] if line[0] != " "] == ["reading", "runs", "published", "recipes"]
    assert {note.theme for note in notes(table)} == set(THEMES) - {"contributed"}
    assert all(line[:12].strip(" -") in (*THEMES, "") and len(line) <= 60 for line in lines[start:])
    assert sum(line[10:12] == "- " for line in lines[start:]) == len(notes(table))


def wide() -> Table:
    """Three sizes with their published numbers."""
    entries = [entry(norm, gate, size=size) for norm in ("pre", "mix") for gate in ("none", "gpas") for size in SIZES]
    results = valued(entries, [30.0 + i for i in range(len(entries))])
    return build(entries, {}, results, spec(published={"gpas": "table2_perplexity"}))


def drawn(table: Table, width: int, notes: str = "all", **terminal: Any) -> list[str]:
    console = Console(width=width, file=io.StringIO(), **{"color_system": None, **terminal})
    with console.capture() as capture:
        console.print(Drawn(sheet(table), notes))
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_padding_goes_first_then_headers_wrap_then_columns_go_beneath() -> None:
    label, ours = len("reference perplexity"), len("33.00 (+3.00)")
    theirs = [len("71m, GPAS paper"), len("130m, GPAS paper"), len("250m, GPAS paper")]
    roomy = label + 6 * 3 + 3 * ours + sum(theirs) + 2
    tight = label + 6 * 2 + 3 * ours + sum(theirs)
    wrapped = len("perplexity") + 6 * 2 + 6 * ours

    def heads(width: int) -> list[str]:
        return [line for line in drawn(wide(), width) if line.strip().startswith("reference")]

    assert heads(roomy)[0].startswith(" reference perplexity   ")
    assert heads(roomy - 1)[0].startswith("reference perplexity  ")
    assert len(heads(tight)[0]) == tight
    assert heads(tight - 1)[0].split() == ["reference", "71m,", "GPAS", "130m,", "GPAS", "250m,", "GPAS"]
    assert len(heads(wrapped)) == 1
    assert len(heads(wrapped - 1)) == 2
    assert len(heads(60)) == 3


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 100, 140])
def test_every_number_is_whole_at_any_width(width: int) -> None:
    lines = drawn(wide(), width)
    words = " ".join(lines).split()
    assert all(f"{30 + i}.00" in words for i in range(12))
    assert [words.count(number) for number in ("(-0.74)", "(+3.00)", "34.23")] == [1, 6, 1]
    assert "…" not in "".join(lines)
    assert all(len(line) <= width for line in lines)


def test_latex_has_minus_signs_in_notes_but_not_in_exponents(table: Table) -> None:
    text = to_latex(replace(sheet(table), notes=[Note("remark", "median -0.98 at 5 \N{MULTIPLICATION SIGN} 10⁻⁴")]))
    assert r"median $-$0.98 at 5 $\times$ 10$^{-4}$." in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("sizes", [("71m",), SIZES, (*SIZES, "350m", "1b")], ids=len)
def test_latex_compiles_without_overfull_boxes(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    label = 'a|b_*[x]&50%{\\}<i>#$~^ `--" \N{GREEK SMALL LETTER ALPHA} → \x1b[31m'
    label += " and words that make it longer than a line has room for"
    gates = ("none", "gpas")
    entries = [entry(norm, gate, seed, size) for norm in NORMS for gate in gates for seed in (1, 2) for size in sizes]
    entries += [entry(gate={"init": 0.5}, size=size, axes={"gate": label}) for size in sizes]
    results: dict[str, Result] = {}
    for i, one in enumerate(entries):
        results |= result(one, 1404.98 + 10 * i + (i % 5) * 17.77, fingerprint=f"{i:016x}")
    sources = {"gpas": "table2_perplexity", "poster": "pretrain_perplexity"}
    table = build(entries, {}, results, spec(title=label, published=sources))
    text = to_latex(sheet(table))
    compile_latex(tmp_path, text)


def compile_latex(folder: Path, text: str) -> None:
    """Compile a document; raise if that fails or if a box is overfull."""
    head = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}"
    (folder / "t.tex").write_text(f"{head}{text}\\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in (folder / "t.log").read_text(errors="replace")


def test_rich_marks_are_styles(table: Table) -> None:
    text = "\n".join(drawn(table, 160, force_terminal=True, color_system="standard"))
    assert "\x1b[1m33.48 ± 0.11\x1b[0m" in text
    assert "\x1b[4m34.20 ± 0.10\x1b[0m" in text


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_no_label_is_a_formula_in_csv(first: str) -> None:
    odd = entry(axes={"norm": f'{first}HYPERLINK("x")', "gate": -0.5})
    lone = next(csv.DictReader(io.StringIO(to_csv(build([odd], {}, result(odd, -0.5), spec())))))
    assert lone["norm"][0] == "'"
    assert (lone["gate"], lone["mean"]) == ("-0.5", "-0.5")  # numbers stay numbers


def test_json_has_every_number_of_the_csv(table: Table) -> None:
    rows = csv.DictReader(io.StringIO(to_csv(table)))
    cells = [cell for row in json.loads(to_json(table))["rows"] for cell in row["cells"]]
    for row, cell in zip(rows, cells, strict=True):
        delta = cell["delta"] or {}
        printed = cell["published"]["gpas"]
        numbers = {name: cell[name] for name in ("mean", "std", "n", "wanted")}
        numbers |= {"delta": delta.get("mean"), "p": delta.get("p")}
        numbers |= {f"delta_{name}": delta.get(name) for name in ("std", "n")}
        numbers |= dict(zip(("delta_low", "delta_high"), delta.get("interval") or (None, None), strict=True))
        numbers |= {"published_gpas": printed["value"], "published_delta_gpas": printed["delta"]}
        assert {name: row[name] for name in numbers} == {
            name: "" if number is None else str(number) for name, number in numbers.items()
        }


def test_the_interval_of_a_difference(table: Table) -> None:
    row = list(csv.DictReader(io.StringIO(to_csv(table))))[1]
    low, high = float(row["delta_low"]), float(row["delta_high"])
    half = 4.302653 * float(row["delta_std"]) / math.sqrt(3)  # the 97.5 % quantile of Student's t with 2 degrees
    assert (low, high) == pytest.approx((-0.72 - half, -0.72 + half))


def test_several_metrics_stand_side_by_side() -> None:
    entries = [entry(gate=gate, seed=seed) for gate in ("none", "gpas") for seed in (1, 2)]
    results: dict[str, Result] = {}
    for i, one in enumerate(entries):
        numbers = {"perplexity_reference": 34 - i, "tokens_per_second": 1234.5 + i, "tokens": 1e9, "odd": 0.0123456}
        results |= result(one, metrics=numbers)
    names = ["perplexity_reference", "tokens_per_second", "tokens", "odd"]
    known = Recorded(tuple(entries), {}, results)
    table = by_metrics(known, spec(published={"gpas": "table2_perplexity"}), names)
    _, _, bare, _, gated, *notes = render(table, "markdown").splitlines()
    assert bare == (
        "|  | 71m, reference perplexity | 71m, reference perplexity, GPAS paper | "
        "71m, training throughput, tokens/s | 71m, tokens | 71m, odd |"
    )
    assert gated == "| Pre-LN | <u>33.50 ± 0.71</u> | 34.23 | <u>1235 ± 1</u> | 1000000000 ± 0 | 0.01235 ± 0.00000 |"
    assert "**31.50 ± 0.71** (-2.00)" in notes[0]
    assert "**1237 ± 1** (+2)" in notes[0]  # more tokens per second are better
    assert notes[0].endswith("| 1000000000 ± 0 (0) | 0.01235 ± 0.00000 (0.00000) |")  # neither is better: no mark
    columns = json.loads(to_json(table))["columns"]
    assert [column["metric"]["name"] for column in columns] == names
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [line["metric"] for line in lines[:4]] == names


def test_an_unknown_number_is_answered_with_the_nearest_recorded_one() -> None:
    lone = entry()
    results = result(lone, metrics={"gate_mean": 0.5})
    with pytest.raises(GpasError, match="no metric 'gate_meen' is recorded; did you mean 'gate_mean'"):
        recorded_metric("gate_meen", (), results)


def test_nonfinite_and_missing_numbers_in_json() -> None:
    entries = [entry(), entry("mix", size="130m")]
    table = build(entries, {}, result(entries[0], math.inf) | result(entries[1], math.nan), spec())
    cells = [row["cells"] for row in json.loads(to_json(table))["rows"]]
    assert cells[0][0]["mean"] == "inf"
    assert cells[1][1]["mean"] == "nan"
    assert cells[0][1] is None
    assert "| Pre-LN | inf |  |" in render(table, "markdown")


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_table_gives_the_same_text(form: str, table: Table) -> None:
    known = quickstart()
    shuffled = dict(reversed(known.results.items()))
    again = build(known.entries, known.states, shuffled, spec(title="Demo", published={"gpas": "table2_perplexity"}))
    assert render(again, form) == render(table, form)


def test_special_characters_are_text_in_every_format() -> None:
    label = "a|b_*[x]&50%{\\}<i>#$~^"
    odd = entry(axes={"norm": label})
    table = build([odd], {}, {}, spec(title="x|y [bold]z"))
    assert "| a\\|b\\_\\*\\[x]&50%{\\\\}\\<i>#$~^ | missing |" in render(table, "markdown")
    assert "x\\|y \\[bold]z" in render(table, "markdown")
    assert (
        "a\\textbar{}b\\_*{[}x{]}\\&50\\%\\{\\textbackslash{}\\}\\textless{}i\\textgreater{}\\#\\$\\textasciitilde{}\\textasciicircum{}"
    ) in render(table, "latex")
    text = "\n".join(drawn(table, 120))
    assert label in text
    assert "x|y [bold]z" in text
    assert next(csv.DictReader(io.StringIO(to_csv(table))))["norm"] == label


@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_control_characters_are_spelled_out_in_text_formats(form: str) -> None:
    odd = entry(axes={"norm": "a\x1b[31m\x9b\u202eb\nc"})
    table = build([odd], {}, {}, spec(title="t\x1b]0;x\x07"))
    text = render(table, form)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "x1b" in text
    assert "b c" in text


def test_latex_escapes_each_character_once() -> None:
    assert latex_escape("\\{") == r"\textbackslash{}\{"
    assert latex_escape("50 % ± 1") == r"50 \% $\pm$ 1"


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (1404.98, "", "1404.98"), (-0.004, "+", "0.00"), (0.004, "+", "0.00"), (-0.5, "+", "-0.50"),
        (0.5, "+", "+0.50"), (math.inf, "", "inf"), (-math.inf, "+", "-inf"), (math.nan, "", "nan"),
        (1.6151e242, "", "1.62e242"), (-1.6151e242, "+", "-1.62e242"),
    ],
)  # fmt: skip
def test_numbers(value: float, sign: str, text: str) -> None:
    assert number(value, 2, PLAIN, sign) == text


def test_a_number_that_explodes_is_a_power_in_latex_and_whole_as_data(table: Table) -> None:
    row = table.rows[0]
    cell = row.cells[0]
    summary = replace(cell.summary, mean=-1.6151e242) if cell.summary else None
    table = replace(table, rows=(replace(row, cells=(replace(cell, summary=summary), *row.cells[1:])), *table.rows[1:]))
    assert r"$-$$1.62\cdot10^{242}$" in render(table, "latex")
    assert "&minus;1.62e242" in render(table, "html")
    assert "-1.62e242" in render(table, "markdown")
    assert "-1.6151e+242" in render(table, "csv")
    assert "-1.6151e+242" in render(table, "json")


def test_unknown_format(table: Table) -> None:
    with pytest.raises(GpasError, match="unknown format 'mardown'; did you mean 'markdown'"):
        render(table, "mardown")
