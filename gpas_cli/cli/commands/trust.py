"""`gpas trust`: allow plugins and jobs in folders of other users."""

from pathlib import Path
from typing import Annotated

import typer

from gpas_cli import trust as room
from gpas_cli.cli.console import say
from gpas_cli.errors import GpasError


def trust(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders; everything in them is trusted.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove these folders from the trusted ones.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Print the trusted folders.")] = False,
) -> None:
    """Allow plugins and jobs in folders that another user owns or can write to.

    A plugin, and the copy of the code that jobs run, are Python with your permissions. Read them first.

    Example: [bold]gpas trust /shared/project[/bold]
    """
    if not folders and not show:
        raise typer.BadParameter("name the folder to trust, or add --list")
    if missing := [folder for folder in folders or [] if not remove and not folder.is_dir()]:
        raise GpasError(f"{missing[0]} is not a folder")
    for folder in folders or []:
        (room.distrust if remove else room.trust)(folder)
    if show:
        for folder in room.trusted_folders():
            print(folder)
    else:
        say(f"Wrote {room.list_path()}.")
