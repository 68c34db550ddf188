"""Help texts, shell completion, and the words of messages."""

from __future__ import annotations

import subprocess
import sys

import pytest
from face import Face
from typer.main import get_command

from gpas_cli.cli import options, selection
from gpas_cli.cli.app import COMMANDS, MAINTAIN, RESULTS, RUN, make_app


def test_commands_are_listed_under_headings(face: Face) -> None:
    said = face("--help").out
    places = [said.index(f"─ {heading} ─") for heading in (RUN, RESULTS, MAINTAIN)]
    assert places == sorted(places)
    assert places[0] < said.index("│ retry") < places[1] < said.index("│ table") < places[2] < said.index("│ doctor")


def test_a_line_of_help_is_that_of_its_command() -> None:
    """`gpas --help` imports no command, so the lines are written beside the names."""
    lines = {name: line for names in COMMANDS.values() for name, line in names.items()}
    made = get_command(make_app()).commands
    assert lines == {name: command.help.partition("\n\n")[0] for name, command in made.items()}


def test_help_imports_no_command() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpas_cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "gpas_cli.cli.app" in said.stderr
    assert "gpas_cli.cli.commands" not in said.stderr


@pytest.mark.parametrize(
    ("typed", "names"), [("stat", ["status"]), ("run gr", ["grid"]), ("status --sta", ["--state"])]
)
def test_commands_that_are_not_imported_yet_are_completed(
    face: Face, monkeypatch: pytest.MonkeyPatch, typed: str, names: list[str]
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # or the program is "python -m pytest"
    monkeypatch.setenv("_GPAS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["gpas", *typed.split()]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert face().out.split() == names


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
