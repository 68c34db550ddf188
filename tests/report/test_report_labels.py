"""What papers call a cell; tables that cannot be made are reported when experiments.yaml is read."""

from pathlib import Path
from typing import Any

import pytest
from cases import cases, file_text
from report_cells import entry

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.load import load
from gpas_cli.project import packaged
from gpas_cli.report.checks import report_problems
from gpas_cli.report.labels import describe_gate, describe_norm, facts, number_facts, row_title, scheme_titles
from gpas_cli.spec.extensions import metrics
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model


@cases("report/cases.yaml")
def test_a_gate_is_labelled_by_its_changed_settings(gate: Any, said: str) -> None:
    assert describe_gate(parse_model({"size": "71m", "gate": gate}).gate) == said


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_known_by_its_own_name(scheme: str) -> None:
    assert describe_norm(parse_model({"size": "71m", "norm": scheme})) == scheme


@cases("report/cases.yaml")
def test_facts_of_network_and_text(more: dict[str, Any], labels: dict[str, Any]) -> None:
    """Null is the label on an axis that a cell does not have."""
    found = facts(entry(**more))
    assert {axis: found.get(axis) for axis in labels} == labels


def test_a_changed_scheme_is_in_no_paper() -> None:
    half = parse_model({"size": "71m", "norm": {"scheme": "mix", "post_fraction": 0.5}})
    assert describe_norm(half) == "mix, post_fraction=0.5"


def test_numbers_of_tasks_are_measured_on_their_text() -> None:
    scored = entry(downstream={"tasks": ["spike", "piqa"]})
    perplexity, accuracy = metrics()["task_perplexity"], metrics()["accuracy"]
    assert number_facts(scored, perplexity, "wikitext") == {**facts(scored), "task": "wikitext", "text": "wikitext"}
    assert number_facts(scored, accuracy, "piqa@0ef0e6d36d4f")["task"] == "piqa"
    assert number_facts(scored, perplexity, None)["text"] == "lambada_openai"
    assert number_facts(scored, metrics()["perplexity"], None) == facts(scored)


def test_row_titles() -> None:
    titles = scheme_titles([entry("deepnorm"), entry("lns", axes={"norm": "lns-const"})])
    assert titles == {"deepnorm": "DeepNorm"}
    axes = ("norm", "gate", "depth", "tied")
    assert row_title(axes, ("deepnorm", "gpas", 12, True), titles) == "DeepNorm + GPAS, depth 12, tied true"
    assert row_title(axes, ("lns-const", "none", None, "none"), titles) == "lns-const"
    assert row_title(("gate",), ("none",), titles) == "no gate"


EXPERIMENTS = file_text("experiments/labels.yaml")
LAST = "experiments.yaml:10:20: grids.h.table.value: unknown metric 'perplexty'; did you mean 'perplexity'?"


def problems(tmp_path: Path, table: str, stages: str = "", axes: str = "") -> list[str]:
    path = tmp_path / "experiments.yaml"
    text = EXPERIMENTS.replace("table: {}", f"table: {{{table}}}").replace("none, gpas]", f"none, gpas]{axes}")
    path.write_text(text.replace("data: quickstart", f"data: quickstart{stages}"))
    with pytest.raises(InvalidExperiments) as caught:
        load(path, check=report_problems)
    lines = [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]
    assert lines[-1] == LAST
    return lines[:-1]


@cases("report/cases.yaml")
def test_an_impossible_table_is_reported_at_its_place(tmp_path: Path, table: str, place: str, message: str) -> None:
    (found,) = problems(tmp_path, table)
    assert found.startswith(f"experiments.yaml:7:{place}: "), found
    assert message in found


@pytest.mark.whole
def test_a_stage_that_cells_have_may_be_shown(tmp_path: Path) -> None:
    assert problems(tmp_path, "value: accuracy, columns: task", ", finetune: {}, downstream: {}") == []
    assert problems(tmp_path, "value: mean_importance", ", importance: {}") == []


@cases("report/cases.yaml")
def test_a_loss_of_another_objective_is_refused(tmp_path: Path, objective: str, table: str, message: str) -> None:
    found = problems(tmp_path, table, f", objective: {objective}")
    assert any(line.startswith("experiments.yaml:7:") and message in line for line in found), found


def test_a_table_may_show_the_loss_of_one_of_several_objectives(tmp_path: Path) -> None:
    table = "rows: [norm, gate, objective], value: masked_loss"
    found = "".join(problems(tmp_path, table, axes=", objective: [causal, mlm]"))
    assert "masked_loss" not in found
    assert "no cell reports" not in found


def test_the_shipped_tables_can_all_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.report.checks.OF_PACKAGE", Path())  # commands do not check them each time
    assert load(packaged("experiments.yaml"), check=report_problems).grids
