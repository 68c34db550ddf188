"""`gpas diff`: what differs between two cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from rich.text import Text

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, complete_cell
from gpas_cli.cli.selection import find_cells, project, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.documents import DocumentJson, NumberJson
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.select import find_preferring
from gpas_cli.origin.diff import CodeDifference, Comparison, CurveDifference, Point, Side, StageDifference, compare
from gpas_cli.project import CONFIG_NAME, Project
from gpas_cli.words import count

_ATTEMPT = re.compile(r"(.+)@([0-9]+)")
_HELP = "grid/name, a unique name, or the start of a key; NAME@2 is its second attempt."


class _ChangeJson(TypedDict):
    """A setting, or a fact of the environment, that differs; null where it does not exist."""

    setting: str
    a: Any
    b: Any


class _PairJson(TypedDict):
    """A number of both; null where it is not recorded."""

    a: NumberJson | None
    b: NumberJson | None


class _PointPairJson(_PairJson):
    """A point of two curves."""

    step: int


class _CurvePairJson(TypedDict):
    """A curve of both, at the updates that both have."""

    name: str
    common: Annotated[int, "updates that both have"]
    points: Annotated[list[int], "the points of A and of B"]
    first: Annotated[_PointPairJson | None, "where they first differ; null if they are equal"]
    largest: Annotated[_PointPairJson | None, "where they differ most"]
    last: Annotated[_PointPairJson | None, "the last common update"]


class _ComparedAttemptJson(TypedDict):
    """The attempt of one of the two that is compared."""

    key: Annotated[str, "content key of the stage"]
    attempt: int
    outcome: Annotated[str | None, "null while it is running, or without an outcome"]
    code: Annotated[str, "version of the code"]
    commit: str


class _ComparedStageJson(TypedDict):
    """A stage that both have been tried at."""

    stage: str
    a: _ComparedAttemptJson
    b: _ComparedAttemptJson
    metrics: dict[str, _PairJson]
    curves: list[_CurvePairJson]
    environment: Annotated[list[_ChangeJson], "what differs of machine, text and versions of libraries"]


class _ChangedFileJson(TypedDict):
    """A file of the package that differs."""

    path: str
    added: Annotated[int, "lines"]
    removed: Annotated[int, "lines"]


class _ChangedCodeJson(TypedDict):
    """Two versions of the code."""

    a: str
    b: str
    files: Annotated[list[_ChangedFileJson] | None, "null if a copy is gone"]


class _UntriedJson(TypedDict):
    """A stage that only one of the two has been tried at."""

    stage: str
    only: str


class ComparisonJson(DocumentJson):
    """`gpas diff --json`."""

    a: str
    b: str
    settings: list[_ChangeJson]
    stages: list[_ComparedStageJson]
    code: Annotated[list[_ChangedCodeJson], "empty if the versions are the same"]
    untried: list[_UntriedJson]
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
    code: Annotated[bool, typer.Option("--code", help="Print the lines of the code that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two cells: settings, final numbers, curves (where they first differ), code and environment.

    NAME@2 is the second attempt at the last stage of a cell that has been tried. With --in, B is a cell of another
    project, by default the one with the same name.

    Example: [bold]gpas diff pre-s1 pre-gpas-s1[/bold]

    Example: [bold]gpas diff pre-s1@1 pre-s1@2[/bold]

    Example: [bold]gpas diff pre-s1 --in ../copy[/bold]
    """
    if not other and folder is None:
        raise GpasError("name a second cell, an attempt (NAME@2), or another project with --in")
    theirs = Project.find(folder / CONFIG_NAME, environ={}) if folder else project()
    with ExitStack() as opened:
        sides = [opened.enter_context(_side(one, project(), None)),
                 opened.enter_context(_side(other or one, theirs, folder))]  # fmt: skip
        found = compare(sides[0], sides[1])
    if as_json:
        print_json(_document(found))
    else:
        _print(found, code)
    raise typer.Exit(Exit.DONE if found.complete else Exit.INCOMPLETE)


@contextmanager
def _side(text: str, where: Project, folder: Path | None) -> Iterator[Side]:
    """Yield what is recorded of the cell, or of the attempt, that `text` names; `folder` is that of another project."""
    match = _ATTEMPT.fullmatch(text)
    name = match[1] if match else text
    entry = _find_elsewhere(name, where) if folder else find_cells([name])[0]
    with recorded_of([entry], where) as known:
        if known.engine is None:
            raise GpasError(
                f"{entry.id} has not been run in {where.config.parent}; `gpas run grid {entry.grid}` runs it"
            )
        yield Side(entry, known.engine, where.runs, int(match[2]) if match else None)


