"""Where `gpas figure` puts what it draws: files, the terminal or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.cli.console import console
from gpas_cli.errors import GpasError
from gpas_cli.report.figures.figure import Figure
from gpas_cli.report.figures.terminal_plot import Plot

SUFFIXES = (".svg", ".png")  # of the files for a path without one


@dataclass(frozen=True)
class Output:
    """Where figures go: files, the terminal, JSON. The last two write files only if `out` names them."""

    out: Sequence[Path] | None
    terminal: bool
    title: str | None
    size: tuple[float, float] | None
    as_json: bool

    def places(self, usual: Path) -> list[Path]:
        """Return the files or folders that were asked for, by default `usual`."""
        return list(self.out or ([] if self.as_json or self.terminal else [usual]))

    def files(self, usual: Path) -> list[Path]:
        """Return the files to write; a path without a suffix stands for one in each of SUFFIXES."""
        asked = self.places(usual)
        return [file for path in asked for file in ([path] if path.suffix else _with_suffixes(path))]


def _with_suffixes(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def print_plots(plots: Sequence[Figure]) -> None:
    """Print plots as text."""
    for one in plots:
        if one.is_empty:
            raise GpasError(f"{one.title}: no such curve has been recorded")
        console().print(Plot(one))
