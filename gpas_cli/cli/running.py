"""What commands that run cells share: their options, the plan, smoke tests, and how a run ends.

A run ends with its JSON document, the --notify command and an exit code.
"""

import dataclasses
import functools
import inspect
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NoReturn, NotRequired, get_type_hints

import typer

from gpas_cli.cli.console import STATE, print_json, say
from gpas_cli.cli.options import AsJson, Executor, Yes
from gpas_cli.cli.selection import catalogue, experiments, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import ShrunkJson
from gpas_cli.cli.views.progress import SubmittedJson, submitted_json
from gpas_cli.data import stdlib
from gpas_cli.data.stdlib import write_sample
from gpas_cli.documents import CellNameJson, CellStateJson, DocumentJson, NumberJson, filled, plain
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.resources import from_site, site_path
from gpas_cli.grid.select import names_in
from gpas_cli.grid.variant import ShrunkSetting, TinyText, changes, one_seed, shrink
from gpas_cli.plan.plan import Plan, plan
from gpas_cli.report.tables.table_place import RETRIED
from gpas_cli.schedule.scheduler import Item, RunSummary, Scheduler, Submitted, exit_code, scheduler_named
from gpas_cli.spec.stage import called
from gpas_cli.state.claims import LOCAL
from gpas_cli.store.snapshot import current_code
from gpas_cli.words import count, listed

