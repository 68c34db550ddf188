"""Loss over parameters and over training FLOPs by method, published and ours, with a power law through the sizes; for
cells of one size, loss over training tokens.

Along the papers' sizes, tokens grow with parameters: these are laws of a family of trainings, not of parameters alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from gpas_cli.extensions.figures.figure import Figure, Line
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import spelled
from gpas_cli.grid.packs import Pack
from gpas_cli.report import papers
from gpas_cli.report.labels import facts, row_title, scheme_titles
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.cost import flops_per_token, parameters
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.statistics.power_law import LEAST_POINTS, PowerLaw, fit
from gpas_cli.statistics.stats import aggregate
from gpas_cli.structure import Frozen
from gpas_cli.words import count, grouped

_OURS = "ours"
_DIVERGED_NATS = 1.0  # a published loss this far above the best of its size is a run that diverged
_MOST_BANDS = 4  # in a panel; with more methods, only the exponents' intervals are shown
_NOTE = "fitted exponent ± half of its 95 % interval"
_CURVE_POINTS = 40  # of a fitted curve
_AXES = (("parameters", "parameters N"), ("flops", "training FLOPs C"))
_LENGTHS = (("tokens", "training tokens D"),)  # of cells that have one size


class _Point(Frozen):
    """The loss of one method at one size and length, in nats per token: the mean over the seeds."""

    method: str
    norm: str
    gated: bool
    size: str
    parameters: float
    tokens: float
    flops: float
    loss: float


class Law(Frozen):
    """The power law of one method over one of AXES or LENGTHS, None if there are too few sizes or lengths."""

    source: Annotated[str, "ours, or the source of the published numbers"]
    method: str
    over: Annotated[str, ("parameters", "flops", "tokens")]
    sizes: Annotated[int, "sizes, or lengths over tokens"]
    law: Annotated[PowerLaw | None, "null for fewer than 3"]

    @property
    def words(self) -> str:
        """The exponent with its interval, or why there is none."""
        if self.law is None:
            return f"{count(self.sizes, 'point')}; a power law needs {LEAST_POINTS}"
        low, high = self.law.interval
        return f"exponent {self.law.exponent:.4f}, 95 % interval {low:.4f} to {high:.4f}, {count(self.sizes, 'point')}"


class Scaling(Frozen):
    """The panels of a scaling figure, its laws, and the ids of cells without a result."""

    panels: tuple[Figure, ...]
    laws: tuple[Law, ...]
    missing: tuple[str, ...]


def scaling(entries: Sequence[Entry], known: Recorded, published: Mapping[Pack, str]) -> Scaling:
    """Return the figure of the cells: two panels for our results, and two for each published table, by paper.

    Published tables without a perplexity of at least one of the cells are left out.
    """
    sources = [(_OURS, _ours(entries, known))]
    for pack, name in published.items():
        sources.append((papers.short_title(pack), _published(entries, papers.published(pack, name))))
    panels: list[Figure] = []
    laws: list[Law] = []
    for title, points in sources:
        one_size = len({point.parameters for point in points}) == 1 < len({point.tokens for point in points})
        methods = grouped((point.method, point) for point in points)
        for over, x in () if not points else _LENGTHS if one_size else _AXES:
            own = []
            for method, alike in methods.items():
                pairs = [(getattr(point, over), point.loss) for point in alike]
                own.append(Law(title, method, over, len({x for x, _ in pairs}), fit(pairs)))
            laws += own
            panels.append(_panel(title, x, methods, over, own))
    missing = tuple(entry.id for entry in entries if _loss(entry, known) is None)
    return Scaling(tuple(panels), tuple(laws), missing)


def _loss(entry: Entry, known: Recorded) -> tuple[float, float] | None:
    """Return our loss and the tokens that the cell was trained on."""
    result = known.results.get(entry.cell.stages[0].key)
    if result is None or result.gone or result.outcome != "done" or "loss" not in result.metrics:
        return None
    optim = entry.cell.optim
    tokens = optim.steps * optim.batch * entry.cell.data.length
    return result.metrics["loss"], result.metrics.get("train_tokens", tokens)


def _ours(entries: Sequence[Entry], known: Recorded) -> list[_Point]:
    """Return a point for each method and size, the mean over seeds."""
    methods = _methods(entries)
    groups = grouped(
        ((methods[entry.id], str(entry.axes["size"]), entry.cell.optim.updates), (entry, *found))
        for entry in {entry.cell.key: entry for entry in entries}.values()
        if (found := _loss(entry, known)) is not None
    )
    return [
        _point(runs[0][0], method, aggregate([loss for _, loss, _ in runs]).mean, runs[0][2])
        for (method, *_), runs in groups.items()
    ]


def _published(entries: Sequence[Entry], table: papers.PublishedTable) -> list[_Point]:
    """Return a point for each method and size whose perplexity is printed; runs that diverged are left out."""
    if not table.metric.startswith("perplexity"):
        return []
    methods = _methods(entries)
    found: dict[tuple[str, str], _Point] = {}
    for entry in entries:
        printed = table.cell(facts(entry))
        if printed and printed.value is not None and printed.tokens is not None:
            point = _point(entry, methods[entry.id], math.log(printed.value), printed.tokens)
            found.setdefault((point.method, point.size), point)
    best: dict[str, float] = {}
    for point in found.values():
        best[point.size] = min(point.loss, best.get(point.size, math.inf))
    return [point for point in found.values() if point.loss < best[point.size] + _DIVERGED_NATS]


def _methods(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the title of each cell's method by its id, with the labels of further axes that vary: "Pre-LN + GPAS,
    precision bf16"."""
    titles = scheme_titles(entries)
    axes = dict.fromkeys(axis for entry in entries for axis in entry.axes)
    further = [axis for axis in axes if axis not in ("size", "norm", "gate", "seed", "optim.steps")]
    varying = [axis for axis in further if len({entry.axes.get(axis) for entry in entries}) > 1]
    found = {}
    for entry in entries:
        scheme = row_title(("norm", "gate"), (entry.axes["norm"], entry.axes["gate"]), titles)
        labels = [f"{axis} {spelled(entry.axes[axis])}" for axis in varying if axis in entry.axes]
        found[entry.id] = ", ".join([scheme, *labels])
    return found


