"""Networks that were not trained here in tables: which are shown, under which name, and what the notes say."""

import csv
import io
from typing import Any

import pytest
from report_cells import entry, score, spec

from gpas_cli.grid import Entry
from gpas_cli.report.recorded import ExternalNetwork
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.external import Externals
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.render import to_csv
from gpas_cli.report.tables.sheet import PLAIN
from gpas_cli.report.tables.table import Table

BOTH = {"tasks": ["indent", "bracket"]}


def network(name: str = "theirs", key: str = "a" * 16, **changed: Any) -> ExternalNetwork:
    settings = {name: changed.pop(name, usual) for name, usual in (("shots", 0), ("limit", 0), ("max_length", 1024))}
    origin = {"source": f"/models/{name}", "revision": "", "weights": "f00d" * 16, **changed.pop("origin", {})}
    scores = changed.pop("scores", (score("indent", 0.6), score("bracket", 0.4)))
    return ExternalNetwork(name=name, key=key, origin=origin, settings=settings, precision="fp32", scores=scores)


def table_of(entries: list[Entry], *networks: ExternalNetwork, value: str = "accuracy") -> Table:
    return build(entries, {}, {}, spec(columns="task", value=value), networks)


def externals(*networks: ExternalNetwork, **section: Any) -> Externals:
    return table_of([entry(downstream={**BOTH, **section})], *networks).externals


def values(found: Externals) -> list[list[float | None]]:
    return [[cell.value for cell in row.cells] for row in found.rows]


def test_the_numbers_are_those_of_the_columns() -> None:
    found = externals(network(scores=(score("piqa", 0.9), score("bracket", 0.4), score("indent", 0.6))))
    assert values(found) == [pytest.approx([60, 40, 50])]
    assert found.rows[0].cells[2].stderr == pytest.approx(2**0.5)
    assert [one.task for one in found.rows[0].scores] == ["bracket", "indent"]


def test_a_hub_network_is_noted_with_its_commit() -> None:
    (note,) = externals(network("a/b", origin={"source": "a/b", "revision": "c0ffee" * 6})).notes
    assert note == "a/b: a/b at c0ffeec0ffee, weights f00df00df00d, fp32, scored by lm_eval 0.4.13, 0-shot"


def test_scores_of_the_first_questions_are_noted_as_such() -> None:
    (note,) = externals(network(limit=12), limit=12).notes
    assert note.endswith("0-shot, the first 12 questions of each task")


@pytest.mark.parametrize(
    ("recorded", "declared", "said"),
    [
        ({"shots": 5}, {}, "shots 5, cells 0; to score it like the cells: `gpas evaluate /models/theirs"),
        ({}, {"limit": 7}, "limit 0, cells 7; to score it like the cells: `gpas evaluate /models/theirs --tasks embed"),
        ({}, {"limit": 7}, "--limit 7`"),
        ({}, {"max_length": 2048}, "--max-length 2048` (no effect if it has only 1024 positions)"),
    ],
)
def test_other_settings_are_not_comparable(recorded: dict[str, int], declared: dict[str, int], said: str) -> None:
    found = externals(network(**recorded), **declared)
    assert not found.rows
    (note,) = found.notes
    assert said in note


def test_the_length_that_counts_is_that_of_learned_positions() -> None:
    cell = entry(family={"positions": "learned", "context": 256}, downstream=BOTH)
    assert table_of([cell], network(max_length=256)).externals.rows
    assert "max_length 1024, cells 256" in table_of([cell], network()).externals.notes[0]


def test_cells_with_several_settings_match_no_network() -> None:
    cells = [entry("pre", downstream=BOTH), entry("lns", downstream={**BOTH, "limit": 5})]
    found = table_of(cells, network()).externals
    assert not found.rows
    assert found.notes == ("theirs is not shown, because it was scored with other settings: limit 0, cells 0 and 5",)


def test_cells_with_several_lists_of_tasks_have_no_average_to_compare() -> None:
    cells = [entry("pre", downstream=BOTH), entry("lns", downstream={"tasks": ["indent", "bracket", "piqa"]})]
    found = table_of(cells, network(scores=(score("indent"), score("bracket"), score("piqa")))).externals
    shown = {cell.value for cell in found.rows[0].cells}
    assert shown == {50, None}
    assert {cell.status for cell in found.rows[0].cells if cell.value is None} == {"tasks differ"}


def test_scores_with_other_settings_are_silent_beside_comparable_ones() -> None:
    found = externals(network(), network(key="b" * 16, limit=12))
    assert len(found.rows) == len(found.notes) == 1


def test_two_networks_of_one_name_have_their_keys_in_the_title() -> None:
    found = externals(network(), network(key="b" * 16, origin={"weights": "beef" * 16}))
    assert [row.title for row in found.rows] == ["theirs (aaaaaaaa)", "theirs (bbbbbbbb)"]


def test_a_network_without_a_score_at_these_tasks_is_not_shown() -> None:
    found = externals(network(scores=(score("piqa"),)))
    assert not found.rows
    assert found.notes[0] == "theirs is not shown: it has no score at these tasks"
    assert "`gpas evaluate /models/theirs --tasks embedded`" in found.notes[1]


def test_the_command_names_the_network_again_and_quotes_it() -> None:
    one = network("mine", origin={"source": "/my models/x", "revision": ""}, scores=(score("indent"),))
    assert "`gpas evaluate '/my models/x' --tasks bracket --name mine`" in externals(one).notes[1]


def test_other_metrics_are_shown_in_their_units() -> None:
    cells = [entry(downstream={"tasks": ["wikitext"]})]
    texts = (score("wikitext", 31.5, metric="word_perplexity", stderr=0.5), score("wikitext", 1.1, metric="byte"))
    (row,) = table_of(cells, network(scores=texts), value="task_perplexity").externals.rows
    assert [(cell.value, cell.stderr) for cell in row.cells] == [(31.5, 0.5)]


def test_versions_that_differ_from_those_of_the_cells_are_noted() -> None:
    older = network("older", "b" * 16, scores=(score("indent", task_version="0"),))
    table = table_of([entry(downstream=BOTH)], network(), older)
    assert "indent: the scores mix task versions: 1.0 (1), 0 (1)" in [note.text for note in notes(table)]


def test_no_published_number_is_beside_a_network() -> None:
    published = spec(columns="task", value="accuracy", published={"gpas": "table3_accuracy"})
    cell = entry(size="1b", downstream={"tasks": ["poster"]})
    table = build([cell], {}, {}, published, [network(scores=(score("piqa", 0.7),))])
    header, ours, theirs = sheet(table).texts(PLAIN)
    place = header.index("PIQA")
    assert header[place + 1] == "PIQA, GPAS paper"
    assert (ours[place + 1], theirs[place], theirs[place + 1]) == ("68.72", "70.00 ± 2.00", "")
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(line["external"], line["published_gpas"]) for line in lines if line["task"] == "piqa"] == [
        ("", "68.72"),
        ("theirs", ""),
    ]
