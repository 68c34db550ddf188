"""Our numbers in the layouts of the papers: which cells belong where, and what stands beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_cells import entry, result

from gpas_cli.grid import Entry
from gpas_cli.grid.declared import Grid, TableSpec
from gpas_cli.grid.document import Mark, Node
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.papers.layouts import printed
from gpas_cli.report.result import Result
from gpas_cli.report.tables.paper_table import Serving, paper_table, serving, with_ours
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.table_place import find_place, place_name

REPOSITORY = Path(__file__).parents[3]
MARK = Mark("experiments.yaml", 1, 1)
(TABLE_2,) = printed("gpas", "2")


@pytest.fixture(scope="module")
def declared() -> dict[str, tuple[Grid, list[Entry]]]:
    """Return the grids of the project's own experiments.yaml with their cells."""
    experiments = load(REPOSITORY / "experiments.yaml")
    return {name: (grid, expand(experiments, [name])) for name, grid in experiments.grids.items()}


def grid(name: str, **table: Any) -> Grid:
    return Grid(name, name, MARK, Node({}, MARK), table=TableSpec(name, **table))


def served(*entries: Entry, published: str = "table2_perplexity") -> Serving:
    found = serving(TABLE_2, {"mine": (grid("mine", published={"gpas": published}), entries)})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("number", "grids", "cells"),
    [
        ("2", ["table2"], [55]),
        ("3", ["table3"], [88]),
        ("4", ["table4-activation", "table4-position"], [7, 5]),
        ("5", ["table5-stopgrad", "table5-gate"], [3, 3]),
        ("A", ["appendix-7b"], [2]),
    ],
)
def test_every_number_of_the_paper_has_a_cell(
    declared: dict[str, tuple[Grid, list[Entry]]], number: str, grids: list[str], cells: list[int]
) -> None:
    found = [serving(part, declared) for part in printed("gpas", number)]
    assert [one.grid.name for one in found if one] == grids
    assert [len(one.places) for one in found if one] == cells
    for one in found:
        assert one is not None
        assert all(len(entries) == 1 for entries in one.places.values())


@pytest.mark.parametrize(
    ("number", "grid", "cells"),
    [("1", "spike-table1", 16), ("2", "spike-table2", 8), ("6", "spike-xavier", 12), ("7", "spike-table7", 24)],
)
def test_perplexities_on_texts_stand_beside_those_of_the_stage_texts(
    declared: dict[str, tuple[Grid, list[Entry]]], number: str, grid: str, cells: int
) -> None:
    (part,) = printed("spike_no_more", number)
    found = serving(part, declared)
    assert found is not None
    assert (found.grid.name, len(found.places)) == (grid, cells)
    first = found.entries[0]
    scored = result(
        first, stage="texts", metrics={"text_perplexity/wikitext": 31.5, "text_perplexity/lambada_openai": 20}
    )
    table = paper_table(found, {}, result(first) | scored)
    assert {column.metric.name for column in table.columns} == {"text_perplexity"}
    assert sorted(v for row in table.rows for cell in row.cells for v in cell.values.values()) == [20, 31.5]


@pytest.mark.parametrize(
    ("number", "grids", "numbers", "cells"),
    [
        ("2", ["raptr-bert-table2", "raptr-bert-large-table2"], [9, 9], [36, 18]),
        ("7", ["raptr-bert-layerdrop"], [6], [12]),
    ],
)
def test_a_number_that_is_the_best_of_several_rates_has_a_cell_for_each(
    declared: dict[str, tuple[Grid, list[Entry]]], number: str, grids: list[str], numbers: list[int], cells: list[int]
) -> None:
    found = [serving(part, declared) for part in printed("raptr", number)]
    assert [(one.grid.name, len(one.places), len(one.entries)) for one in found if one] == [
        *zip(grids, numbers, cells, strict=True)
    ]


