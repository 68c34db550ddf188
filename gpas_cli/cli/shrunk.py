"""`gpas run grid --shrink` and `gpas plan --shrink`: cells in tiny form, in a project of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpas_cli.cli.console import console
from gpas_cli.cli.run_options import RETRIED
from gpas_cli.cli.selection import catalogue, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import ShrunkJson
from gpas_cli.data import stdlib
from gpas_cli.data.stdlib import write_sample
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.select import names_in
from gpas_cli.grid.variant import ShrunkSetting, TinyText, changes, one_seed, shrink
from gpas_cli.plan.plan import Plan, plan
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import scheduler_named
from gpas_cli.state.claims import LOCAL
from gpas_cli.store.snapshot import current_code
from gpas_cli.words import count, listed

Shrink = Annotated[
    bool,
    typer.Option(
        "--shrink", help="Smoke test: train a tiny form of each cell for two updates here; its results are kept apart."
    ),
]
MOST_VALUES = 4  # of a setting, in the list of what was shrunk


class ShrunkCells:
    """The cells of a command in tiny form, the project that they run in, and the settings that were shrunk.

    Of cells that differ only in the seed, one is taken, unless a condition in `where` names seeds. The project is
    in a folder of the code's version, so that a change of the code runs all cells again.
    """

    def __init__(self, chosen: Sequence[Entry], where: Sequence[str] | None) -> None:

        whole = list(chosen) if "seed" in names_in(where or ()) else one_seed(chosen)
        self.left_out = len(chosen) - len(whole)
        self.project = _project()
        self.entries = shrink(whole, _text(self.project), catalogue())
        self.changes: list[ShrunkSetting] = changes(whole, self.entries)

    def write_text(self) -> None:
        """Write the text that the cells read. Raises DataError if the standard library's source is not installed."""

        write_sample(_folder(self.project))

    def plan(self) -> Plan:
        """Return the plan of running the cells, as if their text were written."""

        machine = scheduler_named(LOCAL, self.project.runs).machine()
        return plan(self.project.runs, self.entries, retry=RETRIED, machine=machine)

    def print(self) -> None:
        """Print the settings that were shrunk, before and after."""

        rows = [(change.setting, _shown(change.before), _shown(change.after)) for change in self.changes]
        console().print(Columns(("setting", "declared", "shrunk"), rows))
        text = "The text and the records are a few pages of Python's standard library; no data set is downloaded."
        seeds = f" {count(self.left_out, 'cell')} with further seeds left out; --where seed=... asks for them."
        console().print(text + (seeds if self.left_out else ""), markup=False)
        console().print(f"Results are in a folder of their own, {_folder(self.project)}.", markup=False)

    def json(self) -> ShrunkJson:
        """Return what was shrunk, for `--json`."""
        return {
            "folder": str(_folder(self.project)),
            "left_out": self.left_out,
            "settings": self.changes,
        }


def require_local(executor: str) -> None:
    """Raise GpasError if shrunk cells are asked to run elsewhere than on this machine."""
    if executor not in ("auto", "local"):
        raise GpasError(f"--shrink runs on this machine; leave out --executor {executor}")


def _project() -> Project:
    """Return the project of shrunk cells, which shares only the experiments file with this one."""

    here = project()
    folder = here.config.parent / ".gpas" / "shrunk" / current_code()
    return replace(here, runs=folder / "runs", cache=folder / "cache", database=str(folder / "gpas.db"))


def _folder(here: Project) -> Path:
    return here.runs.parent


def _text(here: Project) -> Any:

    folder = _folder(here).relative_to(here.config.parent)
    names = (stdlib.TRAINING_TEXT, stdlib.VALIDATION_TEXT, stdlib.FINETUNING_RECORDS)
    return TinyText(*(str(folder / name) for name in names))


def _shown(values: Sequence[Any]) -> str:
    return listed([_spelled(value) for value in values], MOST_VALUES)


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return f"[{listed(value, 2)}]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value) or "''"
