"""Our numbers in the layouts of the papers: which cells belong where, how they are named, what stands beside them."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases, file_text
from goldens import compare, golden_cases
from named_papers import SOURCES, by_paper, numbers, printed
from report_cases import quickstart, recorded_cells, table_text
from report_cells import DIFFERING, entry, result, spec
from shipped import EXPERIMENTS, cells_of

from gpas_cli.errors import UnknownCell
from gpas_cli.grid import Entry
from gpas_cli.grid.declared import Grid, TableSpec
from gpas_cli.grid.document import Mark, Node
from gpas_cli.report.labels import facts
from gpas_cli.report.papers import PublishedCell, PublishedTable
from gpas_cli.report.papers.recipes import deviations, recipes
from gpas_cli.report.recorded import Result
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.paper_table import Serving, paper_table, serving, with_ours
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.table_place import Place, find_place, place_name, remedy
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import relative_flops
from gpas_cli.spec.data import CORPORA
from gpas_cli.state.status import RETRIED

Declared = dict[str, tuple[Grid, list[Entry]]]
Parts = dict[str, list[tuple[Table, Serving | None]]]

MARK = Mark("experiments.yaml", 1, 1)


@pytest.fixture(scope="module")
def declared() -> Declared:
    """Return the grids of the project's own experiments.yaml with their cells."""
    return {name: (grid, list(cells_of(name))) for name, grid in EXPERIMENTS.grids.items()}


def grid(name: str, **table: Any) -> Grid:
    own = TableSpec(name, **{"published": by_paper(table.pop("published", {})), **table})
    return Grid(name, name, MARK, Node({}, MARK), table=own)


def served_part(source: str, number: str, declared: Declared) -> tuple[Table, Serving]:
    """Return a printed table of one part, and what serves it."""
    (part,) = printed(source, number)
    return part, serving(part, declared)


def shown(case: Mapping[str, Any], declared: Declared) -> Table:
    """Return the table of a case."""
    (part,) = printed(*case["table"].split(":"))
    if "cells" in case:
        known = recorded_cells(case["cells"])
        mine = (grid("mine", **case.get("grid", {})), list(known.entries))
        return paper_table(serving(part, {"mine": mine}), {}, known.results)
    served = serving(part, declared)
    results: dict[str, Result] = {}
    for one in served.entries:
        for run in case["results"].get(one.name, ()):
            results |= result(one, **run)
    return paper_table(served, {}, results)


CASES = golden_cases("tables_of_papers")


@pytest.mark.parametrize("title", CASES)
def test_a_papers_table_is_that_of_the_golden_file(title: str, declared: Declared) -> None:
    compare("tables_of_papers", title, table_text(shown(CASES[title], declared)))


def test_data_have_the_printed_text_and_no_number_where_none_is_printed(declared: Declared) -> None:
    data = json.loads(render(shown(CASES["differences are from the paper's base"], declared), "json"))
    assert data["name"] == "gpas:2"
    assert data["rows"][7]["cells"][0]["published"]["gpas"]["text"] == "33.49 (-0.74)"
    assert data["rows"][6]["cells"][0] is None
    failed = shown(CASES["a run that the paper could not finish is shown as printed"], declared)
    assert json.loads(render(failed, "json"))["rows"][2]["cells"][0]["published"]["spike_no_more"]["value"] is None
    bands = shown(CASES["bands have a heading and ranks of their own"], declared)
    assert render(bands, "csv").startswith("band,row,task,column,metric,")


@pytest.mark.parametrize(("number", "rows"), [("1", 5), ("3", 5), ("4", 10), ("5", 5), ("7", 3)])
def test_flops_are_relative_to_the_row_that_the_paper_calls_1(declared: Declared, number: str, rows: int) -> None:
    part, found = served_part("raptr", number, declared)
    results: dict[str, Result] = {}
    for one in found.entries:
        results |= result(one, metrics={"equivalent_updates": relative_flops(one.cell) * one.cell.optim.steps})
    table = paper_table(found, {}, results)
    shown = [row.cells[0] for row in table.rows]
    assert len(shown) == rows
    assert [cell.summary.mean for cell in shown] == pytest.approx(
        [cell.printed["raptr"].value for cell in shown], abs=0.004
    )
    assert table.columns[0].metric.title.startswith("updates of the whole network with the same work relative to raptr")
    unit = next(row for row, line in zip(table.rows, part.rows, strict=True) if line.published[0].is_unit)
    missing = {key: made for key, made in results.items() if key not in {run.key for run in unit.cells[0].runs}}
    lacking = paper_table(found, {}, missing)
    assert {row.cells[0].status for row in lacking.rows if row.key != unit.key} == {"unit missing"}
    title = ", ".join(filter(None, (unit.section, unit.title)))
    assert f"relative to the number of {title}; while it has none, unit missing" in note_of(lacking, "compared")


