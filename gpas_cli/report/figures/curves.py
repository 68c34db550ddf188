"""Read the curves of cells: over updates or layers, at chosen updates, of chosen layers, and as ratios of two cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, same
from gpas_cli.report.figures.series import PART, CellCurve, Points, by_layer, over_updates
from gpas_cli.report.labels import facts
from gpas_cli.report.quantities import QUANTITIES, Quantity
from gpas_cli.spec.cell import Stage
from gpas_cli.spec.stage import BINS, BINS_END

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.report.query import Curve, LayerCurve

_ENTRIES_AT_ONCE = 100  # whose curves are in memory together


@dataclass(frozen=True)
class Selection:
    """What is drawn of a quantity.

    at: the updates at which a quantity by layer is drawn; () for the last recorded one. planned: the number of updates
    of the training that `at` refers to, scaled to each cell's own number; 0: `at` counts the cell's own updates.
    layers: draw a quantity by layer over updates, a curve for each of these layers; () for all of them, None to draw it
    over layers. every: of these layers the first, every n-th and the last. start: the first update that is drawn, or
    below 1 the fraction of the training that is left out. over: the axis that is averaged. map: draw layers over
    updates as a heat map.
    """

    quantity: Quantity
    at: tuple[int, ...] = ()
    planned: int = 0
    layers: tuple[float, ...] | None = None
    every: int = 1
    start: float = 0.0
    map: bool = False

    def __post_init__(self) -> None:
        by_layers = self.at or self.layers is not None or self.map
        by_updates = self.quantity.by_layer and not self.quantity.spans
        if (by_layers and not by_updates) or (self.map and self.quantity.bins):
            raise GpasError(f"'{self.quantity.name}' is not recorded by layer over updates")

    @property
    def over_layers(self) -> bool:
        """Whether x counts layers."""
        return self.quantity.by_layer and self.layers is None and not self.map and not self.quantity.bins


def curves(
    engine: Engine | None,
    entries: Sequence[Entry],
    selection: Selection,
    averaged: Callable[[Entry], str] = lambda entry: "seed",
) -> list[CellCurve]:
    """Return the curves of the cells that have recorded them; `averaged` returns the averaged axis of an entry."""
    if engine is None:
        return []
    from gpas_cli.report import query

    # Only the ends of curves if nothing else is drawn.
    until = query.LAST if selection.over_layers and not selection.at else None
    found: list[CellCurve] = []
    for start in range(0, len(entries), _ENTRIES_AT_ONCE):
        part = entries[start : start + _ENTRIES_AT_ONCE]
        keys = [stage.key for entry in part for stage in _stages(entry, selection)]
        read_layers = partial(query.layer_curves, engine, keys, until=until)
        stored = _Stored(cache(partial(query.curves, engine, keys)), cache(read_layers))
        found += (run for entry in part for run in _cell_curves(stored, entry, averaged(entry), selection))
    return found


def recorded_quantities(engine: Engine | None, entries: Sequence[Entry]) -> list[str]:
    """Return the names of the quantities that any of the cells has recorded."""
    if engine is None:
        return []
    from gpas_cli.report.query import curve_names

    over_updates, by_layers = curve_names(engine, [stage.key for entry in entries for stage in entry.cell.stages])
    places = {name: by_layers if one.by_layer or one.per_layer else over_updates for name, one in QUANTITIES.items()}
    return [name for name, found in places.items() if QUANTITIES[name].recorded_as in found]


def _stages(entry: Entry, selection: Selection) -> list[Stage]:
    """Return the stages whose curves may be drawn, in order of preference: the last first, but those that train before
    the others where updates are chosen or drawn."""
    last_first = list(reversed(entry.cell.stages))
    trainings = [stage for stage in last_first if stage.declared.trains]
    if not selection.quantity.by_layer:  # other stages have losses without a layer, one after the other
        return trainings
    if selection.over_layers and not selection.at:
        return last_first
    return [*trainings, *(stage for stage in last_first if not stage.declared.trains)]


class _Stored(NamedTuple):
    """Return the curves of some stages called a name, by stage key. Each is read from the database once."""

    curves: Callable[[str], Mapping[str, Curve]]
    layer_curves: Callable[[str], Mapping[str, LayerCurve]]


def _cell_curves(stored: _Stored, entry: Entry, over: str, selection: Selection) -> list[CellCurve]:
    """Return the curves of the cell's last stage that recorded any."""
    for stage in _stages(entry, selection):
        blank = CellCurve(entry, over, (), stage=stage.key)
        found = [run for run in _stage_curves(stored, stage.key, blank, selection) if run.points or run.matrix]
        if found:
            return found
    return []


