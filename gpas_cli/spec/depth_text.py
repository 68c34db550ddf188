"""Describe in words which layers train in each update, for `gpas explain`."""

from __future__ import annotations

from collections.abc import Iterator

from gpas_cli.spec.depth_schedule import LayerSchedule
from gpas_cli.spec.flops import computed_flops, relative_flops
from gpas_cli.spec.parts import CellParts

_FACTORS = {
    "sqrt": "s = sqrt(distance to the next layer on the path)",
    "linear": "s = distance to the next layer on the path",
    "inverse": "s = 1 / (the probability that the layer is kept)",
    "none": "s = 1",
}
_SKIPPED = {
    "keep": "the optimizer leaves the weights and the state of a skipped layer alone",
    "zero": "the optimizer sees a gradient of zero for a skipped layer",
}


def depth_lines(cell: CellParts) -> list[str]:
    """Return the schedule line by line: stages with their updates, average, factors; nothing for full depth."""
    schedule = cell.layer_schedule
    depth = schedule.depth
    kinds = {"raptr": _raptr, "stacking": _stacking, "layerdrop": _layerdrop}
    if depth.kind not in kinds:
        return []
    layers = schedule.layers
    average = (
        f"average: {schedule.average():.4g} of {layers} layers, {relative_flops(cell):.3g} of the work of full "
        f"depth, {computed_flops(cell):.3g} of its FLOPs with attention and head"
    )
    return [*kinds[depth.kind](schedule), *_gates(cell), average]


def _gates(cell: CellParts) -> Iterator[str]:
    gate, depth = cell.model.gate, cell.layer_schedule.depth
    if gate is not None and gate.learnable and depth.kind != "stacking" and depth.scale != "none":
        yield "where s is not 1, autograd computes the gradients of gates that no norm follows, which takes memory"


def _raptr(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    fixed = len(depth.fixed_layers())
    always = f"layer{'s' * (fixed > 1)} {depth.fixed} on every path" if fixed else "no layer is on every path"
    yield f"random paths (RaPTr), {always}; all layers are evaluated"
    if depth.full_steps:
        yield f"{_updates(1, depth.full_steps)}: all {schedule.layers} layers"
    for first, last, size in _stages(schedule):
        whole = size == schedule.layers
        p = schedule.kept(first)
        each = f"; each of the others with probability {min(p):.4g}" if not whole else ""
        yield f"{_updates(first, last)}: {'all ' if whole else ''}{size} layers{'' if whole else ' on average'}{each}"
    yield f"a layer computes x + s (Block(x) - x), {_FACTORS[depth.scale]}"
    yield _SKIPPED[depth.skipped]


def _stacking(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    yield "a growing network (stacking); the layers that are there are evaluated"
    for first, last, size in _stages(schedule):
        pairs = ", ".join(f"{layer} from {source}" for layer, source in schedule.copies(first))
        copied = f"; layers copied: {pairs}" if pairs else ""
        yield f"{_updates(first, last)}: the first {size} layers{copied}"
    yield f"the optimizer's state of copied layers is {depth.moments}"


def _layerdrop(schedule: LayerSchedule) -> Iterator[str]:
    depth = schedule.depth
    deepest = schedule.kept(schedule.steps)[-1]
    yield "progressive layer dropping; all layers are evaluated"
    yield (
        f"layer l is kept with probability 1 - (l / {schedule.layers})(1 - theta), theta from 1 to {depth.keep:.4g} as "
        f"exp(-{depth.gamma:g} t / {schedule.steps:,}): layer {schedule.layers} with {deepest:.4g} in the end"
    )
    yield f"a layer computes x + s (Block(x) - x), {_FACTORS[depth.scale]}"
    yield _SKIPPED[depth.skipped]


def _stages(schedule: LayerSchedule) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last update and the number of layers of every stage."""
    ends = (*(start - 1 for start in schedule.starts[1:]), schedule.steps)
    yield from zip(schedule.starts, ends, schedule.sizes, strict=True)


def _updates(first: int, last: int) -> str:
    return f"updates {first:,}-{last:,}" if last > first else f"update {first:,}"
