"""A printed table of settings, with ours where they differ from the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpas_cli.report.labels import facts
from gpas_cli.report.papers.layouts import PrintedLine, PrintedPart
from gpas_cli.words import abbreviated

if TYPE_CHECKING:
    from gpas_cli.grid import Entry

TIMES = "\N{MULTIPLICATION SIGN}"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(value: float) -> str:
    """Return a number as papers print learning rates: 1 \N{MULTIPLICATION SIGN} 10⁻³."""
    factor, exponent = f"{value:.2e}".split("e")
    return f"{float(factor):g} {TIMES} 10{str(int(exponent)).translate(RAISED)}"


def _count(value: float) -> str:
    """Return a number as papers print numbers of updates and tokens: 10K, 1B; small ones as they are."""
    return abbreviated(value).replace("k", "K") if value >= 1000 else f"{value:g}"


# What a paper calls its columns -> the setting of a cell, and how it is printed.
QUANTITIES: Mapping[str, tuple[Callable[[Entry], float], Callable[[float], str]]] = {
    "lr": (lambda entry: entry.cell.optim.lr, _power),
    "warmup": (lambda entry: entry.cell.optim.warmup, _count),
    "steps": (lambda entry: entry.cell.optim.steps, _count),
    "batch": (lambda entry: entry.cell.optim.batch, _count),
    "train_tokens": (lambda entry: entry.cell.optim.rows * entry.cell.data.length, _count),
    "eval_tokens": (lambda entry: entry.cell.data.eval_tokens, _count),
}


def with_ours(part: PrintedPart, entries: Sequence[Entry]) -> PrintedPart:
    """Return a table of settings by size with the settings of `entries` behind the paper's where they differ."""
    return replace(part, lines=tuple(_line(part, line, entries) for line in part.lines))


def _line(part: PrintedPart, line: PrintedLine, entries: Sequence[Entry]) -> PrintedLine:
    own = [entry for entry in entries if str(facts(entry)["size"]).lower() == line.title.lower()]
    cells = []
    for cell, quantity in zip(line.cells, part.quantities, strict=True):
        value, text = QUANTITIES[quantity]
        ours = list(dict.fromkeys(text(value(entry)) for entry in own))
        differs = bool(ours) and ours != [cell.text]
        cells.append(replace(cell, text=f"{cell.text} (here {', '.join(ours)})") if differs else cell)
    return replace(line, cells=tuple(cells))
