"""`gpas doctor`: check this machine and this project."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gpas_cli import trust as trusted
from gpas_cli.cli.console import STATE, print_json, say
from gpas_cli.cli.options import AsJson
from gpas_cli.doctor.examine import examine
from gpas_cli.errors import Exit
from gpas_cli.project import Project
from gpas_cli.report.checks import report_problems
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.structure import DocumentJson

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


class DiagnosisJson(DocumentJson):
    """`gpas doctor --json`."""

    findings: Sequence[Finding]


def doctor(
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Also check a compute node, with a SLURM job of a few seconds.")
    ] = False,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", metavar="FOLDER", help="Allow plugins and jobs in a folder that others can write to."),
    ] = None,
    distrust: Annotated[
        list[Path] | None, typer.Option("--distrust", metavar="FOLDER", help="Withdraw a --trust.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and this project.

    Checks Python, torch, GPUs, SLURM, the experiments file, the disk, file locks and the database.

    Each problem is printed with its remedy. Exit code 4 if there is a problem.

    A plugin, and the copy of the code that jobs run, are Python with your permissions: read them before --trust.

    Example: gpas doctor

    Example: gpas doctor --trust /shared/project
    """
    for folder in trust or ():
        trusted.trust(folder)
    for folder in distrust or ():
        trusted.distrust(folder)
    if trust or distrust:
        say(f"Wrote {trusted.list_path()}.")
        return
    here = Project.find(STATE.config, required=False)
    findings = list(examine(here, nodes=nodes, check=report_problems))
    if as_json:
        print_json(DiagnosisJson(findings=findings))
    else:
        table = Table(box=None, show_header=False, padding=(0, 1))
        for finding in findings:
            colour = _COLOURS[finding.status]
            remedy = [(f"\n{finding.remedy}", "dim")] if finding.remedy else []
            table.add_row(Text(finding.status, colour), finding.what, Text.assemble(finding.detail, *remedy))
        say(table)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(Exit.FAILED)
