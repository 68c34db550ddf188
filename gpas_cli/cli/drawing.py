"""Where the commands that draw put their figures: files, the terminal, JSON; and the figures of the papers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say, working
from gpas_cli.cli.options import AsJson
from gpas_cli.cli.selection import experiments, project, recorded_of
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.extension import known as known_extensions
from gpas_cli.extension import missing
from gpas_cli.grid.declared import Entry
from gpas_cli.report.figures import paper_figures
from gpas_cli.report.figures.figure import Figure, PlotJson, as_json
from gpas_cli.report.figures.plot import Sheet, check_formats, save
from gpas_cli.report.figures.terminal_plot import Plot
from gpas_cli.structure import Document
from gpas_cli.words import count, listed

_FILES = (".svg", ".png")  # of the files for a path without a suffix


_Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write, in the format of its suffix (.pdf, .svg, .png); without a suffix, SVG and PNG. "
        "Repeat for more files.",
    ),
]
_Terminal = Annotated[
    bool, typer.Option("--terminal", "-t", help="Draw as text here; write files only if -o names them.")
]
_Title = Annotated[
    str | None, typer.Option("--title", help="Title above the plot; by default what it shows. '' for none.")
]
_Size = Annotated[
    tuple[float, float] | None,
    typer.Option("--size", help="Width and height in inches; by default one or two columns of a paper.", min=1),
]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where figures go and how they look. As text in the terminal or as JSON, they are written to files only if `out`
    names them.
    """

    out: _Out = None
    terminal: _Terminal = False
    title: _Title = None
    size: _Size = None
    as_json: AsJson = False

    def titled(self, usual: str) -> str:
        """Return the requested title, by default `usual`."""
        return usual if self.title is None else self.title

    def places(self, usual: Path) -> list[Path]:
        """Return the requested files or folders, by default `usual`."""
        return list(self.out or ([] if self.as_json or self.terminal else [usual]))

    def files(self, usual: Path) -> list[Path]:
        """Return the files to write; a path without a suffix stands for one in each of `_FILES`."""
        files = [
            path.with_name(path.name + suffix)
            for path in self.places(usual)
            for suffix in ([""] if path.suffix else _FILES)
        ]
        check_formats(files)
        return files

    def print(self, plots: Sequence[Figure]) -> None:
        """Print plots as text, if requested."""
        for one in plots if self.terminal else ():
            if not one.drawn:
                raise GpasError(f"{one.title}: no such curve has been recorded")
            say(Plot(one))

    def draw(self, plots: Sequence[Figure], paths: Sequence[Path], title: str = "", words: str = "") -> None:
        """Print plots, write them to files below a title, and print the files' names, followed by `words`."""
        self.print(plots)
        if paths:
            save(Sheet(tuple(plots), title), paths, self.size)
            say(f"Wrote {' and '.join(map(str, paths))}{words}.", soft_wrap=True)


_PAPER_FILES = (".pdf", ".svg", ".png")
_SHOWN = 4  # cells that a message names


class _PaperFigureJson(Document):
    """A figure of a paper. Without any panel, `problem` is why."""

    name: str
    paper: str
    number: str
    title: str
    heading: str
    grid: Annotated[str, "the grid whose cells it shows"]
    note: Annotated[str, "how the cells differ from the paper's, such as toy size; empty if they do not"]
    panels: Sequence[PlotJson]
    missing: Annotated[Sequence[str], "cells without a result"]
    unrecorded: Annotated[Sequence[str], "cells with a result that have not recorded the curve"]
    command: Annotated[str, "runs the missing cells; empty if none is missing"]
    problem: str
    files: Annotated[Sequence[Path], "the pictures written"]


class PaperFiguresJson(DocumentJson):
    """`gpas figure paper NAME --json`."""

    figures: Sequence[_PaperFigureJson]


