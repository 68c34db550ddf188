"""Entries and results -> a table: pairing, states, marks, bases, published numbers, scores, and what is refused."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from goldens import compare, golden_cases
from report_cases import quickstart, table_of, table_text
from report_cells import entry, score, spec

from gpas_cli.errors import GpasError
from gpas_cli.report.recorded import Result, stage_keys
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.notes import gains
from gpas_cli.report.tables.render import to_csv
from gpas_cli.report.tables.table_place import find_place, place_name


@pytest.mark.parametrize(
    ("file", "title"), [(file, title) for file in ("tables", "tables_of_scores") for title in golden_cases(file)]
)
def test_a_table_is_that_of_the_golden_file(file: str, title: str, tmp_path: Path) -> None:
    try:
        found = table_text(table_of(golden_cases(file)[title], tmp_path))
    except GpasError as error:
        found = f"refused: {error}"
    compare(file, title, found)


def test_gains_are_ours_beside_the_published_ones() -> None:
    known = quickstart()
    table = build(known.entries, known.states, known.results, spec(published={"gpas": "table2_perplexity"}))
    assert [(g.row, g.source, round(g.ours, 2), g.published) for g in gains(table)] == [
        ("Pre-LN + GPAS", "gpas", -0.72, -0.74),
        ("LNS + GPAS", "gpas", -1.9, -1.77),
    ]


def test_the_stages_of_a_table_are_all_of_its_cells() -> None:
    entries = [entry(norm, downstream={"tasks": ["mmlu"]}) for norm in ("pre", "mix")]
    assert stage_keys(entries) == [s.key for e in entries for s in e.cell.stages]


def test_a_score_has_its_standard_error_in_csv_and_a_text_its_place(tmp_path: Path) -> None:
    scored, *_, texts = (case for title, case in golden_cases("tables_of_scores").items() if "of the paper" in title)
    assert ",50.0,,2.0," in to_csv(table_of(scored, tmp_path))
    assert find_place(table_of(texts, tmp_path), place_name("demo[pre,lambada]")).column == 1


@pytest.mark.whole
def test_an_accuracy_after_finetuning_has_the_standard_error_at_its_best_rate() -> None:
    rates = {("mnli", 1e-5): 0.01, ("mnli", 2e-5): 0.02, ("mnli_mm", 2e-5): 0.03, ("sst2", 1e-5): 0.04}
    scores = tuple(score(task, metric=f"acc@{lr:g}", stderr=error) for (task, lr), error in rates.items())
    metrics = {"glue_lr/mnli": 2e-5, "glue_lr/sst2": 1e-5, "glue_seconds": 3.0}
    own = Result(key="1", stage="glue", outcome="done", number=1, directory="", metrics=metrics, scores=scores)
    assert own.stderr("glue_accuracy/mnli") == pytest.approx(2.0)
    assert own.stderr("glue_accuracy/mnli_mm") == pytest.approx(3.0)
    assert own.stderr("glue_accuracy/average") == pytest.approx((2**2 + 4**2) ** 0.5 / 2)
    assert own.stderr("glue_accuracy/qnli") is None
    assert replace(own, scores=scores[:2]).stderr("glue_accuracy/average") is None


@pytest.mark.whole
def test_tables_need_neither_torch_nor_the_database() -> None:
    names = ("report.tables.table", "report.tables.render", "report.tables.sheet", "extensions.figures.figure")
    modules = ", ".join(f"gpas_cli.{name}" for name in names)
    code = f"import sys, {modules}; print(sorted({{'torch', 'sqlalchemy', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
