"""Arguments, options and the kind of group that several commands share, with their completion in the shell."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpas_cli.cli.console import STATE
from gpas_cli.cli.selection import experiments, papers_known
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import spelled
from gpas_cli.grid.expand import Expansion, cell_names, expand
from gpas_cli.spec.parse import flat, plain
from gpas_cli.structure import Frozen

SUMMARY_VARIABLE = "GPAS_SUMMARY"


def offer(*sources: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completion function: it returns the names that begin with a text, of the first source that has some.

    It returns none if the experiments file cannot be read.
    """

    def complete(incomplete: str) -> list[str]:
        with suppress(GpasError):
            for names in sources:
                if found := [name for name in names() if name.startswith(incomplete)]:
                    return found
        return []

    return complete


def offer_list(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion function for a comma-separated list of `words`."""
    known = list(words)

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in known if word.startswith(begun)]

    return complete


def _grids() -> list[str]:
    return experiments().available


def _cells() -> list[str]:
    """Return the cells of the default grid by name, and the cells of all grids as grid/name."""
    names = {grid: cell_names(experiments(), grid) for grid in _grids()}
    usual = names.get(experiments().default, [])
    return [*usual, *(f"{grid}/{name}" for grid, found in names.items() for name in found)]


def _keys() -> list[str]:
    return list(dict.fromkeys(entry.key for entry in expand(experiments(), _grids())))


def _settings() -> list[str]:
    """Return the settings of a cell of the default grid, as PATH=."""
    first = expand(experiments(), [experiments().default])[:1]
    return [f"{name}=" for entry in first for name in flat(plain(entry.cell))]


def _printed() -> list[str]:
    """Return the tables of the papers, PAPER:NUMBER."""
    from gpas_cli.report.papers import SEPARATOR, numbers

    return [f"{name}{SEPARATOR}{number}" for name, pack in papers_known().items() for number in numbers(pack)]


def _conditions() -> list[str]:
    """Return the conditions AXIS=LABEL that some cell fulfils, also where cells need a plugin, which is not run."""
    expansion = Expansion(experiments())
    cells = [labels for grid in experiments().grids.values() for labels in expansion.names(grid).values()]
    return list(dict.fromkeys(f"{axis}={spelled(label)}" for labels in cells for axis, label in labels.items()))


def _executors() -> list[str]:
    from gpas_cli.state.view import scheduler_names

    return ["auto", *scheduler_names()]


complete_grid = offer(_grids)
complete_cell = offer(_cells, _keys)
complete_cell_or_grid = offer(lambda: [*_grids(), *_cells()], _keys)
complete_paper = offer(papers_known)
complete_printed = offer(_printed)
complete_table = offer(lambda: [*_grids(), *_printed()], _settings)
complete_where = offer(_conditions)


def _json_alone(asked: bool) -> bool:
    STATE.as_json = asked
    return asked


Names = Annotated[
    list[str] | None,
    typer.Argument(help="Grids in experiments.yaml; by default its default grid.", autocompletion=complete_grid),
]

Cell = Annotated[
    str, typer.Argument(help="grid/name, a unique name, or the start of a key.", autocompletion=complete_cell)
]

Cells = Annotated[
    list[str],
    typer.Argument(
        help="Cells (grid/name, a unique name, or the start of a key) and settings for all of them: optim.lr=3e-3.",
        autocompletion=offer(_cells, _settings, _keys),
    ),
]

NamesAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids in experiments.yaml (by default its default grid) and settings for every cell: optim.lr=3e-3.",
        autocompletion=offer(_grids, _settings),
    ),
]

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings to change in the cell, as in experiments.yaml: optim.lr=3e-3 gate=gpas.",
        autocompletion=offer(_settings),
    ),
]

CellsOrGrids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CELL|GRID...",
        help="Cells (grid/name, a unique name, or the start of a key), or grids for all of their cells.",
        autocompletion=complete_cell_or_grid,
    ),
]

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Select cells: gate=gpas, seed!=2 or optim.lr=1e-3. Repeat to narrow further.",
        autocompletion=complete_where,
    ),
]


Executor = Annotated[
    str,
    typer.Option("--executor", help="auto, local, slurm or a registered scheduler.", autocompletion=offer(_executors)),
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON with a schema number instead of text.", callback=_json_alone)
]

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would run.")]
Shrink = Annotated[
    bool,
    typer.Option("--shrink", help="Smoke test: train each cell in tiny form for two updates; results are kept apart."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="COMMAND",
        envvar="GPAS_NOTIFY",
        help=f"Run this command at the end, with a summary line in ${SUMMARY_VARIABLE} and JSON on standard input.",
    ),
]


class RunOptions(Frozen, kw_only=True):
    """The scheduler, the number of jobs at once (None: no limit), and how the command confirms, waits and reports."""

    executor: Executor = "auto"
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Run at most this many jobs at once; on SLURM, of each array."),
    ] = None
    wait: Annotated[bool, typer.Option("--wait", help="SLURM: wait until all jobs have ended.")] = False
    stop_at_first_failure: Annotated[
        bool,
        typer.Option(
            "--stop-at-first-failure", help="Start nothing else once a cell has failed; on SLURM, of its array."
        ),
    ] = False
    yes: Yes = False
    notify: Notify = None
    as_json: AsJson = False


class Sinks(Frozen):
    """Where trainings also log to, in place of what the grid's `watch` names."""

    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write TensorBoard events to this folder.")
    ] = None
    wandb: Annotated[str | None, typer.Option("--wandb", help="Also log to this Weights & Biases project.")] = None

    def added_to(self, entry: Entry) -> Entry:
        """Return the entry with these in place of its own."""
        folder = str(self.tensorboard.absolute()) if self.tensorboard else entry.watch.tensorboard
        return replace(entry, watch=replace(entry.watch, tensorboard=folder, wandb=self.wandb or entry.watch.wandb))


def with_grouped_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the fields of each parameter that is a dataclass as command-line options in its place."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}
    fields = {name: inspect.signature(group).parameters for name, group in groups.items()}

    @functools.wraps(command)
    def with_options(**words: Any) -> None:
        given = {name: {field: words.pop(field) for field in own if field in words} for name, own in fields.items()}
        command(**words, **{name: groups[name](**own) for name, own in given.items()})

    # Typer reads the signature and the annotations of a command.
    own = [parameter for parameter in parameters if parameter.name not in groups]
    signature = inspect.Signature([*own, *(field for group in fields.values() for field in group.values())])
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    with_options.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return with_options


class WithUsual(TyperGroup):
    """A command group that passes words to its first command unless they begin with the name of another one.

    An option that only another command of the group has is refused with the name of that command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args[0] not in known if args else not (self.no_args_is_help or ctx.resilient_parsing):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, words = super().resolve_command(ctx, args)
        for word in words[: words.index("--") if "--" in words else None]:
            option = word.partition("=")[0]
            owners = [other for other, one in self.commands.items() if option in _options(one)]
            if owners and name not in owners:
                ctx.fail(f"{option} is an option of `{ctx.command_path} {owners[0]}`")
        return name, command, words

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands, the grids and the options of the first command that begin with `incomplete`."""
        item = type(super().shell_complete(ctx, "")[0])
        usual = next(iter(self.commands.values()))
        names = [*complete_grid(incomplete), *(name for name in _options(usual) if name.startswith(incomplete or " "))]
        return [*super().shell_complete(ctx, incomplete), *map(item, names)]


def _options(command: Any) -> Sequence[str]:
    """Return the words of a command's options that begin with --."""
    return [word for parameter in command.params for word in parameter.opts if word.startswith("--")]
