"""`gpas init`: make a project."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gpas_cli.cli.console import say
from gpas_cli.errors import GpasError
from gpas_cli.files import replace_file
from gpas_cli.project import CONFIG_NAME, packaged, utf8_path

_IGNORED = ("/runs/", "/cache/", "/gpas.db*", "/.gpas/")


def init(
    directory: Annotated[Path, typer.Argument(help="The directory to write to.")] = Path(),
    papers: Annotated[bool, typer.Option("--papers", help="Declare the experiments of the papers, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing experiments.yaml.")] = False,
) -> None:
    """Write an experiments.yaml whose grid trains in minutes.

    Also writes a .gitignore for results.

    With --papers, the file declares the grids of the papers, too, at full size and in minutes. The BERT-large in which
    The Curse of Depth removes layers is not among them.

    Example: gpas init my-project
    """
    target = directory / CONFIG_NAME
    utf8_path(target.absolute())  # no other command would read it
    if target.exists() and not force:
        raise GpasError(f"{target} exists; --force replaces it")
    directory.mkdir(parents=True, exist_ok=True)
    source = packaged(CONFIG_NAME) if papers else Path(__file__).with_suffix(".yaml")
    replace_file(target.resolve(), source.read_bytes())
    ignore = directory / ".gitignore"
    lines = ignore.read_text("utf-8", "surrogateescape").splitlines() if ignore.exists() else []
    if missing := [line for line in _IGNORED if line not in lines]:
        text = "".join(f"{line}\n" for line in [*lines, *missing])
        replace_file(ignore.resolve(), text.encode("utf-8", "surrogateescape"))
    say(f"Wrote {target}.")
    enter = (f"cd {shlex.quote(str(directory))}", "bold") if directory.resolve() != Path.cwd() else None
    steps = [*((enter, ", then ") if enter else ()), ("gpas plan", "bold"), ", then ", ("gpas run grid", "bold"), "."]
    say(Text.assemble("Next: ", *steps), soft_wrap=True)
