"""`gpas table --external`: networks that were not trained here, below the cells of a grid, in every format."""

import csv
import io

import pytest
from face import Face
from scored import WEIGHTS, declare_scored, finish_cells, finish_external, score
from test_cli_schema import check

from gpas_cli.errors import Exit

THEIRS = "a" * 16


@pytest.fixture
def scored(face: Face) -> Face:
    finish_cells(face)
    finish_external(face, "theirs", THEIRS, score("indent", 0.6), score("bracket", 0.3), score("piqa", 0.9))
    return face


def test_a_network_is_below_the_cells_with_its_origin(scored: Face) -> None:
    said = scored("table", "scored", "--external", "theirs", "--format", "markdown").out.splitlines()
    rows = [line for line in said if line.startswith("| ")]
    assert rows[1:] == [
        "| --- | ---: | ---: | ---: |",
        "| Pre-LN | <u>40.00 ± 1.25</u> | <u>50.00 ± 1.25</u> | <u>45.00 ± 0.88</u> |",
        "| &nbsp;&nbsp;+ GPAS | **41.00 ± 1.25** (+1.00) | **51.00 ± 1.25** (+1.00) | **46.00 ± 0.88** (+1.00) |",
        "| theirs | 60.00 ± 1.25 | 30.00 ± 1.25 | 45.00 ± 0.88 |",
    ]
    notes = "\n".join(said)
    assert "last row: a network that was not trained here, neither ranked nor compared" in notes
    assert f"theirs: /models/theirs, weights {WEIGHTS[:12]}, fp32, scored by gpas\\_cli 0.1.0, 0-shot" in notes


def test_without_the_option_tables_are_as_before(scored: Face) -> None:
    assert "theirs" not in scored("table", "scored").out


def test_the_terminal_and_latex_have_a_rule_before_the_networks(scored: Face) -> None:
    shown = scored("table", "scored", "--external", "all").out.splitlines()
    last = next(place for place, line in enumerate(shown) if line.strip().startswith("theirs"))
    assert set(shown[last - 1].strip()) <= {"─", " "}
    latex = scored("table", "scored", "--external", "all", "--format", "latex").out
    blocks = latex.split("\\begin{tabular}{")[1:]
    assert [block.count("\\midrule") for block in blocks] == [2] * len(blocks)
    assert blocks[0].split("\\midrule")[2].strip().startswith("theirs & 60.00 $\\pm$ 1.25 &")
    assert "Last row: a network that was not trained here" in latex


def test_json_has_the_network_with_its_scores(scored: Face) -> None:
    document = scored("table", "scored", "--external", "theirs", "--json").json
    check("table", document)
    (row,) = document["externals"]
    assert (row["name"], row["key"], row["precision"]) == ("theirs", THEIRS, "fp32")
    assert row["settings"] == {"shots": 0, "limit": 0, "max_length": 1024}
    assert row["origin"]["weights"] == WEIGHTS
    assert [cell["value"] for cell in row["cells"]] == pytest.approx([60, 30, 45])
    assert {one["task"] for one in row["scores"]} == {"indent", "bracket"}
    assert len(document["rows"]) == 2
    assert scored("table", "scored", "--json").json["externals"] == []


def test_csv_names_the_network_in_columns_of_its_own(scored: Face) -> None:
    text = scored("table", "scored", "--external", "theirs", "--format", "csv").out
    lines = list(csv.DictReader(io.StringIO(text)))
    mine = [line for line in lines if line["external"]]
    assert len(lines) == 9
    assert [(line["norm"], line["task"], line["mean"], line["delta"]) for line in mine] == [
        ("", "indent", "60.0", ""),
        ("", "bracket", "30.0", ""),
        ("", "average", "45.0", ""),
    ]
    assert {line["weights"] for line in mine} == {WEIGHTS}


def test_other_settings_are_named_and_the_network_is_not_shown(scored: Face) -> None:
    finish_external(scored, "quick", "b" * 16, score("indent", 0.7), limit=12, max_length=64)
    document = scored("table", "scored", "--external", "quick", "--json").json
    assert document["externals"] == []
    (note,) = (note["text"] for note in document["notes"] if note["kind"] == "origin")
    assert note == (
        "quick is not shown, because it was scored with other settings: limit 12, cells 0; max_length 64, cells 1024; "
        "to score it like the cells: `gpas evaluate /models/quick --tasks embedded` "
        "(no effect if it has only 64 positions)"
    )


def test_tasks_without_a_score_are_named(scored: Face) -> None:
    finish_external(scored, "half", "b" * 16, score("indent", 0.7))
    said = scored("table", "scored", "--external", "half").out
    assert "not scored" in said
    assert "half: not scored at bracket; to score: `gpas evaluate /models/half --tasks bracket`" in said


def test_an_unknown_name_is_refused_with_the_nearest(scored: Face) -> None:
    said = scored("table", "scored", "--external", "theirs", "--external", "thiers", expect=Exit.USAGE)
    assert "no scored network is called 'thiers'; did you mean 'theirs'?" in said.err


def test_a_name_is_refused_where_nothing_has_been_scored(face: Face) -> None:
    declare_scored(face)
    said = face("table", "scored", "--external", "theirs", expect=Exit.USAGE)
    assert "none has been scored (`gpas evaluate`)" in said.err
    assert "no network that was not trained here has scores" in face("table", "scored", "--external", "all").out


def test_a_table_whose_columns_are_no_tasks_is_refused(scored: Face) -> None:
    said = scored("table", "small", "--external", "theirs", expect=Exit.USAGE)
    assert "its columns are 'size'; --external is for grids with `table: {columns: task}`" in said.err


def test_a_network_whose_run_directory_is_gone_is_unknown(scored: Face) -> None:
    scored("sync")
    (scored.runs / THEIRS[:2]).rename(scored.folder / "elsewhere")
    assert "none has been scored" in scored("table", "scored", "--external", "theirs", expect=Exit.USAGE).err


def test_the_newest_score_and_name_count(scored: Face) -> None:
    finish_external(scored, "renamed", THEIRS, score("indent", 0.65))
    (row,) = scored("table", "scored", "--external", "all", "--json").json["externals"]
    assert row["name"] == "renamed"
    assert [cell["value"] for cell in row["cells"]] == pytest.approx([65, 30, 47.5])