def test_an_exact_reproduction_has_no_deviation_from_either_paper(declared: Declared) -> None:
    """The mean loss of batches is the network's; each paper's code divides by its own number of batches plus one."""
    parts = {source: printed(source, number)[0] for source, number in (("curse_of_depth", "1"), ("gpas", "2"))}
    table2 = {"table2": declared["table2"]}
    curse = serving(parts["curse_of_depth"], table2)
    results: dict[str, Result] = {}
    for line in parts["curse_of_depth"].rows:
        for cell, n in zip(line.published, (801, 101, 101, 201), strict=True):
            mean = math.log(cell.value) * (n + 1) / n
            recorded = {"loss_batch_mean": mean, "perplexity_reference": math.exp(mean * 201 / 202)}
            for one in curse.places.get(cell.place, ()):
                results |= result(one, metrics=recorded)
    table = paper_table(curse, {}, results)
    found = [(cell.summary.mean, cell.printed["curse_of_depth"].value) for row in table.rows for cell in row.cells]
    assert len(found) == 20
    assert [ours for ours, _ in found] == pytest.approx([theirs for _, theirs in found], rel=1e-12)
    assert (
        "its numbers of batches, 801 (LLaMA-130M 2.2B), 101 (LLaMA-250M 3.9B, LLaMA-350M 6.0B), 201 (LLaMA-1B 8.9B)"
        in note_of(table, "compared")
    )
    gpas = serving(parts["gpas"], table2)
    beside_gpas = paper_table(gpas, {}, results)
    pre_130m = next(row for row in beside_gpas.rows if row.title == "Pre-LN").cells[1]
    assert pre_130m.summary.mean == pytest.approx(26.41, abs=0.005)  # 26.73 in The Curse of Depth
    assert "numbers of batches" not in note_of(beside_gpas, "compared")
    both = {source: part.tables[0].name for source, part in parts.items()}
    (grid_table,) = (
        build([one for one in declared["table2"][1] if one.name == "130m-pre"], {}, results, spec(published=published))
        for published in [{"curse_of_depth": both["curse_of_depth"]}]
    )
    assert grid_table.rows[0].cells[0].summary.mean == pytest.approx(26.73)
    mixed = build(declared["table2"][1], {}, results, spec(published=both))
    assert mixed.metric.name == "perplexity"  # no number of batches is both papers'


def note_of(table: Table, kind: str) -> str:
    return " ".join(one.text for one in notes(table) if one.kind == kind)


def test_a_place_has_the_metric_and_the_published_table_of_its_column(declared: Declared) -> None:
    _, found = served_part("raptr", "7", declared)
    place = find_place(paper_table(found, {}, {}), place_name("raptr:7[RAPTR,Eval loss]"))
    assert (place.metric.name, place.cell.printed["raptr"].cell.table.name) == ("masked_loss", "table7_loss")


def served_text(served: Serving) -> str:
    places = [f"{place}: {', '.join(one.name for one in entries)}" for place, entries in served.places.items()]
    return "\n".join([served.grid.name, *places, *served.unclear.values()])


@pytest.mark.parametrize("title", golden_cases("serving"))
def test_cells_beside_numbers_are_those_of_the_golden_file(title: str, declared: Declared) -> None:
    case = golden_cases("serving")[title]
    grids = {
        name: (grid(name, published=own.get("published", {})), [entry(**one) for one in own["cells"]])
        if own
        else declared[name]
        for name, own in case["grids"].items()
    }
    served = serving(printed(*case["table"].split(":"))[0], grids)
    compare("serving", title, served_text(served) if served else "no grid")


