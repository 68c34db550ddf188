"""The text of every format, letter by letter."""

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases, file_text
from goldens import compare, compare_text, golden_cases
from report_cases import quickstart, table_of
from report_cells import entry, result, spec, valued
from rich.console import Console

from gpas_cli.errors import GpasError
from gpas_cli.report.quantities import recorded_metric
from gpas_cli.report.recorded import Result
from gpas_cli.report.tables.cell_text import number, sheet
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.render import FORMATS, render
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


def shown(table: Table, form: str) -> str:
    """Return a table as text; numbers in full have nine digits."""
    text = render(table, form)
    if form not in ("csv", "json"):
        return text
    return re.sub(r"-?\d+\.\d+(e[+-]\d+)?", lambda number: f"{float(number[0]):.9g}", text)


@pytest.mark.parametrize("form", FORMATS)
def test_text_is_that_of_the_golden_file(table: Table, form: str) -> None:
    compare_text(f"tables/demo.{form}", shown(table, form))


@pytest.mark.parametrize("title", golden_cases("formats"))
def test_an_odd_table_is_that_of_the_golden_file(title: str, tmp_path: Path) -> None:
    case = golden_cases("formats")[title]
    table = table_of(case, tmp_path)
    compare("formats", title, "\n".join(shown(table, form) for form in case["forms"]))


def test_rich(table: Table) -> None:
    text = "\n".join(drawn(table, 160)) + "\n"
    wide = re.compile(" {2,}|─+")  # old versions of rich make columns wider
    assert wide.sub("  ", text) == wide.sub("  ", file_text("golden/tables/demo.txt"))


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


def test_an_unknown_number_is_answered_with_the_nearest_recorded_one() -> None:
    lone = entry()
    results = result(lone, metrics={"gate_mean": 0.5})
    with pytest.raises(GpasError, match="no metric 'gate_meen' is recorded; did you mean 'gate_mean'"):
        recorded_metric("gate_meen", (), results)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_table_gives_the_same_text(form: str, table: Table) -> None:
    known = quickstart()
    shuffled = dict(reversed(known.results.items()))
    again = build(known.entries, known.states, shuffled, spec(title="Demo", published={"gpas": "table2_perplexity"}))
    assert render(again, form) == render(table, form)


def test_special_characters_are_text_in_a_terminal() -> None:
    label = "a|b_*[x]&50%{\\}<i>#$~^"
    text = "\n".join(drawn(build([entry(axes={"norm": label})], {}, {}, spec(title="x|y [bold]z")), 120))
    assert label in text
    assert "x|y [bold]z" in text


def test_latex_escapes_each_character_once() -> None:
    assert latex_escape("\\{") == r"\textbackslash{}\{"
    assert latex_escape("50 % ± 1") == r"50 \% $\pm$ 1"


@cases("report/cases.yaml")
def test_numbers_have_their_digits_and_signs(value: float, sign: str, text: str) -> None:
    assert number(value, 2, PLAIN, sign) == text


def test_unknown_format(table: Table) -> None:
    with pytest.raises(GpasError, match="unknown format 'mardown'; did you mean 'markdown'"):
        render(table, "mardown")
