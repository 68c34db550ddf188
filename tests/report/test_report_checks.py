"""Tables that cannot be made are reported when experiments.yaml is read, each at its place."""

from pathlib import Path

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.load import load
from gpas_cli.project import packaged
from gpas_cli.report.checks import report_problems

EXPERIMENTS = """\
version: 1
recipes: {quickstart: {lr: 1e-3, warmup: 1, steps: 9, batch: 2}}
grids:
  g:
    base: {size: quickstart, data: quickstart%s}
    axes: {norm: [pre, lns], gate: [none, gpas]}
    table: {%s}
  h:
    include: [g]
    table: {value: perplexty}
"""
LAST = "experiments.yaml:10:20: grids.h.table.value: unknown metric 'perplexty'; did you mean 'perplexity'?"


def problems(tmp_path: Path, table: str, stages: str = "") -> list[str]:
    path = tmp_path / "experiments.yaml"
    path.write_text(EXPERIMENTS % (stages, table))
    with pytest.raises(InvalidExperiments) as caught:
        load(path, check=report_problems)
    lines = [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]
    assert lines[-1] == LAST
    return lines[:-1]


@pytest.mark.parametrize(
    ("table", "place", "message"),
    [
        ("value: perplexty", "20: grids.g.table.value", "unknown metric 'perplexty'; did you mean 'perplexity'?"),
        ("value: accuracy", "20: grids.g.table.value", "'accuracy' is a result of the stage 'downstream'"),
        ("published: {gpas: table9}", "31: grids.g.table.published.gpas", "'gpas' has no table 'table9'; valid: "),
        ("published: {gaps: table9}", "31: grids.g.table.published.gaps", "no paper 'gaps'; did you mean 'gpas'"),
        (
            "published: {gpas: table2_perplexity@72m}",
            "31: grids.g.table.published.gpas",
            "table2_perplexity has no column '72m'; did you mean '71m'",
        ),
        (
            "value: loss, published: {gpas: table2_perplexity}",
            "44: grids.g.table.published.gpas",
            "'table2_perplexity' prints perplexity, but the table shows loss",
        ),
    ],
)
def test_a_table_that_cannot_be_made_is_reported_at_its_place(
    tmp_path: Path, table: str, place: str, message: str
) -> None:
    (found,) = problems(tmp_path, table)
    assert found.startswith(f"experiments.yaml:7:{place}: "), found
    assert message in found


def test_a_stage_that_cells_have_may_be_shown(tmp_path: Path) -> None:
    assert problems(tmp_path, "value: accuracy, columns: task", ", finetune: {}, downstream: {}") == []
    assert problems(tmp_path, "value: mean_importance", ", importance: {}") == []


@pytest.mark.parametrize(
    ("objective", "table", "message"),
    [
        ("mlm", "rows: [norm]", "no cell reports 'perplexity': cells of objective mlm report masked_loss, masked_per"),
        ("ul2", "value: masked_loss", "no cell reports 'masked_loss': cells of objective span report denoising_loss"),
        ("causal", "value: denoising_perplexity", "cells of objective causal report loss, perplexity"),
    ],
)
def test_a_loss_of_another_objective_is_refused(tmp_path: Path, objective: str, table: str, message: str) -> None:
    found = problems(tmp_path, table, f", objective: {objective}")
    assert any(line.startswith("experiments.yaml:7:") and message in line for line in found), found


def test_a_table_may_show_the_loss_of_one_of_several_objectives(tmp_path: Path) -> None:
    text = (EXPERIMENTS % ("", "value: masked_loss")).replace("gate: [", "objective: [causal, mlm], gate: [")
    path = tmp_path / "experiments.yaml"
    path.write_text(text)
    with pytest.raises(InvalidExperiments) as caught:
        load(path, check=report_problems)
    assert "masked_loss" not in str(caught.value)
    assert "no cell reports" not in str(caught.value)


def test_the_shipped_tables_can_all_be_made() -> None:
    assert load(packaged("experiments.yaml"), check=report_problems).grids