def test_settings_name_ours_where_they_differ() -> None:
    (part,) = printed("gpas", "1")
    optim = {"lr": 1e-3, "warmup": 1000, "steps": 20_000, "batch": 512}
    ours = [entry(optim=optim), entry(size="1b", optim={**optim, "lr": 5e-4})]
    lines = with_ours(part, ours, result(ours[1], metrics={"train_tokens": 2e9})).rows
    texts = {line.title: [cell.text for cell in line.published] for line in lines}
    assert texts["71M"][2:5] == ["10K (here 20K)", "512", "1B (here 2.62B with padding)"]
    assert texts["71M"][:2] == [texts["130M"][0], "1K"]
    assert texts["1B"][4] == "10B (here 2B, 2.62B with padding)"
    assert texts["1B"][0] == "5 \N{MULTIPLICATION SIGN} 10⁻⁴"
    assert texts["130M"] == [cell.text for cell in part.rows[1].published]


TABLES = [f"{source}:{number}" for source in SOURCES for number in numbers(source)]
# Numbers without a cell: their published tables, and why.
UNSERVED = {
    **{f"raptr table{i}_accuracy": "BERT is not finetuned on GLUE here" for i in (1, 5, 6, 7)},
    # the baselines with a square-root decay, in Table 4
    **{f"raptr table4_{what}": "no grid declares such a cell" for what in ("flops", "loss")},
    **{f"raptr table{i}_speed": "the speed of the paper's machines is not measured here" for i in (9, 10)},
}


def parts(name: str) -> tuple[Table, ...]:
    source, _, number = name.partition(":")
    return tuple(part for part in printed(source, number) if part.tables)


@pytest.fixture(scope="module")
def served_parts(declared: Declared) -> Parts:
    """Return the parts of each printed table, with what serves them."""
    return {name: [(part, serving(part, declared)) for part in parts(name)] for name in TABLES}


def printed_numbers(part: Table) -> Iterator[PublishedCell]:
    return (cell for line in part.rows for cell in line.published if cell.value is not None)


def beside(served: Serving) -> Iterator[tuple[PublishedTable, list[Entry]]]:
    """Yield the cells beside each number, the same cells of a table once."""
    tables = {table.name: table for table in served.part.tables}
    found = {(place[0], *(one.id for one in entries)): (place, entries) for place, entries in served.places.items()}
    yield from ((tables[place[0]], list(entries)) for place, entries in found.values())


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_cells_of_its_recipe_or_a_reason(served_parts: Parts, name: str) -> None:
    for part, served in served_parts[name]:
        places = served.places if served else {}
        for cell in printed_numbers(part):
            table, place = cell.table, cell.place
            if place in places:
                differing = {one.setting for one in deviations(places[place], table)}
                assert differing <= DIFFERING[table.source], (place, differing)
            else:
                kept = table.name not in ("table4_flops", "table4_loss")
                assert kept or cell.labels["schedule"] == "inverse-sqrt", place
                assert table.no_cells == UNSERVED[f"{table.source} {table.name}"], place
        if served is not None:
            texts = [note.text for note in notes(paper_table(served, {}, {}))]
            noted = {one.setting for table, entries in beside(served) for one in deviations(entries, table)}
            assert all(any(text.startswith(f"{setting}: ") for text in texts) for setting in noted)
            unserved = [cell.table for cell in printed_numbers(part) if cell.place not in places]
            reasons = {table.no_cells for table in unserved if table}
            assert all(any(text.startswith("no cell here") and why in text for text in texts) for why in reasons)
            assert served.unclear == {}


# The grids that serve the parts of a table, with how many numbers, and of how many cells together.
SERVED = file_text("golden/served_tables.txt").splitlines()


@pytest.mark.parametrize("name", TABLES)
def test_a_number_has_cells_of_one_grid_that_is_named_for_its_table(
    declared: Declared, served_parts: Parts, name: str
) -> None:
    found = [
        (one.grid.name, len(one.places), sum(map(len, one.places.values()))) for _, one in served_parts[name] if one
    ]
    assert f"{name} | {found}" in SERVED
    for part, served in served_parts[name]:
        missing = {cell.place for cell in printed_numbers(part)} - {*(served.places if served else ())}
        others = [serving(part, {name: one}) for name, one in declared.items()] if missing else []
        assert not missing & {place for other in others if other for place in {**other.places, **other.unclear}}


