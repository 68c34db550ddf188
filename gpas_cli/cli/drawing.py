"""Where the commands that draw put their figures: files, the terminal, JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.cli.console import say
from gpas_cli.errors import GpasError
from gpas_cli.report.figures.figure import Figure
from gpas_cli.report.figures.plot import check_formats
from gpas_cli.report.figures.terminal_plot import Plot

_FILES = (".svg", ".png")  # of the files for a path without a suffix


@dataclass(frozen=True)
class Output:
    """Where figures go: files, the terminal, JSON. The last two write files only if `out` names them."""

    out: Sequence[Path] | None
    terminal: bool
    as_json: bool
    title: str | None = None
    size: tuple[float, float] | None = None

    def places(self, usual: Path) -> list[Path]:
        """Return the files or folders that were asked for, by default `usual`."""
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
        """Print plots as text, if that was asked for."""
        for one in plots if self.terminal else ():
            if one.is_empty:
                raise GpasError(f"{one.title}: no such curve has been recorded")
            say(Plot(one))
