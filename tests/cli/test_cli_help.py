"""Help texts, shell completion, and the words of messages."""

import subprocess
import sys
from pathlib import Path

from disks import full
from face import Face, gpas
from shipped import EXPERIMENTS, cells_of
from typer.main import get_command

from gpas_cli.cli.app import commands, make_app
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.checks import report_problems


def test_commands_are_listed_under_headings(face: Face) -> None:
    said = face("--help").out
    places = [said.index(f"─ {heading} ─") for heading in ("Every day", "More to read", "Data and disks")]
    assert places == sorted(places)
    assert places[0] < said.index("│ retry") < places[1] < said.index("│ diff") < places[2] < said.index("│ doctor")


def test_a_line_of_help_is_that_of_its_command() -> None:
    """`gpas --help` imports no command, so the lines are written beside the names."""
    lines = {name: one.about for name, one in commands().items()}
    made = get_command(make_app()).commands
    assert lines == {name: command.help.partition("\n\n")[0] for name, command in made.items()}


def test_help_imports_no_command() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpas_cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "gpas_cli.cli.app" in said.stderr
    assert "gpas_cli.cli.commands" not in said.stderr


def test_flags_have_no_type(face: Face) -> None:
    lines = [line for line in face("run", "grid", "--help").out.splitlines() if "--yes" in line or "--dry-run" in line]
    assert len(lines) == 2
    assert not any("bool" in line for line in lines)


def test_init_writes_the_quickstart_and_room_for_a_grid(face: Face) -> None:
    assert "Next: cd 'sub dir/here', then gpas plan" in face("init", "sub dir/here").out
    path = face.folder / "sub dir/here/experiments.yaml"
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    assert tuple(expand(load(path, check=report_problems))) == cells_of("quickstart")
    path.write_text(text.replace("  # mine:", "  mine:").replace("\n  #   ", "\n    "))
    assert len(expand(load(path, check=report_problems), ["mine"])) == 12


def test_init_with_papers_writes_their_grids(face: Face) -> None:
    assert "Next: gpas plan" in face("init", "--papers", "--force").out
    assert load(face.folder / "experiments.yaml").grids.keys() == EXPERIMENTS.grids.keys()


def test_the_start_of_a_key_that_is_too_short(face: Face) -> None:
    key = face.entry("pre-s1").key
    assert "to select by key, give at least 4 digits" in face("why", key[:2], expect=2).err


def test_init_on_a_full_disk_leaves_the_files_as_they_were(small_disk: Path) -> None:
    (small_disk / "experiments.yaml").write_text("grids: {}\n")
    (small_disk / ".gitignore").write_bytes(b"caf\xe9\n")
    with full(small_disk):
        said = gpas(small_disk, "init", "--force", expect=2).err
    assert f"{small_disk}/experiments.yaml: No space left on device" in said
    assert (small_disk / "experiments.yaml").read_text() == "grids: {}\n"
    gpas(small_disk, "init", "--force")
    assert (small_disk / ".gitignore").read_bytes().startswith(b"caf\xe9\n/runs/\n")
