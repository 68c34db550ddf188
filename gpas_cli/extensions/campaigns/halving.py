"""The search for the best value of a setting, by successive halving, for each method of a grid on its own.

All values are tried in trainings of a quarter of the updates, each with the whole schedule, the better half of many
values in trainings of half of them, and the last two in whole trainings. Every method gets the same number of each, and
a method whose best value is at an end of its values gets further ones beyond it, in each round, until it is not.
(Jamieson and Talwalkar 2016. There the rounds are parts of one training; a part of a schedule favours low rates.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpas_cli.errors import GpasError
from gpas_cli.extensions.campaigns.companions import family_of
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.spec.parse import flat
from gpas_cli.structure import Frozen

_MANY = 6  # values, from which on there is a round between the first and the last
_MOST_BEYOND = 4  # trials for each method, in addition to those of the rounds


class Trial(Frozen):
    """A value in a training of 1/`share` of the updates: its validation perplexity, infinite if it diverged."""

    value: float
    share: int
    perplexity: float

    @property
    def updates(self) -> str:
        """How many of the cell's updates it has: "all", "1/2" or "1/4"."""
        return "all" if self.share == 1 else f"1/{self.share}"


@dataclass
class Method:
    """The cells that differ only in the seed: their name without it, the first of them, the declared value, the values
    to try in ascending order, how many trials were added to the rounds, and the trials so far."""

    name: str
    entry: Entry
    declared: float
    values: tuple[float, ...]
    added: int = 0
    trials: list[Trial] = field(default_factory=list)

    def ranked(self) -> list[float]:
        """Return the values of the last round, the best first; all values before the first round."""
        last = min((trial.share for trial in self.trials), default=0)
        trials = sorted((trial for trial in self.trials if trial.share == last), key=lambda trial: trial.perplexity)
        return [trial.value for trial in trials] or list(self.values)

    @property
    def best(self) -> float | None:
        """The best value of the last round, None before the first."""
        return self.ranked()[0] if self.trials else None

    @property
    def at_edge(self) -> bool:
        """Whether the best value is the smallest or the largest of the last round: one beyond it may be better."""
        tried = self.ranked()
        return self.best in (min(tried), max(tried))

    @property
    def cost(self) -> float:
        """What the trials cost, in whole trainings."""
        return sum(1 / trial.share for trial in self.trials)

    def last(self) -> dict[float, Trial]:
        """Return the longest trial of each value."""
        return {trial.value: trial for trial in self.trials}  # later rounds replace earlier ones

    def beyond(self) -> float | None:
        """Return the value to try beyond the best one of the last round: the next of an earlier round, or a new one as
        far from it as its neighbour. None if the best is at no end of the round, or if enough were tried so."""
        if not self.at_edge or self.added == _MOST_BEYOND:
            return None
        self.added += 1
        best, *others = self.ranked()
        low = best < min(others)
        place = self.values.index(best) + (-1 if low else 1)
        if 0 <= place < len(self.values):
            return self.values[place]
        edge, inner = self.values[:2] if low else self.values[:-3:-1]
        value = float(f"{edge * edge / inner:.6g}")
        self.values = (value, *self.values) if low else (*self.values, value)
        return value


def rounds(values: int) -> list[tuple[int, int]]:
    """Return the number of values in each round, and the share 1/n of the updates that their trainings have."""
    between = [(math.ceil(values / 2), 2)] if values >= _MANY else []
    return [*([(values, 4)] if values > 2 else []), *between, (min(values, 2), 1)]


def methods_of(
    experiments: Experiments, entries: Sequence[Entry], setting: str, factors: Sequence[float]
) -> list[Method]:
    """Return the methods among the cells of one grid; their values are the declared one times each factor.

    Raises GpasError if the setting is not a number above 0 of every cell, or the grid cannot be tuned.
    """
    found: dict[str, Method] = {}
    for entry in entries:
        grid, name = family_of(experiments, entry) or (entry.grid, entry.name)
        if grid != entry.grid:
            raise GpasError(f"{entry.id} is included from {grid}; tune {grid} instead")
        if experiments.grids[grid].tuned:
            raise GpasError(f"{grid} has tuned cells already; tune the grid that it comes from")
        if setting in entry.axes:
            raise GpasError(f"{setting} is an axis of {grid}: `gpas table {grid} --best {setting}` finds the best")
        if name not in found:
            declared = _number(entry, setting)
            values = tuple(float(f"{declared * factor:.6g}") for factor in sorted(set(factors)))
            found[name] = Method(name, entry, declared, values)
    return list(found.values())


def _number(entry: Entry, setting: str) -> float:
    value = flat(entry.cell.to_mapping()).get(setting)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise GpasError(f"{entry.id}: {setting} is {value}; only a number above 0 can be tuned, such as optim.lr")
    return float(value)


def settings_of(method: Method, setting: str, value: float, share: int) -> list[str]:
    """Return the settings of a trial, as on the command line."""
    optim = method.entry.cell.optim
    shorter = [f"optim.steps={optim.steps // share}", f"optim.warmup={optim.warmup // share}"]
    return [f"{setting}={value!r}", *(shorter if share > 1 else ())]