def draw_figures(names: Sequence[str], grid: str, toy: bool, output: Output) -> None:
    """Draw the named figures of the papers, each as PDF, SVG and PNG, and say which cells are missing.

    Raises typer.Exit if a figure has nothing to draw.
    """
    asked = paper_figures.named(names, experiments().packs)
    chosen = [spec for spec in asked if spec.toy or not toy]
    if missing := [spec.name for spec in asked if spec not in chosen]:
        words = f"no grid at quickstart size has the cells of {listed(missing, 8)}"
        if not chosen:
            raise GpasError(f"{words}; leave out --toy")
        say(f"Left out: {words}.")
    paths = _paths(chosen, output)
    requests = _requests(chosen, grid, toy)
    entries = list({entry.id: entry for request in requests for entry in request.entries}.values())
    with recorded_of(entries) as known:
        made = [paper_figures.make(one, known, partial(_computed, "identity_bounds")) for one in requests]
    for figure in made:
        if figure.panels and paths:
            heading = figure.heading if output.title is None else output.title or figure.note
            save(Sheet(figure.panels, heading), paths[figure.name], output.size)
        say(_conclusion(figure, paths), soft_wrap=True)
        output.print(figure.panels)
    if output.as_json:
        print_json(PaperFiguresJson(figures=[_json(figure, paths) for figure in made]))
    if any(not figure.panels for figure in made):
        raise typer.Exit(Exit.INCOMPLETE)


def _paths(chosen: Sequence[paper_figures.FigureSpec], output: Output) -> dict[str, list[Path]]:
    """Return the files of each figure by name. Raises GpasError if several figures would be written to one file."""
    asked = output.places(Path("figures"))
    if not asked:
        return {}
    named_files = [path for path in asked if path.suffix]
    if named_files and len(chosen) > 1:
        raise GpasError(f"{named_files[0]} is one file, and {count(len(chosen), 'figure')} are drawn: name a folder")
    check_formats(named_files)
    folders = [path for path in asked if not path.suffix]
    return {
        spec.name: [*named_files, *(folder / f"{spec.name}{suffix}" for folder in folders for suffix in _PAPER_FILES)]
        for spec in chosen
    }


def _requests(chosen: Sequence[paper_figures.FigureSpec], grid: str, toy: bool) -> list[paper_figures.Request]:
    if grid and toy:
        raise GpasError("--grid and --toy exclude each other")
    if grid and grid not in experiments().grids:
        raise GpasError(f"no grid '{grid}'; {nearest(grid, experiments().grids)}")
    return [paper_figures.request(spec, experiments(), spec.toy if toy else grid) for spec in chosen]


def _conclusion(figure: paper_figures.PaperFigure, paths: dict[str, list[Path]]) -> str:
    """Return what was drawn or why not, and which cells are missing and run by which command."""
    words = [figure.heading + "."]
    if figure.panels and paths:
        words = [f"Wrote {', '.join(map(str, paths[figure.name]))}: {figure.heading}."]
    if figure.problem:
        words.append(f"Not drawn: {figure.problem}.")
    if figure.missing:
        words.append(f"{count(len(figure.missing), 'cell')} without a result: {listed(figure.missing, _SHOWN)}.")
        words.append(f"Run: {figure.command}")
    if not figure.panels and not figure.note and paper_figures.declared_figures(experiments().packs)[figure.name].toy:
        words.append(f"At quickstart size: gpas figure paper {figure.name} --toy")
    if figure.unrecorded:
        words.append(f"No such curve recorded by {listed(figure.unrecorded, _SHOWN)}.")
    return "\n  ".join(words)


def _json(figure: paper_figures.PaperFigure, paths: dict[str, list[Path]]) -> _PaperFigureJson:
    return _PaperFigureJson(
        name=figure.name, paper=figure.paper, number=figure.number, title=figure.title, heading=figure.heading,
        grid=figure.grid, note=figure.note, panels=list(map(as_json, figure.panels)), missing=figure.missing,
        unrecorded=figure.unrecorded, command=figure.command, problem=figure.problem,
        files=paths.get(figure.name, []) if figure.panels else [],
    )  # fmt: skip


def _computed(curve: str, entry: Entry) -> list[float]:
    """Return a curve by layer of a cell that an extension computes.

    Raises GpasError without that extension or torch.
    """
    if reason := missing(curve):
        raise GpasError(reason)
    place = next(one.curves[curve] for one in known_extensions() if curve in one.curves)
    try:
        compute = resolve_name(place)
    except ImportError as error:
        raise GpasError(f"the bounds of this figure need torch, which cannot be imported: {error}") from error
    here, cell = project(), entry.cell
    doing = f"the bounds of {cell.key} at initialisation"
    with working(doing) as show:
        found: list[float] = compute(cell, here.cache, here.config.parent, lambda layer: show(f"{doing}: {layer}"))
        return found
