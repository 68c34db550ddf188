"""Every command is documented: a help text with an example, and a line in docs/reference/commands.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_list import COMMANDS

from gpas_cli.cli.schemas import DOCUMENTS

OVERVIEW = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_command_is_documented(path: str, command: object) -> None:
    assert command.help, path
    assert f"Example: [bold]{path}" in command.help
    assert f"`{path}`" in OVERVIEW
    for parameter in command.params:
        assert parameter.name in ("help",) or getattr(parameter, "help", None), (path, parameter.name)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_a_command_takes_json_exactly_if_it_has_a_schema(path: str, command: object) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert ("--json" in options) == (path.removeprefix("gpas ") in DOCUMENTS)
