"""The options that every command which runs cells has: `gpas run grid`, `gpas retry` and `gpas rerun`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from gpas_cli.cli.options import AsJson, Executor, Yes
from gpas_cli.cli.outcome import Notify

RETRIED = ("failed", "cancelled", "unknown")  # the states in which a stage is run again only on request

Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Run at most this many jobs at once; on SLURM, of each array.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would run.")]
Wait = Annotated[bool, typer.Option("--wait", help="SLURM: wait until all jobs have ended.")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The scheduler, the number of jobs at once (None: no limit), and how the command confirms, waits and reports."""

    executor: Executor = "auto"
    jobs: Jobs = None
    wait: Wait = False
    yes: Yes = False
    notify: Notify = None
    as_json: AsJson = False


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the fields of `RunOptions` as command-line options in place of its parameter `options`."""
    types = get_type_hints(RunOptions, include_extras=True)
    shared = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=types[one.name])
        for one in dataclasses.fields(RunOptions)
    ]
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    own = [parameter for parameter in parameters if parameter.name != "options"]

    @functools.wraps(command)
    def with_options(**words: Any) -> None:
        options = RunOptions(**{one.name: words.pop(one.name) for one in shared})
        command(**words, options=options)

    # Typer reads the signature and the annotations of a command.
    signature = inspect.Signature([*own, *shared])
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    with_options.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return with_options
