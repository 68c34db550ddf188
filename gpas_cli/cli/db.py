"""`gpas db`: maintain the results database, which can always be rebuilt from the run directories."""

from __future__ import annotations

import typer

from gpas_cli.cli.console import AsJson, Yes, confirm, console, print_json, project
from gpas_cli.errors import Exit
from gpas_cli.words import count

app = typer.Typer(help="Upgrade, check, rebuild or back up the results database.", no_args_is_help=True)


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Upgrade the schema of the database to this version; make a backup first.

    Example: [bold]gpas db upgrade[/bold]
    """
    from gpas_cli.store import maintenance

    backup = maintenance.upgrade(project().database)
    console().print(f"The database is up to date{f'; backup: {backup}' if backup else ''}.", markup=False)
    if as_json:
        print_json(backup=str(backup) if backup else None)


@app.command()
def check(as_json: AsJson = False) -> None:
    """Compare the database with the run directories. Exit code 4 if they disagree.

    Example: [bold]gpas db check[/bold]
    """
    from gpas_cli.store import maintenance

    findings = maintenance.check(project().database, project().runs)
    if as_json:
        print_json(findings=[str(finding) for finding in findings])
    else:
        for finding in findings:
            console().print(f"- {finding}", markup=False)
        if not findings:
            console().print("The database agrees with the run directories.")
    if findings:
        raise typer.Exit(Exit.FAILED)


@app.command()
def rebuild(yes: Yes = False, as_json: AsJson = False) -> None:
    """Rebuild the database from the run directories. The old database is replaced once the new one is complete.

    Example: [bold]gpas db rebuild --yes[/bold]
    """
    from gpas_cli.store import maintenance, session

    confirm(f"Replace {session.name_of(project().database)} by one built from {project().runs}?", yes)
    result = maintenance.rebuild(project().database, project().runs)
    console().print(f"Rebuilt from {count(result.attempts, 'attempt')} in {project().runs}.", markup=False)
    for problem in result.problems:
        console().print(f"- {problem}", markup=False, style="yellow")
    if as_json:
        print_json(attempts=result.attempts, problems=list(result.problems))


@app.command()
def backup(as_json: AsJson = False) -> None:
    """Copy the database to a file beside it, even while it is in use.

    Example: [bold]gpas db backup[/bold]
    """
    from gpas_cli.store import maintenance

    made = maintenance.backup(project().database)
    console().print(f"Backup: {made}", markup=False)
    if as_json:
        print_json(backup=str(made))