def with_optim(setting: str, factor: float) -> Callable[[Cell], Cell]:
    def change(cell: Cell) -> Cell:
        value = getattr(cell.optim, setting) * factor
        return replace(cell, optim=replace(cell.optim, **{setting: type(getattr(cell.optim, setting))(value)}))

    return change


def with_data(**changes: Any) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, data=replace(cell.data, **changes))


def with_layer(cell: Cell) -> Cell:
    return replace(cell, model=replace(cell.model, size=replace(cell.model.size, layers=cell.model.size.layers + 2)))


CHANGES: dict[str, Callable[[Cell], Cell]] = {
    "optim.steps": with_optim("steps", 0.5), "optim.lr": with_optim("lr", 7), "optim.warmup": with_optim("warmup", 2),
    "optim.batch": with_optim("batch", 2), "data": with_data(source=CORPORA["quickstart"].source),
    "data.length": with_data(length=77), "size": with_layer,
}  # fmt: skip


def unstated(setting: str, table: PublishedTable) -> bool:
    return any(setting in one.unstated and setting not in {**one.settings, **one.code} for one in recipes(table))


def with_recipes_of_their_own(served: Serving) -> Iterator[tuple[PublishedTable, list[Entry]]]:
    """Yield the cells beside the first number of each recipe."""
    found: dict[Any, tuple[PublishedTable, list[Entry]]] = {}
    for table, entries in beside(served):
        labels = table.in_own_words(facts(entries[0]))
        stated = str([one.settings_of(labels) for one in recipes(table)])
        found.setdefault((table.recipes, table.as_if, stated), (table, entries))
    yield from found.values()


@pytest.mark.parametrize("name", TABLES)
def test_a_run_of_another_length_size_or_recipe_has_a_note(declared: Declared, served_parts: Parts, name: str) -> None:
    for part, served in served_parts[name]:
        for table, entries in with_recipes_of_their_own(served) if served else ():
            usual = set(deviations(entries, table))
            for setting, change in CHANGES.items():
                if unstated(setting, table):
                    continue
                changed = replace(entries[0], cell=change(entries[0].cell))
                if setting == "data":  # RaPTr's is known by its name under `corpora`
                    changed = replace(changed, declared=None)
                alone = serving(part, {"changed": (declared["table2"][0], [changed])})
                for _, found in beside(alone) if alone else ():
                    noted = set(deviations(found, table)) - usual
                    assert setting in {one.setting for one in noted}, (table.name, found[0].id)


def four_methods() -> Table:
    """Pre-LN and LNS, with and without GPAS, at 71m; Pre-LN without it at 130m too."""
    known = quickstart()
    return build([*known.entries, entry("pre", "none", 1, "130m")], known.states, known.results, spec())


def find(words: str) -> Place:
    return find_place(four_methods(), place_name(f"demo[{words}]"))


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


@cases("report/cases.yaml")
def test_an_unknown_or_ambiguous_name_gets_the_choices(words: str, message: str) -> None:
    with pytest.raises(UnknownCell) as caught:
        find(words)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["pre-gpas-s1", "table2/pre", "abcd", "optim.lr=1e-3", "[pre]", "a[b]c"])
def test_other_names_are_not_those_of_table_cells(text: str) -> None:
    assert place_name(text) is None


@pytest.mark.parametrize("state", RETRIED)
def test_each_state_without_a_number_has_its_command(state: str) -> None:
    states = (state, "missing", "interrupted", "not finite", "unrecorded", "queued", "running", "unsynced")
    cells = [SimpleNamespace(key=name, id=f"g/{name.split()[0]}", grid="g", axes={}) for name in states]
    commands = []
    for first in range(len(states)):
        left: Any = zip(states[first:], cells[first:], strict=True)
        commands.append(remedy(left, cells))  # type: ignore[arg-type]
    assert list(dict.fromkeys(commands)) == [
        "gpas run grid g",
        "gpas retry --done g/not g/unrecorded",
        "gpas retry --done g/unrecorded",
        "gpas db sync",
    ]
    alone: Any = [(state, cells[0])]
    assert remedy(alone, []) == f"gpas retry g/{state}"
    under_way: Any = [("running", cells[6])]
    assert remedy(under_way, []) == ""
    many = [(state, SimpleNamespace(key=str(n), id=f"g/{n}", grid="g")) for n in range(7)]
    assert remedy(many, []) == "gpas retry g"  # type: ignore[arg-type]