def _stage_curves(stored: _Stored, key: str, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    quantity = selection.quantity
    start = selection.start
    first = start * blank.entry.cell.optim.updates if start < 1 else start
    if not (quantity.by_layer or quantity.per_layer):
        points = over_updates(stored.curves(quantity.recorded_as).get(key, []), quantity.scale)
        marks = stored.curves(quantity.spikes).get(key, []) if quantity.spikes else []
        yield replace(blank, points=_from(points, first), marks=_from(over_updates(marks, quantity.scale), first))
        return
    recorded = stored.layer_curves(quantity.recorded_as).get(key, [])
    if not recorded:
        return
    last, _ = recorded[-1]
    later = [row for row in recorded if row[0] >= first]
    if quantity.per_layer:
        points = over_updates(((step, at[0]) for step, at in recorded), quantity.scale)
        yield replace(blank, points=_from(points, first))
    elif quantity.spans:
        # The last recorded values over n = 1, 2, ... layers, by layer.
        spans = range(1, blank.entry.cell.model.size.layers + 1)
        read = [stored.layer_curves(quantity.recorded_over(n)).get(key, []) for n in spans]
        rows = tuple(tuple(value for _, value in sorted(of[-1][1].items())) if of else () for of in read)
        yield replace(blank, step=last, matrix=rows)
    elif quantity.bins:
        for layer in _chosen_layers(selection, [1 + index for index in recorded[-1][1]]):
            shares = stored.layer_curves(f"{quantity.name}/{layer:g}").get(key, [])
            yield from _densities(shares, replace(blank, variant=(_layer_label(layer),)), selection)
    elif selection.map:
        yield _layers_over_updates(later, blank, quantity)
    elif selection.layers is not None:
        yield from _curve_per_layer(later, blank, selection)
    else:
        yield from _curve_per_update(recorded, blank, selection)


def _from(points: Points, first: float) -> Points:
    return tuple(point for point in points if point[0] >= first)


def _layers_over_updates(recorded: LayerCurve, blank: CellCurve, quantity: Quantity) -> CellCurve:
    """Return the heat map: a row for each layer, a column for each update at which all layers have a value."""
    columns = [(step, dict(by_layer(blank.entry, at, outputs=quantity.outputs)[0])) for step, at in recorded]
    layers = max((len(values) for _, values in columns), default=0)
    complete = [(step, values) for step, values in columns if len(values) == layers]
    rows = tuple(zip(*([values[layer] for layer in sorted(values)] for _, values in complete), strict=True))
    return replace(blank, matrix=rows, columns=tuple(float(step) for step, _ in complete))


def _curve_per_layer(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    outputs = selection.quantity.outputs
    rows = [(step, dict(by_layer(blank.entry, at, outputs=outputs)[0])) for step, at in recorded]
    known = sorted({layer for _, values in rows for layer in values})
    for layer in _chosen_layers(selection, known):
        points = tuple((float(step), values[layer]) for step, values in rows if layer in values)
        yield replace(blank, points=points, variant=(_layer_label(layer),))


def _chosen_layers(selection: Selection, known: Sequence[float]) -> Sequence[float]:
    """Return the layers to draw: by default the first of `known`, every n-th after it, and the last."""
    return selection.layers or sorted({*known[:: selection.every], *known[-1:]})


def _layer_label(layer: float) -> tuple[str, Label]:
    return "layer", int(layer) if layer == int(layer) else layer


def _densities(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    """Yield the densities of a layer's outputs in standard deviations, at the middle of each bin between the ends."""
    width = 2 * BINS_END / BINS
    for step, shares, variant in _at_updates(recorded, blank, selection):
        inside = ((bin, share) for bin, share in shares.items() if 0 < bin <= BINS)
        points = tuple(((bin - 0.5) * width - BINS_END, share / width) for bin, share in inside)
        yield replace(blank, points=points, step=step, variant=(*blank.variant, *variant))


def _curve_per_update(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    for step, values, variant in _at_updates(recorded, blank, selection):
        points, final = by_layer(blank.entry, values, outputs=selection.quantity.outputs)
        yield replace(blank, points=points, final_norm=final, step=step, variant=variant)


def _at_updates(
    recorded: LayerCurve, blank: CellCurve, selection: Selection
) -> Iterator[tuple[int, Mapping[int, float], tuple[tuple[str, Label], ...]]]:
    """Yield the recorded updates that are drawn, by default the last, with their values and what they are called."""
    steps = [step for step, _ in recorded]
    values = dict(recorded)
    scale = blank.entry.cell.optim.steps / selection.planned if selection.planned else 1.0
    for asked in selection.at or steps[-1:]:
        step = _nearest(steps, asked * scale if selection.at else asked)
        if step is not None:
            yield step, values[step], (("update", step),) if len(selection.at) > 1 else ()


def _nearest(steps: Sequence[int], wanted: float) -> int | None:
    """Return the recorded update next to `wanted`, None if recording ended or began further away than its interval."""
    nearest = min(steps, key=lambda step: abs(step - wanted))
    interval = max((after - before for before, after in pairwise(steps)), default=0)
    return nearest if abs(nearest - wanted) <= interval else None


def of_part(runs: Sequence[CellCurve], part: str) -> list[CellCurve]:
    """Return the curves as those of a part of the network."""
    return [replace(run, variant=((PART, part), *run.variant)) for run in runs]


def ratios(runs: Sequence[CellCurve], against: Mapping[str, Label]) -> list[CellCurve]:
    """Return each curve divided by that of the cell with the labels `against` and otherwise its own, where both are.

    Points that only one of the two has, or at which the divisor is zero, are left out, and the final norm is.
    """
    bases = {_position(run, against): dict(run.points) for run in runs if has_labels(run.entry, against)}
    own = [run for run in runs if not has_labels(run.entry, against)]
    made = [(run, bases.get(_position(run, against), {})) for run in own]
    divided = [
        replace(run, points=tuple((x, y / base[x]) for x, y in run.points if base.get(x)), marks=(), final_norm=None)
        for run, base in made
    ]
    return [run for run in divided if run.points]


def _position(run: CellCurve, against: Mapping[str, Label]) -> tuple[object, ...]:
    """Return what a curve and its divisor have in common."""
    return run.entry.grid, run.entry.labels_without(*against), run.variant


def has_labels(entry: Entry, labels: Mapping[str, Label | Sequence[Label]], *, named: bool = False) -> bool:
    """Return whether a cell has these labels, in its grid or in the papers; of several labels, any.

    named: the papers' labels count only on axes that the grid does not have.
    """
    own, published = entry.axes, facts(entry)
    for axis, wanted in labels.items():
        options = wanted if isinstance(wanted, list | tuple) else [wanted]
        found = [known[axis] for known in (own, published) if axis in known][: 1 if named else 2]
        if not any(same(label, option) for label in found for option in options):  # type: ignore[arg-type]
            return False
    return True
