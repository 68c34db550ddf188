"""The `gpas` command and its sub-commands.

Each sub-command is the function of its name, or the Typer application `app`, in the module of its name; `TOGETHER` has
the commands that share a module. Importing all of them takes longer than most commands, so the program imports only the
one that runs, and none to list them.

Help texts are Click's plain screens of at most 100 columns, with headings and names in colour on a terminal. Typer's
own screens leave a third of 80 columns for what an option does, and import rich's Markdown, syntax and traceback
modules, which take 0.3 of the CPU time of `gpas --help`.

In bash, completion gets pieces of words, because bash splits the command line at `=` and `:` too, and replaces only the
last one: for `gpas status --where norm=s<TAB>` it passes "--where", "norm", "=", "s", and replaces the "s".
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from gpas_cli import __version__
from gpas_cli.cli.console import STATE
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extension import Command, extensions, missing
from gpas_cli.words import grouped

# Commands that report mistakes of tables and claims. The others, which run cells or show states and logs, read neither.
_REPORTING = ("plan", "table", "why", "doctor")
# Command -> its module, if that has another name.
TOGETHER = {**dict.fromkeys(("cancel", "retry", "forget"), "cells"), "train": "run"}
# The name of a command in other programs -> its name here.
_OTHER_NAMES = {
    "compare": "diff", "start": "run", "submit": "run", "resume": "run", "stop": "cancel", "kill": "cancel",
    "rerun": "retry --done", "serve": "report --serve", "sync": "db sync", "trust": "doctor --trust",
    "top": "status --watch", "delete": "gc", "clean": "gc", "list": "status", "ls": "status", "show": "explain",
    "plot": "figure", "prepare": "data prepare", "import-task": "data import-task",
}  # fmt: skip
_BREAKS = "=:"


class _Formatter(typer.Context.formatter_class):  # type: ignore[misc,valid-type]
    """Click's formatter with headings, examples and the names of commands and options in colour."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(typer.style(heading, bold=True))

    def write_text(self, text: str) -> None:
        super().write_text(re.sub(r"(?<=Example: ).+", lambda found: typer.style(found[0], bold=True), text))

    def write_dl(self, rows: Sequence[tuple[str, str]], **options: Any) -> None:
        super().write_dl([(typer.style(name, fg="cyan", bold=True), text) for name, text in rows], **options)


class _Context(typer.Context):
    formatter_class = _Formatter


