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


class ConfigAnywhere(TyperGroup):
    """Takes --config after the command as well: `gpas plan --config other.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, config_first(args))


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


app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("bench")(bench.bench)
app.add_typer(run.app, name="run")
app.command("train")(train.train)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("logs")(logs.logs)
app.command("cancel")(cancel.cancel)
app.command("retry")(retry.retry)
app.command("rerun")(rerun.rerun)
app.command("why")(why.why)
app.command("explain")(explain.explain)
app.command("table")(table.table)
app.command("figure")(figure.figure)
app.command("export")(export.export)
app.command("sync")(sync.sync)
app.add_typer(data.app, name="data")
app.add_typer(db.app, name="db")
app.command("doctor")(doctor.doctor)
app.command("trust")(trust.trust)
app.command("schema")(schema.schema)
