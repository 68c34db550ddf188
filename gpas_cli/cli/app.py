"""The `gpas` command and its sub-commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpas_cli import __version__
from gpas_cli.cli import (
    bench,
    cancel,
    claims,
    data,
    db,
    diff,
    doctor,
    evaluate,
    explain,
    export,
    figure,
    forget,
    gc,
    init,
    logs,
    plan,
    report,
    rerun,
    retry,
    run,
    run_claims,
    schema,
    serve,
    status,
    sync,
    table,
    top,
    train,
    trust,
    why,
)
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


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gpas {__version__}")
        raise typer.Exit


@app.callback()
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


COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    RUN: {
        "init": init.init,
        "plan": plan.plan,
        "bench": bench.bench,
        "run": run.app,
        "train": train.train,
        "cancel": cancel.cancel,
        "retry": retry.retry,
        "rerun": rerun.rerun,
        "forget": forget.forget,
    },
    INSPECT: {"status": status.status, "top": top.top, "logs": logs.logs, "explain": explain.explain},
    RESULTS: {
        "table": table.table,
        "claims": claims.claims,
        "figure": figure.figure,
        "report": report.report,
        "serve": serve.serve,
        "why": why.why,
        "diff": diff.diff,
        "export": export.export,
        "evaluate": evaluate.evaluate,
    },
    DATA: {"data": data.app},
    MAINTAIN: {
        "sync": sync.sync,
        "db": db.app,
        "gc": gc.gc,
        "doctor": doctor.doctor,
        "trust": trust.trust,
        "schema": schema.schema,
    },
}

run.app.command("claims")(run_claims.run_claims)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)