class _ConfigAnywhere(TyperGroup):
    """The program: a command group that accepts --config after the command: `gpas plan --config other.yaml`."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        _tidy_help(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _config_first(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named: list[tuple[str, Any]] = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        width = max(len(name) for name, _ in named)
        lines = grouped((one.rich_help_panel, (f"{name:{width}}", one.short_help)) for name, one in named)
        for heading, rows in (lines | {"Exit codes": [(str(code), code.meaning) for code in Exit]}).items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class _OneAtATime(_ConfigAnywhere):
    """The group of all commands. Each is imported when it is called; their lines of help are read to list them."""

    def list_commands(self, ctx: Any) -> list[str]:
        for name, one in commands().items():
            self.commands.setdefault(name, TyperCommand(name, short_help=one.about, rich_help_panel=one.heading))
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if _command(name):
            self.commands[name] = get_group(make_app(name, *args[1:2])).commands[name]
        elif reason := missing(name, "commands"):
            raise GpasError(f"the command {reason}")
        elif name in _OTHER_NAMES:
            ctx.fail(f"No such command '{name}'. Did you mean '{_OTHER_NAMES[name]}'?")
        else:
            self.list_commands(ctx)
        return super().resolve_command(ctx, args)


def _tidy_help(command: Any) -> None:
    """Prepare the help text of a command and of those in it: no type for flags such as --yes, lines that end only where
    the terminal does, and the whole first paragraph in lists of commands.
    """
    command.rich_markup_mode, command.context_class = None, _Context
    command.help = re.sub(r"(?<=\S)\n(?=\w|`|\(|--)", " ", command.help or "")
    command.short_help = command.short_help or command.help.partition("\n\n")[0]
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _tidy_help(inner)


def _config_first(args: list[str]) -> list[str]:
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
    context: typer.Context,
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
    named = _command(context.invoked_subcommand or "")
    STATE.check_reports = bool(named and named.shows_results)


# Heading -> command -> the first line of its help text, so that `gpas --help` imports no command.
COMMANDS = {
    "Every day": {
        "init": "Write an experiments.yaml whose grid trains in minutes.",
        "plan": "Show what a grid would run, and its cost. Nothing changes.",
        "run": "Run the cells of a grid that have no result.",
        "status": "Show the state of every cell; --watch follows them.",
        "logs": "Print the log of a cell, of all its attempts.",
        "cancel": "Cancel queued and running cells.",
        "retry": "Run failed cells again; with --done, cells with a result.",
        "table": "Print a grid's table; --paper adds the published numbers.",
        "why": "Show where a number comes from: runs, code, text, paper.",
    },
    "More to run": {
        "train": "Train one cell in the foreground, as it is or varied.",
        "bench": "Measure the speed and memory of a grid's cells.",
        "forget": "Retire results, so that their cells run again.",
    },
    "More to read": {
        "explain": "Show what a cell is: its equations and whole configuration.",
        "diff": "Show how two cells differ: settings, numbers, curves, code.",
    },
    "Data and disks": {
        "data": "Prepare, list and check tokenised text; import tasks.",
        "db": "Read new results; check, rebuild, merge the database.",
        "gc": "Show what each grid occupies; --delete frees checkpoints.",
        "doctor": "Check this machine and this project.",
    },
}

_ENGINE = {
    name: Command(heading, f"gpas_cli.cli.commands.{TOGETHER.get(name, name)}", about, name in _REPORTING)
    for heading, names in COMMANDS.items()
    for name, about in names.items()
}


def make_app(asked: str | None = None, word: str = "") -> typer.Typer:
    """Return the application with only the sub-command `asked`, by default with all of them; with "", these are
    imported one at a time. `word` follows the sub-command on the command line.
    """
    coloured = False if os.environ.get("NO_COLOR") else True if os.environ.get("FORCE_COLOR") else None
    app = typer.Typer(
        name="gpas",
        cls=_OneAtATime if asked == "" else _ConfigAnywhere,
        help="Reproduce the GPAS experiments: from a declared grid to jobs, results and the paper's tables.",
        epilog="Start with: gpas init, gpas run grid, gpas table --paper",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "color": coloured},
        pretty_exceptions_enable=False,
    )
    app.callback()(main)
    chosen = commands() if asked is None else {asked: one} if asked and (one := _command(asked)) else {}
    for name, one in chosen.items():
        module = import_module(one.module)
        if hasattr(module, "app") and name not in TOGETHER:
            _add_parts(name, module.app, word)
            app.add_typer(module.app, name=name, rich_help_panel=one.heading)
        else:
            app.command(name, rich_help_panel=one.heading)(getattr(module, name))
    return app


def commands() -> dict[str, Command]:
    """Return the commands of the engine and of this package's extensions, under their headings."""
    found = [*_ENGINE.items(), *((name, one) for name, one in _of_extensions().items() if " " not in name)]
    headings = list(COMMANDS)
    return dict(sorted(found, key=lambda item: headings.index(item[1].heading)))


def _of_extensions() -> dict[str, Command]:
    """Return the commands of this package's extensions; those of a group have its name before theirs."""
    return {name: one for head in extensions("commands").values() for name, one in head.commands.items()}


def _command(name: str) -> Command | None:
    return _ENGINE.get(name) or _of_extensions().get(name)


def _add_parts(group: str, app: typer.Typer, word: str) -> None:
    """Add the commands of extensions to a group: the one that `word` names, or all for help texts.

    Each is a function of its whole name, such as `run_claims`. Raises GpasError for one whose extension is missing.
    A group of an extension has all of them, which know each other's options.
    """
    known = {command.name for command in app.registered_commands}
    if word in known and group in _ENGINE:
        return
    if reason := missing(f"{group} {word}", "commands"):
        raise GpasError(f"the command {reason}")
    own = _of_extensions()
    for name, command in own.items():
        part = name.removeprefix(f"{group} ")
        if part != name and part not in known and (word in ("", part) or word.startswith("-") or group in own):
            app.command(part)(getattr(import_module(command.module), name.replace(" ", "_")))


def rejoined(words: list[str], current: int) -> tuple[list[str], int, str]:
    """Return the words of the command line, the number of the current one, and its part that bash does not replace."""
    joined: list[str] = []
    here = 0
    glued = False  # The next piece belongs to the word before it.
    for number, piece in enumerate(words):
        broken = bool(piece) and not piece.strip(_BREAKS)
        if joined and (glued or broken):
            joined[-1] += piece
        else:
            joined.append(piece)
        glued = broken
        if number == current:
            here = len(joined) - 1
            kept = joined[-1] if broken else joined[-1].removesuffix(piece)
    if current >= len(words):
        return [*joined, ""], len(joined), ""
    return joined[: here + 1], here, kept


@contextmanager
def whole_words() -> Iterator[None]:
    """Within the context, bash's request for completions is about whole words; the answers are what bash inserts."""
    if os.environ.get("_GPAS_COMPLETE") != "complete_bash":
        yield
        return
    words, current, kept = rejoined(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(current)}
    answers = StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        print("\n".join(answer.removeprefix(kept) for answer in answers.getvalue().splitlines()))
