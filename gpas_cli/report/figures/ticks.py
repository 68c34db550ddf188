"""The ticks of axes: round numbers on logarithmic ones, written as 0.6 and not as 6 x 10^-1; whole layers."""

import math
from collections.abc import Sequence
from typing import Any

from gpas_cli.report.figures.figure import Figure

_LEAST_TICKS = 4  # on a logarithmic axis
# Multiples of powers of ten, the coarsest first.
_STEPS: tuple[tuple[float, ...], ...] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(range(1, 10)))
_ROUNDEST = "125347689"  # first digits of ticks, the preferred ones first
_CLOSEST = 0.08  # of a logarithmic axis between two ticks
_MOST_LAYERS = 12  # with a number in a plot of usual width


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between `low` and `high` for a logarithmic axis: the fewest that show the scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        # Powers of whole numbers, so that 3e-5 is not 3.0000000000000004e-05.
        ticks = [tick for power in decades for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
        if len(ticks) >= _LEAST_TICKS:
            return apart(ticks[:: math.ceil(len(ticks) / (3 * _LEAST_TICKS))], _CLOSEST * math.log(high / low))
    return linear_ticks(low, high, _LEAST_TICKS + 2)


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most so many round numbers between `low` and `high`, equally spaced."""
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.6g}") for i in range(first, last + 1)]


def apart(ticks: Sequence[float], least: float) -> list[float]:
    """Return the ticks whose logarithms differ by `least`, preferring those that begin with 1, 2 or 5."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: _ROUNDEST.index(f"{tick:e}"[0])):
        if all(abs(math.log(tick / other)) >= least for other in kept):
            kept.append(tick)
    return sorted(kept)


def readable(value: float) -> str:
    """Return a tick's number: 0.003, 20, 150,000, 10⁻⁶, 2×10⁶."""
    if value == 0 or 1e-4 < abs(value) < 1e6:
        return f"{value:,g}"
    factor, power = f"{value:e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if float(factor) == 1 else f"{float(factor):g}\N{MULTIPLICATION SIGN}10{raised}"


def is_log(figure: Figure) -> bool:
    """Return whether y is logarithmic: all values are positive."""
    return figure.log and all(y > 0 for y in figure.values())


def log_axis(axis: Any, name: str) -> None:
    """Make an axis ("x" or "y") of matplotlib logarithmic, with round ticks between its limits."""
    from matplotlib.ticker import FixedLocator, NullLocator

    getattr(axis.axes, f"set_{name}scale")("log")
    axis.set_major_locator(FixedLocator(log_ticks(*sorted(getattr(axis.axes, f"get_{name}lim")()))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: readable(value))


def layer_axis(axes: Any, figure: Figure, beyond: float) -> None:
    """Label layers with integers, and the final norm, behind a vertical line at `beyond`, with its name."""
    step = math.ceil(figure.layers / _MOST_LAYERS)
    ticks: list[float] = list(range(1, figure.layers + 1, step))
    labels = [f"{tick:g}" for tick in ticks]
    if any(run.final_norm is not None for series in figure.series for run in series.runs):
        axes.axvline(figure.layers + 0.75, color="0.6", linewidth=0.6, linestyle=":")
        ticks.append(beyond)
        labels.append("final\nnorm")
    axes.set_xticks(ticks, labels)