_MOST_VALUES = 4  # of a setting, in the list of what was shrunk
_NOTIFY_SECONDS = 60.0  # time limit of the --notify command
_SUMMARY_VARIABLE = "GPAS_SUMMARY"


Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="COMMAND",
        envvar="GPAS_NOTIFY",
        help=f"Run this command at the end, with a summary line in ${_SUMMARY_VARIABLE} and JSON on standard input.",
    ),
]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Run at most this many jobs at once; on SLURM, of each array.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would run.")]
_Wait = Annotated[bool, typer.Option("--wait", help="SLURM: wait until all jobs have ended.")]
Shrink = Annotated[
    bool,
    typer.Option(
        "--shrink", help="Smoke test: train a tiny form of each cell for two updates here; its results are kept apart."
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The scheduler, the number of jobs at once (None: no limit), and how the command confirms, waits and reports."""

    executor: Executor = "auto"
    jobs: _Jobs = None
    wait: _Wait = False
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


def plan_for(scheduler: Scheduler, chosen: list[Entry], retry: Collection[str] = ()) -> Plan:
    """Return the plan of running these cells with a scheduler, with the jobs that it runs before them."""
    here = project()
    prepare = partial(scheduler.prepare, here)
    return plan(here.runs, chosen, retry=retry, machine=scheduler.machine(), project=here, prepare=prepare)


def print_site(chosen: list[Entry]) -> None:
    """Print which resources of the cells' jobs come from the site's profile, if there is one."""
    site = experiments().site
    names = {
        name: None
        for entry in (chosen if site else ())
        for stage in entry.cell.stages
        for name, _ in from_site(site, entry.axes.get("size"), stage.kind, entry.resources_of(stage))
    }
    if names:
        say(f"from the site's profile, {site_path()}: {', '.join(names)}", style="dim", soft_wrap=True)


class ShrunkCells:
    """The cells of a command in tiny form, the project that they run in, and the settings that were shrunk.

    Of cells that differ only in the seed, one is taken, unless a condition in `where` names seeds. The project is
    in a folder of the code's version, so that a change of the code runs all cells again.
    """

    def __init__(self, chosen: Sequence[Entry], where: Sequence[str] | None) -> None:
        whole = list(chosen) if "seed" in names_in(where or ()) else one_seed(chosen)
        self.left_out = len(chosen) - len(whole)
        here = project()
        root = here.config.parent
        self.folder = root / ".gpas" / "shrunk" / current_code()
        # The project of shrunk cells shares only the experiments file with this one.
        own: dict[str, Any] = {
            "runs": self.folder / "runs",
            "cache": self.folder / "cache",
            "database": str(self.folder / "gpas.db"),
        }
        self.project = replace(here, **own)
        names = (stdlib.TRAINING_TEXT, stdlib.VALIDATION_TEXT, stdlib.FINETUNING_RECORDS)
        text = TinyText(*(str((self.folder / name).relative_to(root)) for name in names))
        self.entries = shrink(whole, text, catalogue())
        self.changes: list[ShrunkSetting] = changes(whole, self.entries)

    def write_text(self) -> None:
        """Write the text that the cells read. Raises DataError if the standard library's source is not installed."""
        write_sample(self.folder)

    def plan(self) -> Plan:
        """Return the plan of running the cells, as if their text were written."""
        machine = scheduler_named(LOCAL, self.project.runs).machine()
        return plan(self.project.runs, self.entries, retry=RETRIED, machine=machine)

    def print(self) -> None:
        """Print the settings that were shrunk, before and after."""
        rows = [(change.setting, _shown(change.before), _shown(change.after)) for change in self.changes]
        say(Columns(("setting", "declared", "shrunk"), rows))
        text = "The text and the records are a few pages of Python's standard library; no data set is downloaded."
        seeds = f" {count(self.left_out, 'cell')} with further seeds left out; --where seed=... asks for them."
        say(text + (seeds if self.left_out else ""))
        say(f"Results are in a folder of their own, {self.folder}.")

    def json(self) -> ShrunkJson:
        """Return what was shrunk, for `--json`."""
        return {"folder": str(self.folder), "left_out": self.left_out, "settings": self.changes}


def require_local(executor: str) -> None:
    """Raise GpasError if shrunk cells are asked to run elsewhere than on this machine."""
    if executor not in ("auto", "local"):
        raise GpasError(f"--shrink runs on this machine; leave out --executor {executor}")


def _shown(values: Sequence[Any], most: int = _MOST_VALUES) -> str:
    return listed([_spelled(value) for value in values], most)


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return f"[{_shown(value, 2)}]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value) or "''"


class _RunCellJson(CellNameJson):
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
    cells: list[_RunCellJson]
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
        say("--notify: the jobs are still running; add --wait to be notified when they end", style="yellow")
    elif notify:
        run_notify(notify, document, one_line(document))
    raise typer.Exit(code)


def _document(summary: RunSummary | None, submitted: Submitted | None, code: Exit) -> RunJson:
    endings = vars(summary).items() if summary else ()
    cells = [_cell(item, ending) for ending, items in endings for item in items]
    counts = dict(Counter("skipped" if cell["skipped"] else cell["state"] for cell in cells))
    sent = submitted_json(submitted) if submitted else None
    return RunJson(schema=1, exit_code=code.value, counts=counts, cells=cells, submitted=sent)


def one_line(run: RunJson) -> str:
    """Return the document `Run` as a line: "gpas: 20 done, 2 failed of quickstart"."""
    counts = ", ".join(f"{number} {name}" for name, number in run["counts"].items())
    grids = ", ".join(dict.fromkeys(cell["grid"] for cell in run["cells"]))
    return f"gpas: {counts or 'nothing to do'}{f' of {grids}' if grids else ''}"


def run_notify(command: str, document: DocumentJson, line: str) -> None:
    """Run the --notify command. Names from the experiments file reach it only as data, never as shell text."""
    environment = {**os.environ, _SUMMARY_VARIABLE: line}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=json.dumps(plain(document), allow_nan=False), text=True,
            capture_output=True, timeout=_NOTIFY_SECONDS,
            env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        say(f"warning: --notify: {error}", style="yellow")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        say(f"warning: --notify: the command exited with code {done.returncode}: {reason}", style="yellow")


def _cell(item: Item, ending: str) -> _RunCellJson:
    state = called(item.status.state, item.status.metrics)
    return filled(_RunCellJson, item, item.status, state=state, skipped=ending == "skipped")
