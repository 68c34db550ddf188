"""What is wrong with a cell's `depth`: its own settings, and what contradicts the network or the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise

from gpas_cli.errors import Problem
from gpas_cli.spec.depth import (
    DEPTHS,
    FULL,
    READS,
    Depth,
    copies,
    fixed_numbers,
    limit_of,
    mean_progress,
    stage_boundaries,
    stage_updates,
)
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import FACTORS, Factor, Norm
from gpas_cli.spec.optim import Optim


def depth_problems(depth: Depth, model: Model, optim: Optim) -> list[Problem]:
    """Return what is wrong with the section, and what contradicts the network or the recipe."""
    found = list(_setting_problems(depth))
    layers = model.size.layers
    if model.family.encoder and depth.kind != FULL:
        return [Problem(("kind",), f"{depth.kind} is not for encoder-decoder; write depth: full")]
    if not found and (depth.stages or depth.work_of):
        found = list(_stage_problems(depth, layers, optim.steps))
    if found:
        return found
    if depth.kind == "raptr":
        return [*_path_problems(depth, layers, optim.steps), *_value_problems(depth, model)]
    if depth.kind == "layerdrop":
        return [*_drop_problems(depth, layers, optim.steps), *_value_problems(depth, model)]
    if depth.kind == "stacking":
        return [*_copy_problems(depth, model), *_stop_problems(depth, optim)]
    if depth.work_of and optim.stop:
        return [Problem(("work_of",), "and optim.stop both decide the number of updates; remove one of them")]
    return []


def _setting_problems(depth: Depth) -> Iterator[Problem]:
    """Yield settings that the kind does not read, or that contradict each other."""
    kind = depth.kind
    staged = "stages" in READS[kind] or bool(depth.work_of)
    read = {"kind", *READS[kind], *(("lengths",) if depth.work_of else ())}
    read |= {"average"} if staged or kind == "layerdrop" else set()
    read |= {"work_of"} if kind == FULL else set()
    for field in fields(depth):
        if field.name not in read and getattr(depth, field.name) != getattr(DEPTHS[kind], field.name):
            yield Problem((field.name,), f"has no effect with depth: {kind}")
    if "stages" in READS[kind] and not depth.stages:
        yield Problem(("stages",), f"is required: write depth: {{like: {kind}, stages: 6-8-10-12}}")
    if depth.average and staged and depth.lengths != Depth().lengths:
        yield Problem(("lengths",), "and average both decide the lengths of the stages; remove one of them")
    if depth.average and kind == "layerdrop" and depth.keep != Depth().keep:
        yield Problem(("keep",), "and average both decide how many layers are kept; remove one of them")


def _stage_problems(depth: Depth, layers: int, steps: int) -> Iterator[Problem]:
    name = "stages" if depth.stages else "work_of"
    text = depth.stages or depth.work_of
    try:
        sizes = depth.sizes()
    except ValueError:
        yield Problem((name,), f"'{text}' is not a list of layers such as 6-8-10-12")
        return
    if any(after <= before for before, after in zip((0, *sizes), sizes, strict=False)):
        yield Problem((name,), f"'{text}' does not increase from stage to stage")
    elif sizes[-1] > layers or (sizes[-1] < layers and (depth.kind != "raptr" or len(sizes) > 1)):
        more = "more layers than" if sizes[-1] > layers else "fewer layers than"
        yield Problem((name,), f"ends with {more} the network has: the last stage must have all {layers}")
    elif sizes == (layers,):
        yield Problem((name,), "one stage is the whole network in every update; write depth: full")
    elif isinstance(depth.lengths, tuple) and len(depth.lengths) != len(sizes):
        yield Problem(("lengths",), f"has {len(depth.lengths)} lengths for {len(sizes)} stages")
    elif depth.average and not sizes[0] < depth.average < layers:
        yield Problem(("average",), f"{depth.average:g} is not between {sizes[0]} and {layers} layers")
    else:
        empty = [number for number, updates in enumerate(stage_updates(depth, steps), 1) if updates <= 0]
        if empty and depth.average:
            yield Problem(("average",), f"{depth.average:g} layers would leave stage {empty[0]} without an update")
        elif empty:
            yield Problem(("lengths",), f"leave stage {empty[0]} without an update: {steps} updates are too few")


def _path_problems(depth: Depth, layers: int, steps: int) -> Iterator[Problem]:
    try:
        fixed = fixed_numbers(depth.fixed, layers)
    except ValueError:
        yield Problem(("fixed",), f"'{depth.fixed}' is neither none nor a list of layers such as first,last or 1,2,12")
        return
    beyond = [layer for layer in fixed if not 1 <= layer <= layers]
    if beyond:
        yield Problem(("fixed",), f"names layer {beyond[0]} of a network with {layers}")
    elif depth.sizes()[0] < len(fixed):
        yield Problem(("fixed",), f"{len(fixed)} layers are on every path, which in stage 1 has {depth.sizes()[0]}")
    last = stage_updates(depth, steps)[-1]
    if depth.full_steps >= last:
        yield Problem(("full_steps",), f"{depth.full_steps} leaves nothing of the last stage, which has {last} updates")


def _value_problems(depth: Depth, model: Model) -> Iterator[Problem]:
    """Yield why updates may skip no layer whose values other layers read."""
    where = f"norm: {model.scheme} reads the values of layer 1 in every update"
    if model.shares_values and depth.kind == "layerdrop":
        yield Problem(
            ("kind",), f"layerdrop may skip layer 1, but {where}; write depth: full, or raptr with fixed: first"
        )
    elif model.shares_values and 1 not in fixed_numbers(depth.fixed, model.size.layers):
        yield Problem(("fixed",), f"'{depth.fixed}' leaves out layer 1, but {where}; write fixed: first,last")


def _drop_problems(depth: Depth, layers: int, steps: int) -> Iterator[Problem]:
    if depth.average and not 0 <= limit_of(depth, layers, steps) < 1:
        least = layers - (layers + 1) / 2 * mean_progress(depth.gamma, steps, 1, steps)
        yield Problem(
            ("average",),
            f"{depth.average:g} is not between {least:.4g} and {layers} layers, as layer drop requires",
        )
    elif not depth.average and depth.keep == 1:
        yield Problem(("keep",), "1 keeps every layer in every update; write depth: full")


def _copy_problems(depth: Depth, model: Model) -> Iterator[Problem]:
    sizes = depth.sizes()
    for before, after in pairwise(sizes):
        for target, source in copies(before, after, depth.copied):
            if _parts(model, target) != _parts(model, source):
                yield Problem(
                    ("kind",),
                    f"stacking cannot copy layer {source} to layer {target}: norm: {model.scheme} gives them different "
                    "norms",
                )
                return


def _stop_problems(depth: Depth, optim: Optim) -> Iterator[Problem]:
    start = stage_boundaries(depth, optim.steps)[-1]
    if 0 < optim.stop <= start:
        yield Problem(
            ("kind",), f"stacking reaches all layers in update {start + 1}, and optim.stop ends after {optim.stop}"
        )


def _parts(model: Model, layer: int) -> tuple[bool, ...]:
    first, second = model.wiring(layer).parts
    parts = (*first.norms, *second.norms, *(getattr(part, name) for part in (first, second) for name in FACTORS))
    return (first.qkv_norm != "none", *(isinstance(part, Norm | Factor) for part in parts))
