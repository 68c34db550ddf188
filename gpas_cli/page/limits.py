"""How much fits on a page, so that the page of many cells can still be opened and sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Cells with details and the ends of their logs; points of a curve, curves of a plot, cells in a grid's figures."""

    details: int = 2000
    log_lines: int = 30
    log_characters: int = 240  # of a line
    log_bytes: int = 2_000_000  # of all logs
    points: int = 200
    curves: int = 40
    drawn_cells: int = 500


FILE = Limits()
SERVED = Limits(details=0)  # the details of a cell are fetched when it is opened
