"""Denoisers: the ways in which span corruption hides parts of a row, and how many tokens of it they keep and hide."""

from __future__ import annotations

from dataclasses import dataclass

# The first tokens of rows by denoiser, in the order of their ids.
MODES = ("r", "s", "x")
# Two tokens, one of them replaced by a sentinel and predicted after it, an end token and a mode.
SHORTEST_ROW = 8
LONGEST_MEAN = 10_000  # tokens of a span


@dataclass(frozen=True)
class Denoiser:
    """One way to corrupt a row: the share `rate` of its tokens, in spans of `mean` tokens on average; 0: one span."""

    mode: str
    mean: float
    rate: float

    @property
    def spans_per_token(self) -> float:
        """The number of spans for each token of a long row."""
        return self.rate / self.mean if self.mean else 0.0

    def corrupted(self, tokens: int) -> int:
        """Return how many of `tokens` >= 2 tokens are corrupted."""
        return min(max(round(self.rate * tokens), 1), tokens - 1)

    def spans(self, tokens: int) -> int:
        """Return the number of spans in a row of `tokens` >= 2 tokens: intact ones precede each of them."""
        corrupted = self.corrupted(tokens)
        wanted = round(corrupted / self.mean) if self.mean else 1
        return min(max(wanted, 1), corrupted, tokens - corrupted)

    def fitting(self, tokens: int, room: int) -> int:
        """Return how many of a row's `tokens` can be kept so that they and two ids per span fit into `room` ids.

        Less than 2 if none can.
        """
        return next((n for n in range(min(tokens, room), 1, -1) if n + 2 * self.spans(n) <= room), 0)


def parse_denoiser(text: str) -> Denoiser:
    """Return the denoiser that "r MEAN RATE", "x MEAN RATE" or "s RATE" describes. Raises ValueError."""
    mode, *numbers = text.split()
    if mode not in MODES or len(numbers) != (1 if mode == "s" else 2):
        raise ValueError(text)
    rate = float(numbers[-1])
    mean = float(numbers[0]) if mode != "s" else 0.0
    if not 0 < rate < 1 or (mode != "s" and not 1 <= mean <= LONGEST_MEAN):
        raise ValueError(text)
    return Denoiser(mode, mean, rate)


def denoiser_problem(text: str) -> str:
    """Return what is wrong with the description of a denoiser, "" if nothing is."""
    try:
        parse_denoiser(text)
    except ValueError:
        return (
            f"'{text}' is not 'r MEAN RATE', 'x MEAN RATE' or 's RATE', with MEAN at least 1 and RATE between 0 and 1"
        )
    return ""
