"""The `gpas` command and its sub-commands.

Each sub-command is the function, or the Typer application `app`, in the module of its name. Importing all of them takes
longer than most commands, so `make_app` imports only the one that is run.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpas_cli import __version__
from gpas_cli.cli.console import STATE
from gpas_cli.errors import Exit

# The headings of `gpas --help`.
RUN = "Run"
INSPECT = "Inspect"
RESULTS = "Results"
DATA = "Data"
MAINTAIN = "Maintain"


class ConfigAnywhere(TyperGroup):
    """A command group that accepts --config after the command: `gpas plan --config other.yaml`."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        _hide_types_of_flags(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, config_first(args))


def _hide_types_of_flags(command: Any) -> None:
    """Show no type for flags such as --yes in help texts."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_types_of_flags(inner)


def config_first(args: list[str]) -> list[str]:
    """Move --config and its value from anywhere before a `--` to the front."""
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for argument in words:
        if argument in ("--config", "-c"):
            value = next(words, None)
            if value is None:
                raise typer.BadParameter(f"{argument} needs the path of an experiments file")
            first += [argument, value]
        elif argument.startswith("--config="):
            first.append(argument)
        else:
            rest.append(argument)
    return [*first, *rest, *args[end:]]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gpas {__version__}")
        raise typer.Exit


def main(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            envvar="GPAS_CONFIG",
            help="The experiments file; by default experiments.yaml in this folder or the nearest parent.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    STATE.config = config


COMMANDS = {
    RUN: ("init", "plan", "bench", "run", "train", "cancel", "retry", "rerun", "forget"),
    INSPECT: ("status", "top", "logs", "explain", "theory"),
    RESULTS: ("table", "claims", "figure", "report", "serve", "why", "diff", "export", "evaluate"),
    DATA: ("data",),
    MAINTAIN: ("sync", "db", "gc", "doctor", "trust", "schema"),
}


def make_app(asked: str = "") -> typer.Typer:
    """Return the application with only the sub-command `asked`, or with all of them if there is none of that name."""
    app = typer.Typer(
        name="gpas",
        cls=ConfigAnywhere,
        help="Reproduce the GPAS experiments: from a declared grid to jobs, results and the paper's tables.",
        epilog="\n".join(("Start with: gpas init, gpas run grid, gpas table --paper", "Exit codes:", *map(str, Exit))),
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(main)
    known = {name: panel for panel, names in COMMANDS.items() for name in names}
    for name in [asked] if asked in known else known:
        module = import_module(f"gpas_cli.cli.commands.{name}")
        if name == "run":
            import_module("gpas_cli.cli.commands.run_claims")  # adds `gpas run claims`
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, rich_help_panel=known[name])
        else:
            app.command(name, rich_help_panel=known[name])(getattr(module, name))
    return app
