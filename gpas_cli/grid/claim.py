"""Claims as declared: statements about recorded numbers that `gpas claims` checks.

A claim has one or more comparisons. A comparison gives one effect for each seed:

    difference   value of the subject - value of the base      lower: below 0, higher: above 0
    ratio        value of the subject / value of the base      lower: below 1, higher: above 1
    value        value of the subject                          negative: below 0, positive: above 0

With `across`, the effect at the second label is subtracted from that at the first: the interaction. The claim says that
the mean effect lies between `low` and `high`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpas_cli.grid.document import Label, Mark, identity
from gpas_cli.spec.parse import setting

PAIRED_T = "t"
EACH_RUN = "each-run"

_TAKES = (
    *("mean", "max", "min", "first", "last", "slope", "log-slope", "exponential-aic", "early-change"),
    *("share-positive", "count"),
)
_LAYER_GROUPS = ("all", "first", "later", "shallower", "deeper", "pre", "post")

_NOWHERE = Mark("", 0, 0)

_Labels = Mapping[str, tuple[Label, ...]]


@dataclass(frozen=True)
class Source:
    """Where a claim is made: a source of published numbers (`gpas`), the place in it, and its words."""

    paper: str = ""
    where: str = setting("", lines=True)
    quote: str = setting("", lines=True)


@dataclass(frozen=True)
class Feature:
    """The number that one run contributes: a metric, or a number taken from a curve.

    take: mean, max, min, first, last, slope (per layer or update), log-slope (of the logarithm), exponential-aic (the
    AIC of a power law through the points minus an exponential's), early-change (share of the movement in the
    first fifth of the updates), share-positive or count. layers: all, first, later (all but the first), shallower,
    deeper (halves), pre, post (kinds of layer), or numbers; a list is a conjunction. updates: last, all, or the update
    at or before which a value was recorded.
    """

    metric: str = ""
    curve: str = ""
    take: str = setting("mean", choices=_TAKES)
    layers: tuple[str | int, ...] = setting(("all",), choices=_LAYER_GROUPS, low=1)
    updates: str | int = setting("last", choices=("last", "all"), low=0)

    @property
    def title(self) -> str:
        """The number in words: "perplexity", "max of activation_variance over layers"."""
        if self.metric:
            return self.metric
        layers = "" if self.layers == ("all",) else f", layers {' and '.join(map(str, self.layers))}"
        when = (
            ""
            if self.updates == "last"
            else f", {'all updates' if self.updates == 'all' else f'update {self.updates}'}"
        )
        return f"{self.take} of {self.curve}{layers}{when}"


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim; it is made for every combination of labels on the axes `by`.

    subject: conditions on labels. against: the labels in which the base differs from the subject, {} if values
    themselves are compared. low, high: the open interval in which the claim places the effect. across: an axis and two
    of its labels. best: an axis, of whose labels the one with the best number counts, for the subject and for the base;
    "" for none. published: source -> table whose numbers give the published effect; printed: an effect that the text
    of the source states. marks: the places of its settings in the file.
    """

    says: str
    grids: tuple[str, ...]
    subject: _Labels
    value: Feature
    against: Mapping[str, Label] = field(default_factory=dict)
    compare: str = "difference"
    low: float = -math.inf
    high: float = math.inf
    by: tuple[str, ...] = ()
    over: str = "seed"
    best: str = ""
    across: tuple[str, Label, Label] | None = None
    test: str = PAIRED_T
    published: Mapping[str, str] = field(default_factory=dict)
    printed: float | None = None
    mark: Mark = _NOWHERE
    marks: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def logarithmic(self) -> bool:
        """Whether effects are tested as logarithms: ratios are, and ratios of two ratios."""
        return self.compare == "ratio"

    def is_subject(self, labels: Mapping[str, Label]) -> bool:
        """Return whether a cell with these labels is a subject."""
        return _matches(labels, self.subject)

    def is_base(self, labels: Mapping[str, Label]) -> bool:
        """Return whether a cell with these labels can be the base of a subject."""
        same = {axis: wanted for axis, wanted in self.subject.items() if axis not in self.against}
        return _matches(labels, {**same, **{axis: (label,) for axis, label in self.against.items()}})


@dataclass(frozen=True)
class Claim:
    """One claim, at the size of a paper or at toy size (`toy`). `tuned`: each method is at its own best rate."""

    name: str
    statement: str
    comparisons: tuple[Comparison, ...]
    source: Source = field(default_factory=Source)
    toy: bool = False
    mark: Mark = _NOWHERE
    tuned: bool = False

    @property
    def grids(self) -> tuple[str, ...]:
        """The grids whose cells the claim compares."""
        return tuple(dict.fromkeys(grid for comparison in self.comparisons for grid in comparison.grids))


def _matches(labels: Mapping[str, Label], wanted: _Labels) -> bool:
    return all(
        axis in labels and identity(labels[axis]) in {identity(label) for label in options}
        for axis, options in wanted.items()
    )