def test_the_best_of_several_rates_is_shown(declared: dict[str, tuple[Grid, list[Entry]]]) -> None:
    (part,) = printed("raptr", "7")
    found = serving(part, declared)
    assert found is not None
    losses = {1e-4: 1.75, 1.6e-4: 1.73, 2.5e-4: 1.74}
    results: dict[str, Result] = {}
    for one in found.entries:
        if one.cell.depth.kind == "raptr" and one.cell.optim.lr in losses:
            results |= result(one, metrics={"masked_loss": losses[one.cell.optim.lr]})
    (raptr, layerdrop, _) = (row.cells[1] for row in paper_table(found, {}, results).rows)
    assert (raptr.values, raptr.status, raptr.complete) == ({42: 1.73}, "3/4 variants", False)
    assert (layerdrop.status, len(layerdrop.runs)) == ("missing", 4)
    named = "; as in the paper, the best of several settings is shown: lr0.00016-raptr\n"
    assert named in render(paper_table(found, {}, results), "markdown")
    diverged = next(one for one in found.entries if one.cell.depth.kind == "raptr" and one.cell.optim.lr == 4e-4)
    results |= result(diverged, outcome="diverged")
    assert paper_table(found, {}, results).rows[0].cells[1].complete


def test_a_place_has_the_metric_and_the_published_table_of_its_column(
    declared: dict[str, tuple[Grid, list[Entry]]],
) -> None:
    (part,) = printed("raptr", "7")
    found = serving(part, declared)
    name = place_name("raptr:7[RAPTR,Eval loss]")
    assert found is not None
    assert name is not None
    place = find_place(paper_table(found, {}, {}), name)
    assert place.metric.name == "masked_loss"
    beside = (place.cell.printed or {})["raptr"].table
    assert beside is not None
    assert beside.name == "table7_loss"


def test_a_shorter_run_of_another_grid_is_not_taken_for_a_number(declared: dict[str, tuple[Grid, list[Entry]]]) -> None:
    (part,) = printed("raptr", "7")
    assert serving(part, {"raptr-bert-fixed": declared["raptr-bert-fixed"]}) is None


def test_a_grid_that_names_the_table_is_not_passed_over() -> None:
    named = (grid("named", published={"gpas": "table2_perplexity"}), [])
    assert serving(TABLE_2, {"named": named, "other": (grid("other"), [entry()])}) is None


def test_the_recipe_chooses_among_the_cells_of_a_number(declared: dict[str, tuple[Grid, list[Entry]]]) -> None:
    found = serving(TABLE_2, {"table2-precision": declared["table2-precision"]})
    assert found is not None
    assert {one.cell.precision for one in found.entries} == {"pure_bf16"}
    assert {len(entries) for entries in found.places.values()} == {3}


def test_rows_and_columns_are_in_the_papers_order() -> None:
    entries = [
        entry(norm, gate, size=size) for norm in ("lns", "pre") for gate in ("gpas", "none") for size in ("1b", "71m")
    ]
    table = paper_table(served(*entries), {}, {})
    assert [row.title for row in table.rows][:3] == ["Post-LN", "DeepNorm", "Pre-LN"]
    assert [column.title for column in table.columns] == ["71M", "130M", "250M", "350M", "1B"]
    text = render(table, "markdown").splitlines()
    assert text[2].startswith("| Method | 71M | GPAS paper | 130M | GPAS paper |")
    assert text[6] == "| Pre-LN | missing | 34.23 |  | 26.75 |  | 21.77 |  | 21.35 | missing | 16.92 |"


