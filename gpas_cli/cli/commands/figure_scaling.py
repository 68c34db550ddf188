"""`gpas figure --scaling`: loss over size, with power laws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from gpas_cli.cli.commands.figure_output import Output, print_plots
from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.selection import entries, experiments, recorded_of
from gpas_cli.cli.views.columns import Columns
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError
from gpas_cli.report.figures.figure import PlotJson, as_json
from gpas_cli.report.figures.plot import Sheet, check_formats, save
from gpas_cli.report.figures.scaling import Law, PowerLaw, Scaling, scaling
from gpas_cli.words import count

USUAL = Path("scaling")


class LawJson(TypedDict):
    """The law of one method."""

    source: Annotated[str, "ours, or the source of the published numbers"]
    method: str
    over: Annotated[str, ("parameters", "flops")]
    sizes: int
    law: Annotated[PowerLaw | None, "null for fewer than 3 sizes"]
    words: str


class ScalingJson(DocumentJson):
    """`gpas figure --scaling --json`."""

    files: list[str]
    panels: list[PlotJson]
    laws: list[LawJson]
    missing: Annotated[list[str], "cells without a result"]


def draw_scaling(names: Sequence[str] | None, where: Sequence[str] | None, output: Output) -> None:
    """Draw the scaling figure of the named grids and print the exponents of its laws."""

    paths = output.files(USUAL)
    check_formats(paths)
    chosen = entries(names, where)
    with recorded_of(chosen, database=False) as known:
        made = scaling(chosen, known, _published(names))
    if not made.panels:
        raise GpasError("no cell has a result and no published table has its perplexity; --scaling has nothing to draw")
    if output.terminal:
        print_plots(made.panels)
    title = "Scaling of the validation loss" if output.title is None else output.title
    if paths:
        save(Sheet(made.panels, title), paths, output.size)
        console().print(f"Wrote {' and '.join(map(str, paths))}.", soft_wrap=True)
    if output.as_json:
        laws: list[LawJson] = [
            {"source": law.source, "method": law.method, "over": law.over, "sizes": law.sizes, "law": law.law,
             "words": law.words}
            for law in made.laws
        ]  # fmt: skip
        panels = [as_json(panel) for panel in made.panels]
        files = [str(path) for path in paths]
        print_json(ScalingJson(schema=1, files=files, panels=panels, laws=laws, missing=list(made.missing)))
    else:
        console().print(_exponents(made))
    if made.missing:
        console().print(f"{count(len(made.missing), 'cell')} of {len(chosen)} without a result.")


def _published(names: Sequence[str] | None) -> dict[str, str]:
    """Return the published tables of the grids by source."""
    grids = [experiments().grids[name] for name in names or [experiments().default]]
    return {source: name for grid in grids if grid.table for source, name in grid.table.published.items()}


def _exponents(made: Scaling) -> Columns:
    rows = [(law.source, law.method, law.over, *_numbers(law), str(law.sizes)) for law in made.laws]
    headers = ("numbers", "method", "loss over", "exponent", "95 % interval", "sizes")
    return Columns(headers, rows, right=frozenset(headers[3:]))


def _numbers(law: Law) -> tuple[str, str]:
    if law.law is None:
        return "-", "too few sizes"
    low, high = law.law.interval
    return f"{law.law.exponent:.4f}", f"{low:.4f} to {high:.4f}"
