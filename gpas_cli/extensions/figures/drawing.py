"""What the commands that draw share, such as where they put their figures: files, the terminal, JSON."""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import say
from gpas_cli.cli.options import AsJson, complete_where
from gpas_cli.errors import GpasError, nearest
from gpas_cli.extensions.figures.figure import Figure, PlotJson
from gpas_cli.extensions.figures.plot import Sheet, check_formats, save
from gpas_cli.extensions.figures.terminal_plot import Plot
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, spelled
from gpas_cli.report.labels import has_labels
from gpas_cli.structure import FLAT, DocumentJson, Frozen

_FILES = (".svg", ".png")  # of the files for a path without a suffix


class Output(Frozen, kw_only=True):
    """Where figures go and how they look. As text in the terminal or as JSON, they are written to files only if `out`
    names them.
    """

    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write, in the format of its suffix (.pdf, .svg, .png); without a suffix, SVG and PNG. "
            "Repeat for more files.",
        ),
    ] = None
    terminal: Annotated[
        bool, typer.Option("--terminal", "-t", help="Draw as text here; write files only if -o names them.")
    ] = False
    title: Annotated[
        str | None, typer.Option("--title", help="Title above the plot; by default what it shows. '' for none.")
    ] = None
    size: Annotated[
        tuple[float, float] | None,
        typer.Option("--size", help="Width and height in inches; by default one or two columns of a paper.", min=1),
    ] = None
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


Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="AXIS=LABEL",
        help="The cells to compare with, which are otherwise equal: gate=none. Repeat for more axes.",
        autocompletion=complete_where,
    ),
]
From = Annotated[
    float, typer.Option("--from", metavar="UPDATE", help="The first update to draw.", min=0, show_default=False)
]


class FigureJson(DocumentJson):
    """`gpas figure curves --json` and `gpas figure envelope --json`; a picture is drawn only if --out names a file."""

    plot: PlotJson = field(metadata=FLAT)
    what: str
    files: Annotated[Sequence[Path], "the pictures written"]
    cells: Annotated[Sequence[str], "cells that have recorded the curve"]
    missing: Annotated[Sequence[str], "cells that have not"]


def base_of(against: Sequence[str] | None, chosen: Sequence[Entry]) -> dict[str, Label]:
    """Return the labels of --against by axis. Raises GpasError for a word that is not AXIS=LABEL of a cell."""
    found: dict[str, Label] = {}
    for word in against or ():
        axis, _, label = word.partition("=")
        if not (axis and label):
            raise GpasError(f"--against {word} is not AXIS=LABEL, such as gate=none")
        labels = {spelled(entry.axes[axis]): entry.axes[axis] for entry in chosen if axis in entry.axes}
        found[axis] = labels.get(label, label)
        if not any(has_labels(entry, {axis: found[axis]}) for entry in chosen):
            axes = dict.fromkeys(name for entry in chosen for name in entry.axes)
            unknown = f"no cell has {axis} '{label}'" if labels else f"no axis '{axis}'"
            hint = nearest(label, labels) if labels else nearest(axis, axes)
            raise GpasError(f"--against {word}: {unknown}; {hint}")
    return found
