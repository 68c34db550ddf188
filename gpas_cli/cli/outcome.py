"""The end of a command that runs cells: its JSON document, the --notify command and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, NoReturn, NotRequired

import typer

from gpas_cli.cli.console import STATE, console, print_json
from gpas_cli.cli.views.plan import ShrunkJson
from gpas_cli.cli.views.progress import SubmittedJson, submitted_json
from gpas_cli.documents import CellNameJson, CellStateJson, DocumentJson, NumberJson, plain
from gpas_cli.errors import Exit
from gpas_cli.schedule.summary import Item, RunSummary, Submitted, exit_code
from gpas_cli.spec.stage import called

NOTIFY_SECONDS = 60.0  # time limit of the --notify command
SUMMARY_VARIABLE = "GPAS_SUMMARY"

Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="COMMAND",
        envvar="GPAS_NOTIFY",
        help=f"Run this command at the end, with a summary line in ${SUMMARY_VARIABLE} and JSON on standard input.",
    ),
]


class RunCellJson(CellNameJson):
    """The result of a run for one cell."""

    state: CellStateJson
    skipped: Annotated[bool, "whether the run ended without starting the cell"]
    reason: Annotated[str, "why there is no result, empty for a result of this run"]
    attempt: int | None
    directory: str | None
    metrics: dict[str, NumberJson]


class RunJson(DocumentJson):
    """`gpas run grid --json`, train, retry and rerun; also what the command of --notify reads.

    Without --wait, jobs that SLURM runs have not ended: `cells` is then empty, `submitted` says what was submitted.
    """

    exit_code: Annotated[int, (0, 3, 4)]
    counts: Annotated[dict[str, int], "the number of cells in each state"]
    cells: list[RunCellJson]
    submitted: SubmittedJson | None
    shrunk: NotRequired[Annotated[ShrunkJson, "with --shrink"]]


def finish(
    summary: RunSummary | None,
    notify: str | None = None,
    submitted: Submitted | None = None,
    shrunk: ShrunkJson | None = None,
) -> NoReturn:
    """Exit with the code of `summary`, or with 0 if `summary` is None because the submitted jobs are still running.

    `shrunk`: what was shrunk for a smoke test.
    """

    code = exit_code(summary) if summary else Exit.DONE
    document = _document(summary, submitted, code)
    if shrunk:
        document["shrunk"] = shrunk
    if STATE.as_json:
        print_json(document)
    if notify and summary is None:
        console().print("--notify: the jobs are still running; add --wait to be notified when they end", style="yellow")
    elif notify:
        run_notify(notify, document, one_line(document))
    raise typer.Exit(code)


def _document(summary: RunSummary | None, submitted: Submitted | None, code: Exit) -> RunJson:
    cells = [_cell(item, ending) for ending, item in _items(summary)] if summary else []
    return {
        "schema": 1,
        "exit_code": code.value,
        "counts": dict(Counter("skipped" if cell["skipped"] else cell["state"] for cell in cells)),
        "cells": cells,
        "submitted": submitted_json(submitted) if submitted else None,
    }


def one_line(run: RunJson) -> str:
    """Return the document `Run` as a line: "gpas: 20 done, 2 failed of quickstart"."""
    counts = ", ".join(f"{number} {name}" for name, number in run["counts"].items())
    grids = ", ".join(dict.fromkeys(cell["grid"] for cell in run["cells"]))
    return f"gpas: {counts or 'nothing to do'}{f' of {grids}' if grids else ''}"


def run_notify(command: str, document: DocumentJson, line: str) -> None:
    """Run the --notify command. Names from the experiments file reach it only as data, never as shell text."""
    environment = {**os.environ, SUMMARY_VARIABLE: line}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=json.dumps(plain(document), allow_nan=False), text=True,
            capture_output=True, timeout=NOTIFY_SECONDS,
            env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        console().print(f"warning: --notify: {error}", style="yellow", markup=False)
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        console().print(
            f"warning: --notify: the command exited with code {done.returncode}: {reason}", style="yellow", markup=False
        )


def _items(summary: RunSummary) -> Iterator[tuple[str, Item]]:
    for ending, items in vars(summary).items():
        for item in items:
            yield ending, item


def _cell(item: Item, ending: str) -> RunCellJson:
    seen = item.status
    return {
        "key": item.entry.key, "grid": item.entry.grid, "name": item.entry.name,
        "state": called(seen.state, seen.metrics),
        "skipped": ending == "skipped", "reason": item.reason, "attempt": seen.attempt,
        "directory": str(seen.directory) if seen.directory else None,
        "metrics": dict(seen.metrics),
    }  # fmt: skip
