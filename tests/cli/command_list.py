"""Every command of `gpas` with its path, such as "gpas db sync"."""

from typer.main import get_command

from gpas_cli.cli.app import make_app


def commands(group: object, prefix: str = "gpas") -> list[tuple[str, object]]:
    found = []
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        found += commands(command, path) if hasattr(command, "commands") else [(path, command)]
    return found


COMMANDS = commands(get_command(make_app()))