def test_differences_are_from_the_papers_base() -> None:
    entries = [entry(gate=gate, seed=seed) for gate in ("none", "gpas") for seed in (1, 2, 3)]
    results: dict[str, Result] = {}
    for one, value in zip(entries, (34.1, 34.3, 34.2, 33.4, 33.6, 33.44), strict=True):
        results |= result(one, value)
    table = paper_table(served(*entries), {}, results)
    rows = {row.title: row for row in table.rows}
    cell = rows["Pre + GPAS"].cells[0]
    assert cell.delta is not None
    assert cell.delta.mean == pytest.approx(-0.72)
    assert (cell.mark, rows["Pre-LN"].cells[0].mark) == ("best", "second")
    text = render(table, "markdown")
    assert "| Pre + GPAS | **33.48 ± 0.11** (-0.72 ± 0.09*) | 33.49 (-0.74) |" in text
    assert "| DeepNorm + GPAS |  | 34.97 (-0.92) |" in text
    assert "- our numbers are those of the grid mine\n" in text
    data = json.loads(render(table, "json"))
    assert data["name"] == "gpas:2"
    assert data["rows"][7]["cells"][0]["published"]["gpas"]["text"] == "33.49 (-0.74)"
    assert data["rows"][6]["cells"][0] is None


def test_a_cell_with_other_settings_is_not_the_papers() -> None:
    others = [entry(gate={"share": "sublayer"}), entry(embed="scaled"), entry(family="gpt")]
    assert serving(TABLE_2, {"mine": (grid("mine"), others)}) is None


def test_a_grid_that_names_the_table_goes_before_a_larger_one() -> None:
    one = (grid("named", published={"gpas": "table2_perplexity"}), [entry()])
    larger = (grid("larger"), [entry(gate=gate) for gate in ("none", "gpas")])
    found = serving(TABLE_2, {"larger": larger, "named": one})
    assert found is not None
    assert found.grid.name == "named"
    other_column = (grid("named", published={"gpas": "table2_perplexity@71m"}), [entry()])
    found = serving(TABLE_2, {"larger": larger, "named": other_column})
    assert found is not None
    assert found.grid.name == "larger"


def test_no_number_has_two_cells_between_which_the_recipe_does_not_choose() -> None:
    twice = [entry(axes={"precision": name}, precision=name) for name in ("fp32", "bf16")]
    found = serving(TABLE_2, {"twice": (grid("twice"), twice)})
    assert found is not None
    assert found.places == {}
    assert [*found.unclear.values()] == [
        "2 cells of demo match it and differ in precision; select one with --where",
    ]


def test_bands_have_a_heading_and_ranks_of_their_own() -> None:
    (part,) = printed("curse_of_depth", "2")
    tasks: dict[str, Any] = {"downstream": {"tasks": ["paper"]}, "finetune": {}}
    entries = [entry(norm, size=size, **tasks) for size in ("250m", "1b") for norm in ("pre", "post")]
    results: dict[str, Result] = {}
    for i, one in enumerate(entries):
        for stage in one.cell.stages:
            results |= result(one, stage=stage.kind, metrics={"accuracy/mmlu": 20.0 + i, "perplexity": 1.0})
    found = serving(part, {"mine": (grid("mine"), entries)})
    assert found is not None
    lines = render(paper_table(found, {}, results), "markdown").splitlines()
    assert lines[4].startswith("| LLaMA-250M |  |")
    assert lines[5].startswith("| Post-LN | **21.00** | 22.95 |")
    assert lines[10].startswith("| LLaMA-1B |  |")
    assert lines[11].startswith("| Post-LN | **23.00** | 22.95 |")
    assert render(paper_table(found, {}, results), "csv").startswith("band,row,task,column,metric,")


def test_settings_name_ours_where_they_differ() -> None:
    (part,) = printed("gpas", "1")
    optim = {"lr": 1e-3, "warmup": 1000, "steps": 20_000, "batch": 512}
    lines = with_ours(part, [entry(optim=optim), entry(size="1b", optim={**optim, "lr": 5e-4})]).lines
    texts = {line.title: [cell.text for cell in line.cells] for line in lines}
    assert texts["71M"][2:5] == ["10K (here 20K)", "512", "1B (here 2.62B)"]
    assert texts["71M"][:2] == [texts["130M"][0], "1K"]
    assert texts["1B"][0] == "5 \N{MULTIPLICATION SIGN} 10⁻⁴"
    assert texts["130M"] == [cell.text for cell in part.lines[1].cells]
