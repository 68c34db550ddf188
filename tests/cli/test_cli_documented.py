"""Every command is documented: a help text with an example, and a line in docs/reference/commands.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from gpas_cli.cli.app import app

OVERVIEW = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()


def commands(group: object, prefix: str = "gpas") -> list[tuple[str, object]]:
    found = []
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        found += commands(command, path) if hasattr(command, "commands") else [(path, command)]
    return found


COMMANDS = commands(get_command(app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_command_is_documented(path: str, command: object) -> None:
    assert command.help, path
    assert f"Example: [bold]{path}" in command.help
    assert f"`{path}`" in OVERVIEW
    for parameter in command.params:
        assert parameter.name in ("help",) or getattr(parameter, "help", None), (path, parameter.name)


READ_COMMANDS = (
    "plan",
    "status",
    "top",
    "why",
    "explain",
    "table",
    "doctor",
    "db check",
    "sync",
    "data status",
    "data check",
    "data prepare",
)


@pytest.mark.parametrize("name", READ_COMMANDS)
def test_read_commands_speak_json(name: str) -> None:
    command = dict(COMMANDS)[f"gpas {name}"]
    options = {option for parameter in command.params for option in getattr(parameter, "opts", ())}
    assert "--json" in options or "json" in str([getattr(p, "help", "") for p in command.params])