def _point(entry: Entry, method: str, loss: float, tokens: float) -> _Point:
    return _Point(
        method=method,
        norm=str(entry.axes.get("norm", entry.cell.model.scheme)),
        gated=entry.cell.model.gate is not None,
        size=str(entry.axes["size"]),
        parameters=parameters(entry.cell),
        tokens=tokens,
        flops=flops_per_token(entry.cell) * tokens,
        loss=loss,
    )


def _panel(source: str, x: str, methods: Mapping[str, Sequence[_Point]], over: str, laws: Sequence[Law]) -> Figure:
    """Return the plot: points of each method, and its law as a line with a band."""
    lines: list[Line] = []
    norms = list(dict.fromkeys(point.norm for own in methods.values() for point in own))
    if set(norms) <= SCHEMES.keys():
        norms = list(SCHEMES)  # each has its colour in every figure
    for (method, own), law in zip(methods.items(), laws, strict=True):
        look: dict[str, Any] = {"colour": norms.index(own[0].norm), "style": 0 if own[0].gated else 1}
        pairs = tuple(sorted((getattr(point, over), point.loss) for point in own))
        lines.append(Line(method, pairs, form="points", in_legend=law.law is None, **look))
        if law.law is not None:
            xs = [pairs[0][0] * (pairs[-1][0] / pairs[0][0]) ** (i / _CURVE_POINTS) for i in range(_CURVE_POINTS + 1)]
            band = tuple((at, *law.law.band(at)) for at in xs) if len(laws) <= _MOST_BANDS else ()
            half = (law.law.interval[1] - law.law.interval[0]) / 2
            title = f"{method}: {-law.law.exponent:+.3f} ± {half:.3f}".replace(": -", ": \N{MINUS SIGN}")
            lines.append(Line(title, tuple((at, law.law.at(at)) for at in xs), band, **look))
    title = f"{source[0].upper()}{source[1:]}"
    note = _NOTE if any(law.law for law in laws) else f"no law: fewer than {LEAST_POINTS} points"
    return Figure(title, x, "validation loss (nats per token)", log=True, log_x=True, lines=tuple(lines), note=note)