def _find_elsewhere(name: str, where: Project) -> Entry:
    declared = load(where.config)
    return find_preferring(declared.default, expand(declared, list(declared.grids)), name)


def _print(found: Comparison, with_code: bool) -> None:
    say(Text.assemble((found.titles[0], "bold"), " -> ", (found.titles[1], "bold")))
    _print_rows("settings", ("", "A", "B"), [(d.setting, *d.texts) for d in found.settings])
    if not found.settings:
        say("  the settings are the same")
    for stage in found.stages:
        _print_stage(stage)
    for kind, title in found.untried:
        say(f"  only {title} has been tried at its {kind}")
    for code in found.code:
        _print_code(code, with_code)


def _print_stage(stage: StageDifference) -> None:
    ends = [f"{key} attempt {number}: {outcome or 'no outcome'}"
            for key, number, outcome in zip(stage.keys, stage.attempts, stage.outcomes, strict=True)]  # fmt: skip
    say(f"{stage.kind}: {ends[0]} -> {ends[1]}")
    metrics = [(name, _text(a), _text(b), "-" if a is None or b is None else f"{b - a:+.6g}")
               for name, (a, b) in stage.metrics.items() if a != b]  # fmt: skip
    _print_rows("final numbers", ("", "A", "B", "B - A"), metrics)
    curves = [(each.name, str(each.common), _at(each.first), _at(each.largest), _at(each.last))
              for each in stage.curves]  # fmt: skip
    _print_rows(
        "curves", ("", "common updates", "first difference", "largest difference", "last common update"), curves
    )
    commits = [commit[:12] or "no git" for commit in stage.commits]
    same = "the same code" if stage.versions[0] == stage.versions[1] else "code"
    said = stage.versions[0] if stage.versions[0] == stage.versions[1] else " -> ".join(stage.versions)
    say(f"  {same}: {said}, commit {' -> '.join(dict.fromkeys(commits))}")
    _print_rows("environment", ("", "A", "B"), [(d.setting, *d.texts) for d in stage.environment])


def _print_rows(title: str, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        numbers = frozenset(headers[1:]) if title != "settings" and title != "environment" else frozenset()
        indented = [(f"  {name}", *others) for name, *others in rows]
        droppable = ("largest difference", "last common update")
        say(Columns((f"  {title}", *headers[1:]), indented, right=numbers, droppable=droppable))


def _print_code(code: CodeDifference, with_lines: bool) -> None:
    versions = " -> ".join(code.versions)
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


def _at(point: Point | None) -> str:
    return "none" if point is None else f"{point[0]}: {point[1]:.6g}, {point[2]:.6g}"


def _document(found: Comparison) -> ComparisonJson:
    return {
        "schema": 1,
        "a": found.titles[0],
        "b": found.titles[1],
        "settings": [{"setting": d.setting, "a": d.base, "b": d.own} for d in found.settings],
        "stages": [_stage_json(stage) for stage in found.stages],
        "code": [_code_json(code) for code in found.code],
        "untried": [{"stage": kind, "only": title} for kind, title in found.untried],
        "complete": found.complete,
    }


def _stage_json(stage: StageDifference) -> _ComparedStageJson:
    sides = zip(stage.keys, stage.attempts, stage.outcomes, stage.versions, stage.commits, strict=True)
    a, b = (
        _ComparedAttemptJson(key=key, attempt=attempt, outcome=outcome, code=code, commit=commit)
        for key, attempt, outcome, code, commit in sides
    )
    return {
        "stage": stage.kind,
        "a": a,
        "b": b,
        "metrics": {name: {"a": own, "b": theirs} for name, (own, theirs) in
                    stage.metrics.items()},
        "curves": [_curve_json(curve) for curve in stage.curves],
        "environment": [{"setting": d.setting, "a": d.base, "b": d.own} for d in stage.environment],
    }  # fmt: skip


def _curve_json(curve: CurveDifference) -> _CurvePairJson:
    return {"name": curve.name, "common": curve.common, "points": list(curve.lengths),
            "first": _point_json(curve.first), "largest": _point_json(curve.largest),
            "last": _point_json(curve.last)}  # fmt: skip


def _point_json(point: Point | None) -> _PointPairJson | None:
    return None if point is None else {"step": point[0], "a": point[1], "b": point[2]}


def _code_json(code: CodeDifference) -> _ChangedCodeJson:
    files: list[_ChangedFileJson] | None = None if code.files is None else [
        {"path": file.path, "added": file.added, "removed": file.removed} for file in code.files
    ]  # fmt: skip
    return {"a": code.versions[0], "b": code.versions[1], "files": files}
