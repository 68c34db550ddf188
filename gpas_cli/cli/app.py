"""The `gpas` command: every sub-command by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpas_cli import __version__
from gpas_cli.cli import (
    bench,
    cancel,
    data,
    db,
    doctor,
    explain,
    export,
    figure,
    init,
    logs,
    plan,
    rerun,
    retry,
    run,
    schema,
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
LOOK = "Look"
RESULTS = "Results"
DATA = "Data"
UPKEEP = "Look after"


class ConfigAnywhere(TyperGroup):
    """Takes --config after the command as well: `gpas plan --config other.yaml`."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        _hide_types_of_flags(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, config_first(args))


def _hide_types_of_flags(command: Any) -> None:
    """In help texts, --yes takes no value and so has no type."""
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_types_of_flags(inner)


def config_first(args: list[str]) -> list[str]:
    """The arguments with --config and its value, wherever they stand before a `--`, in front."""
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word in ("--config", "-c"):
            value = next(words, None)
            if value is None:
                raise typer.BadParameter(f"{word} needs the path of an experiments file")
            first += [word, value]
        elif word.startswith("--config="):
            first.append(word)
        else:
            rest.append(word)
    return [*first, *rest, *args[end:]]


app = typer.Typer(
    name="gpas",
    cls=ConfigAnywhere,
    help="Reproduce the GPAS experiments: from a declared grid to jobs, results and the paper's tables.",
    epilog="\n".join(
        ("Begin with: gpas init, gpas run grid, gpas table --paper", "Exit codes:", *(str(code) for code in Exit))
    ),
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
            "--config", "-c", envvar="GPAS_CONFIG", help="The experiments file; else the nearest one upwards."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    STATE.config = config


app.command("init", rich_help_panel=RUN)(init.init)
app.command("plan", rich_help_panel=RUN)(plan.plan)
app.command("bench", rich_help_panel=RUN)(bench.bench)
app.add_typer(run.app, name="run", rich_help_panel=RUN)
app.command("train", rich_help_panel=RUN)(train.train)
app.command("cancel", rich_help_panel=RUN)(cancel.cancel)
app.command("retry", rich_help_panel=RUN)(retry.retry)
app.command("rerun", rich_help_panel=RUN)(rerun.rerun)
app.command("status", rich_help_panel=LOOK)(status.status)
app.command("top", rich_help_panel=LOOK)(top.top)
app.command("logs", rich_help_panel=LOOK)(logs.logs)
app.command("explain", rich_help_panel=LOOK)(explain.explain)
app.command("table", rich_help_panel=RESULTS)(table.table)
app.command("figure", rich_help_panel=RESULTS)(figure.figure)
app.command("why", rich_help_panel=RESULTS)(why.why)
app.command("export", rich_help_panel=RESULTS)(export.export)
app.add_typer(data.app, name="data", rich_help_panel=DATA)
app.command("sync", rich_help_panel=UPKEEP)(sync.sync)
app.add_typer(db.app, name="db", rich_help_panel=UPKEEP)
app.command("doctor", rich_help_panel=UPKEEP)(doctor.doctor)
app.command("trust", rich_help_panel=UPKEEP)(trust.trust)
app.command("schema", rich_help_panel=UPKEEP)(schema.schema)
