"""Every command is documented: a help text with an example, and texts of its arguments and options."""

import re
from pathlib import Path

import pytest
from command_list import COMMANDS
from shipped import EXPERIMENTS

from gpas_cli.grid.expand import expand

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
CELL = re.compile(r"(?<![\w./-])([a-z][a-z0-9-]*)/([a-z0-9][a-z0-9.-]*[a-z0-9])(?![\w/-]|\.\w)")


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_command_is_documented(path: str, command: object) -> None:
    assert command.help, path
    assert f"Example: [bold]{path}" in command.help
    for parameter in command.params:
        assert parameter.name in ("help",) or getattr(parameter, "help", None), (path, parameter.name)


def test_cells_of_shipped_grids_in_examples_exist() -> None:
    texts = [command.help for _, command in COMMANDS] + [page.read_text() for page in PAGES]
    texts = [re.sub(r"\.trunk\d+", "", text) for text in texts]
    named = {match.groups() for text in texts for match in CELL.finditer(text) if match[1] in EXPERIMENTS.grids}
    assert named
    declared = {entry.id for entry in expand(EXPERIMENTS, list({grid for grid, _ in named}))}
    assert {"/".join(cell) for cell in named} - declared == set()
