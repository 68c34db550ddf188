"""`gpas diff`: what differs between two cells."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, complete_cell
from gpas_cli.cli.selection import find_cells, project, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.select import find_preferring
from gpas_cli.origin import diff as origin
from gpas_cli.project import CONFIG_NAME, Project
from gpas_cli.structure import Document, DocumentJson
from gpas_cli.words import count

_ATTEMPT = re.compile(r"(.+)@([0-9]+)")
_HELP = "grid/name, a unique name, or the start of a key; NAME@2 is its second attempt."


class _UntriedJson(Document):
    """A stage with attempts in only one of the two."""

    stage: str
    only: str


class ComparisonJson(DocumentJson):
    """`gpas diff --json`."""

    a: str
    b: str
    settings: Sequence[origin.Difference]
    stages: Sequence[origin.StageDifference]
    code: Annotated[Sequence[origin.CodeDifference], "empty if the versions are the same"]
    untried: Sequence[_UntriedJson]
    complete: Annotated[bool, "whether both have a result"]


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help=f"A cell: {_HELP}", autocompletion=complete_cell)],
    other: Annotated[
        str,
        typer.Argument(metavar="B", help="Another cell; with --in, by default the same.", autocompletion=complete_cell),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option("--in", metavar="FOLDER", help="B is in the project in this folder.")
    ] = None,
    with_code: Annotated[bool, typer.Option("--code", help="Print the lines of the code that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how two cells differ: settings, numbers, curves, code.

    NAME@2 is the second attempt at the last stage of a cell that has attempts. With --in, B is a cell of another
    project, by default the one with the same name.

    Example: gpas diff pre-s1 pre-gpas-s1

    Example: gpas diff pre-s1@1 pre-s1@2

    Example: gpas diff pre-s1 --in ../copy
    """
    if not other and folder is None:
        raise GpasError("name a second cell, an attempt (NAME@2), or another project with --in")
    theirs = Project.find(folder / CONFIG_NAME, environ={}) if folder else project()
    with ExitStack() as opened:
        first = opened.enter_context(_side(one, project()))
        second = opened.enter_context(_side(other or one, theirs, first.entry.grid if folder else None))
        found = origin.compare(first, second)
    if as_json:
        a, b = found.titles
        document = ComparisonJson(
            a=a, b=b, settings=found.settings, stages=found.stages, code=found.code,
            untried=[_UntriedJson(stage=kind, only=title) for kind, title in found.untried], complete=found.complete,
        )  # fmt: skip
        print_json(document)
    else:
        _print(found, with_code)
    raise typer.Exit(Exit.DONE if found.complete else Exit.INCOMPLETE)


@contextmanager
def _side(text: str, where: Project, grid: str | None = None) -> Iterator[origin.Side]:
    """Yield the records of the cell, or of the attempt, that `text` names.

    grid: the grid of another project whose cells take precedence over its default grid's.
    """
    match = _ATTEMPT.fullmatch(text)
    name = match[1] if match else text
    if grid is None:
        (entry,) = find_cells([name])
    else:
        declared = load(where.config)
        usual = grid if grid in declared.grids else declared.default
        entry = find_preferring(usual, expand(declared, declared.available), name)
    with recorded_of([entry], where) as known:
        if known.engine is None:
            message = f"{entry.id} has not been run in {where.config.parent}; `gpas run grid {entry.grid}` runs it"
            raise GpasError(message)
        yield origin.Side(entry, known.engine, where.runs, int(match[2]) if match else None)


def _print(found: origin.Comparison, with_code: bool) -> None:
    say(Text.assemble((found.titles[0], "bold"), " -> ", (found.titles[1], "bold")))
    _print_rows("settings", ("", "A", "B"), [(d.setting, *d.texts) for d in found.settings])
    if not found.settings:
        say("  the settings are the same")
    for stage in found.stages:
        _print_stage(stage)
    for kind, title in found.untried:
        say(f"  only {title} has an attempt at its {kind}")
    for code in found.code:
        _print_code(code, with_code)


def _print_stage(stage: origin.StageDifference) -> None:
    sides = (stage.a, stage.b)
    ends = (f"{one.key} attempt {one.attempt}: {one.outcome or 'no outcome'}" for one in sides)
    say(f"{stage.stage}: {' -> '.join(ends)}")
    metrics = [(name, _text(of.a), _text(of.b), "-" if of.a is None or of.b is None else f"{of.b - of.a:+.6g}")
               for name, of in stage.metrics.items() if of.a != of.b]  # fmt: skip
    _print_rows("final numbers", ("", "A", "B", "B - A"), metrics)
    curves = [(each.name, str(each.common), _at(each.first), _at(each.largest), _at(each.last))
              for each in stage.curves]  # fmt: skip
    _print_rows(
        "curves", ("", "common updates", "first difference", "largest difference", "last common update"), curves
    )
    codes = dict.fromkeys(one.code for one in sides)
    commits = dict.fromkeys(one.commit[:12] or "no git" for one in sides)
    same = "the same code" if len(codes) == 1 else "code"
    say(f"  {same}: {' -> '.join(codes)}, commit {' -> '.join(commits)}")
    _print_rows("environment", ("", "A", "B"), [(d.setting, *d.texts) for d in stage.environment])


def _print_rows(title: str, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        numbers = frozenset(headers[1:]) if title != "settings" and title != "environment" else frozenset()
        indented = [(f"  {name}", *others) for name, *others in rows]
        droppable = ("largest difference", "last common update")
        say(Columns((f"  {title}", *headers[1:]), indented, right=numbers, droppable=droppable))


def _print_code(code: origin.CodeDifference, with_lines: bool) -> None:
    versions = f"{code.a} -> {code.b}"
    if code.files is None:
        say(f"code {versions}: a copy is gone, so the files cannot be compared")
        return
    say(f"code {versions}: {count(len(code.files), 'file')} differ" + ("" if len(code.files) != 1 else "s"))
    for file in code.files:
        say(f"  {file.path}  +{file.added} -{file.removed}")
        if with_lines:
            say(file.text)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _at(point: origin.Point | None) -> str:
    return "none" if point is None else f"{point.step}: {point.a:.6g}, {point.b:.6g}"
