"""Help texts, shell completion, and the words of messages."""

from __future__ import annotations

from face import Face

from gpas_cli.cli import options, selection
from gpas_cli.cli.app import MAINTAIN, RESULTS, RUN


def test_commands_are_listed_under_headings(face: Face) -> None:
    said = face("--help").out
    places = [said.index(f"─ {heading} ─") for heading in (RUN, RESULTS, MAINTAIN)]
    assert places == sorted(places)
    assert places[0] < said.index("│ retry") < places[1] < said.index("│ table") < places[2] < said.index("│ doctor")


def test_flags_have_no_type(face: Face) -> None:
    lines = [line for line in face("run", "grid", "--help").out.splitlines() if "--yes" in line or "--dry-run" in line]
    assert len(lines) == 2
    assert not any("bool" in line for line in lines)


def test_the_shell_completes_conditions_keys_and_names(face: Face) -> None:
    selection.experiments.cache_clear()
    assert options.complete_where("norm=p") == ["norm=pre", "norm=post"]
    key = face.entry("pre-s1").key
    assert options.complete_cell(key[:6]) == [key]
    assert options.complete_cell_or_grid("sma")[:2] == ["small", "small/pre-s1"]
    assert options.complete_from(("running", "failed"))("running,f") == ["running,failed"]


def test_init_prints_the_next_commands(face: Face) -> None:
    assert "Next: cd 'sub dir/here', then gpas plan" in face("init", "sub dir/here").out
    assert "Next: gpas plan" in face("init", "--force").out


def test_the_start_of_a_key_that_is_too_short(face: Face) -> None:
    key = face.entry("pre-s1").key
    assert "to select by key, give at least 4 digits" in face("why", key[:2], expect=2).err
