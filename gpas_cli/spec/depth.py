"""Which layers train in each update: all of them, random paths (RaPTr), a growing network (stacking), or layer drop.

A `Depth` is the section of a cell. A `LayerSchedule` computes the layers of every update from it, as a pure function of
(seed, update): the same in all processes and after a resume. `depth_problems` finds what is wrong with a section.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from hashlib import shake_128
from itertools import pairwise
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import FACTORS, Factor, Norm
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import plain, setting
from gpas_cli.structure import Frozen

FULL = "full"
# The settings that each kind reads, except `average`, which is resolved into `lengths` or `keep`.
READS: dict[str, tuple[str, ...]] = {
    FULL: (),
    "raptr": ("stages", "lengths", "full_steps", "fixed", "drawn", "scale", "skipped"),
    "stacking": ("stages", "lengths", "copied", "moments"),
    "layerdrop": ("keep", "gamma", "scale", "skipped"),
}
_LISTS = {"stages": "-", "work_of": "-", "fixed": ","}
_WORD_BYTES = 8  # per random number


class Depth(Frozen, kw_only=True):
    """The layers that train in each update. A layer in an update computes x + s (Block(x) - x), a skipped one x.

    kind: `full` trains all layers in every update. `raptr` trains random paths whose expected length grows in stages
    (RaPTr, algorithm 1). `stacking` trains the first layers, and grows the network by copies of its layers (gradual
    stacking, Reddi et al. 2023). `layerdrop` skips more layers the later the update and the deeper the layer
    (progressive layer dropping, Zhang and He 2020).

    stages: the number of layers in each stage, "6-8-10-12"; the last is the whole network. For `raptr` it is the
    expected length of a path. lengths: `equal` stages, `proportional` ones (stage k is k times as long as the first) or
    a list of relative lengths. average: the average number of layers over the training. With stages it replaces
    `lengths` as RaPTr, appendix C, does: of equal and proportional stages it takes those whose average is closer, and
    removes the same number of updates from every stage but the last, which gets them. With `layerdrop` it replaces
    `keep`. full_steps: the number of updates at the start in which the whole network trains; the last stage is
    shorter by as many (`raptr`).

    fixed: layers that are on every path, "first,last" or numbers such as "1,2,12", or `none`. drawn: each other layer
    is on a path `independently` of the others, or every path has the number of layers of its stage (`exactly`). A
    single stage may have fewer layers than the network: "23" of 24 leaves one out in every update. scale: s. `sqrt` is
    the square root of the distance to the next layer on the path (RaPTr, h_sqr: the squares of the first j layers add
    up to j where layer j + 1 is on the path, not for all j as section 2.1 says), `linear` the distance itself,
    `inverse` 1 / p for a layer that is kept with probability p, `none` 1.
    skipped: the optimizer leaves out the weights and the state of a skipped layer (`keep`), or sees a gradient of zero,
    so that momentum and weight decay act on it (`zero`). The paper does not state which.

    keep, gamma: with `layerdrop`, layer l of L is kept in update t of T with the probability 1 - (l / L)(1 - theta),
    theta = (1 - keep) exp(-gamma t / T) + keep (Zhang and He 2020, whose code counts layers from 0).

    copied: what stacking puts on top of n layers: the `last` ones again (gradual stacking), or the `whole` network from
    its first layer on (progressive stacking, Gong et al. 2019). For twice as many layers both are the same. moments:
    the optimizer state of a copied layer is `copied` too, or `fresh`; RaPTr does not state which.

    work_of: stages such as "6-8-10-12", with `full` only: the whole network trains for the number of updates that costs
    as much layer work as these stages over `optim.steps`, with `lengths` or `average`. The cell is the same as that of
    a plain training with this number of updates.
    """

    kind: str = setting(FULL, choices=tuple(READS))
    stages: str = setting("")
    lengths: str | tuple[int, ...] = setting("equal", choices=("equal", "proportional"), low=1)
    average: float = setting(0.0, low=0)
    full_steps: int = setting(0, low=0)
    fixed: str = setting("first,last")
    drawn: str = setting("independently", choices=("independently", "exactly"))
    scale: str = setting("sqrt", choices=("sqrt", "linear", "inverse", "none"))
    skipped: str = setting("keep", choices=("keep", "zero"))
    keep: float = setting(0.5, low=0, high=1)
    gamma: float = setting(100.0, above=0, high=1e6)
    copied: str = setting("last", choices=("last", "whole"))
    moments: str = setting("copied", choices=("copied", "fresh"))
    work_of: str = setting("")

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with the defaults of its kind and with lists of layers as text."""
        named = DEPTHS.get(str(values.get("kind")), Depth())
        found = {"scale": named.scale, **values}
        for name, between in _LISTS.items():
            found[name] = _text(found[name], between) if name in found else getattr(named, name)
        return found

    @property
    def is_full(self) -> bool:
        """Whether all layers train in every update."""
        return self.kind == FULL

    def sizes(self) -> tuple[int, ...]:
        """Return the number of layers in each stage; () without stages."""
        return _numbers(self.stages or self.work_of, "-")

    def fixed_layers(self) -> frozenset[int]:
        """Return the layers that are on every path, numbered from 1; of a section that `resolved` has returned."""
        return frozenset(() if self.fixed == "none" else _numbers(self.fixed, ","))

    def to_mapping(self, *, for_key: bool = False) -> dict[str, Any]:
        """Return the settings that the kind reads as JSON-ready data; with `for_key`, without defaults."""
        read = {name: plain(getattr(self, name)) for name in READS[self.kind]}
        usual = DEPTHS[self.kind]
        if for_key:
            read = {name: value for name, value in read.items() if value != plain(getattr(usual, name))}
        return {} if for_key and self.is_full else {"kind": self.kind, **read}


def _text(value: Any, between: str) -> Any:
    if value is None:
        return "none"
    if isinstance(value, list):
        return between.join(str(item) for item in value) or "none"
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _numbers(text: str, between: str) -> tuple[int, ...]:
    """Return the whole numbers in a text. Raises ValueError if there is anything else."""
    return tuple(int(part) for part in text.split(between)) if text else ()


DEPTHS: dict[str, Depth] = {
    FULL: Depth(),
    "raptr": Depth(kind="raptr"),
    "stacking": Depth(kind="stacking"),
    "layerdrop": Depth(kind="layerdrop", scale="inverse"),
}


def copies(before: int, after: int, copied: str) -> tuple[tuple[int, int], ...]:
    """Return (layer, the layer that it is a copy of) for every layer with which a network grows.

    `before`, `after`: the number of its layers.
    """
    repeated = before if copied == "whole" else min(before, after - before)
    first = before - repeated + 1
    return tuple((layer, first + (layer - before - 1) % repeated) for layer in range(before + 1, after + 1))


def fixed_numbers(text: str, layers: int) -> tuple[int, ...]:
    """Return the layers that `fixed` names, sorted. Raises ValueError for anything else."""
    if text == "none":
        return ()
    words = {"first": 1, "last": layers}
    return tuple(sorted({words.get(part.strip()) or int(part) for part in text.split(",")}))


def stage_boundaries(depth: Depth, steps: int) -> tuple[int, ...]:
    """Return the last update of every stage but the last, as if `full_steps` were 0."""
    sizes = depth.sizes()
    lengths = _relative_lengths(depth, sizes, steps)
    total = sum(lengths)
    ends = [sum(lengths[: k + 1]) for k in range(len(sizes) - 1)]
    return tuple(round(steps * end / total) for end in ends)


def stage_updates(depth: Depth, steps: int) -> tuple[int, ...]:
    """Return the number of updates in every stage, as if `full_steps` were 0."""
    ends = stage_boundaries(depth, steps)
    return tuple(end - start for start, end in zip((0, *ends), (*ends, steps), strict=True))


def _relative_lengths(depth: Depth, sizes: Sequence[int], steps: int) -> Sequence[float]:
    if not depth.average:
        return _named_lengths(depth.lengths, len(sizes))
    candidates = [_named_lengths(name, len(sizes)) for name in ("equal", "proportional")]
    nearest = min(candidates, key=lambda lengths: abs(_mean(sizes, lengths) - depth.average))
    whole = sum(nearest)
    # Taking a share from each stage but the last, and giving it to the last, raises the average by this per share.
    gain = sum(sizes[-1] - size for size in sizes[:-1])
    taken = (depth.average - _mean(sizes, nearest)) / gain
    shares = [length / whole - taken for length in nearest[:-1]]
    return [*(steps * share for share in shares), steps * (1 - sum(shares))]


def _named_lengths(lengths: str | Sequence[int], stages: int) -> Sequence[float]:
    if isinstance(lengths, str):
        return [1] * stages if lengths == "equal" else range(1, stages + 1)
    return lengths


def _mean(sizes: Sequence[int], lengths: Sequence[float]) -> float:
    return sum(size * length for size, length in zip(sizes, lengths, strict=True)) / sum(lengths)


def mean_progress(gamma: float, steps: int, first: int, last: int) -> float:
    """Return the mean of 1 - exp(-gamma t / steps) over the updates t = first..last."""
    rate = gamma / steps
    # The sum of exp(-rate t) is a geometric series.
    decayed = math.exp(-rate * first) * math.expm1(-rate * (last - first + 1)) / math.expm1(-rate)
    return 1 - decayed / (last - first + 1)


def limit_of(depth: Depth, layers: int, steps: int) -> float:
    """Return the `keep` with which `layerdrop` trains `average` layers."""
    return 1 - (layers - depth.average) / ((layers + 1) / 2 * mean_progress(depth.gamma, steps, 1, steps))


class _ResolvedDepth(Frozen):
    """The canonical spelling of a section, without `average` and `work_of`, and what it decides about the recipe."""

    depth: Depth
    steps: int  # the number of updates; with `work_of`, as many as cost the same work
    last_stage: int | None = None
    """The updates of the last stage, None without stages; with `work_of`, its share of the updates is as in the stages
    that `work_of` names."""


def resolved(depth: Depth, layers: int, steps: int) -> _ResolvedDepth:
    """Return the canonical spelling of a valid section of a network that would train for `steps` updates."""
    if depth.work_of:
        updates = stage_updates(depth, steps)
        share = _mean(depth.sizes(), updates) / layers
        return _ResolvedDepth(Depth(), max(1, round(steps * share)), max(1, round(updates[-1] * share)))
    if depth.kind == "layerdrop" and depth.average:
        depth = replace(depth, keep=limit_of(depth, layers, steps))
    if depth.kind == "raptr":
        depth = replace(depth, fixed=",".join(map(str, fixed_numbers(depth.fixed, layers))) or "none")
    last_stage = None
    if depth.stages:
        last_stage = stage_updates(depth, steps)[-1] - depth.full_steps
        depth = replace(depth, lengths=_canonical_lengths(depth, steps), stages="-".join(map(str, depth.sizes())))
    return _ResolvedDepth(replace(depth, average=0.0), steps, last_stage)


def _canonical_lengths(depth: Depth, steps: int) -> str | tuple[int, ...]:
    """Return the name of the lengths if they have one, else the lengths in updates."""
    own = stage_boundaries(depth, steps)
    for name in ("equal", "proportional"):
        if stage_boundaries(replace(depth, lengths=name, average=0.0), steps) == own:
            return name
    return stage_updates(depth, steps)


class ActiveLayers(Frozen):
    """The layers of an update in their order, numbered from 1, and the factor s of each: x + s (Block(x) - x)."""

    layers: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def plain(self) -> bool:
        """Whether every factor is 1."""
        return all(factor == 1 for factor in self.factors)


def factors_of(scale: str, active: Sequence[int], layers: int, kept: Sequence[float]) -> tuple[float, ...]:
    """Return the factor of each active layer of a network with `layers`; kept: the probability of each of its layers.

    The distance of the last active layer is that to `layers` + 1.
    """
    if scale == "inverse":
        return tuple(1 / kept[layer - 1] for layer in active)
    rules: dict[str, Callable[[int], float]] = {"sqrt": math.sqrt, "linear": float, "none": lambda gap: 1.0}
    gaps = (after - layer for layer, after in zip(active, (*active, layers + 1)[1:], strict=True))
    return tuple(map(rules[scale], gaps))


def draw(seed: int, update: int, kept: Sequence[float], *, exactly: bool = False) -> tuple[int, ...]:
    """Return the layers, numbered from 1, that are kept: layer l with the probability kept[l - 1], independently.

    exactly: so that their number is the expected one, which is whole; the probabilities of all that may be left out are
    equal.
    """
    words = shake_128(f"depth {seed} {update}".encode()).digest(_WORD_BYTES * len(kept))
    numbers = (int.from_bytes(words[at : at + _WORD_BYTES], "little") for at in range(0, len(words), _WORD_BYTES))
    if exactly:
        always = [(p < 1, n, layer) for layer, (n, p) in enumerate(zip(numbers, kept, strict=True), 1)]
        return tuple(sorted(layer for *_, layer in sorted(always)[: round(sum(kept))]))
    return tuple(layer for layer, (n, p) in enumerate(zip(numbers, kept, strict=True), 1) if n < p * 2**64)


class LayerSchedule(Frozen):
    """The layers of every update of a network with `layers` layers that trains for `steps`. Updates count from 1.

    depth: a section that `spec.depth.resolved` has returned.
    """

    depth: Depth
    layers: int
    steps: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of layers in each stage; one stage of all layers if the kind has no stages."""
        return self.depth.sizes() or (self.layers,)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first update of every stage. The updates of `full_steps` before the first stage have all layers."""
        if not self.depth.stages:
            return (1,)
        ends = stage_boundaries(self.depth, self.steps)
        return tuple(1 + self.depth.full_steps + end for end in (0, *ends))

    def size(self, update: int) -> int:
        """Return the number of layers of an update's stage: for `raptr` the expected length of a path."""
        stage = bisect_right(self.starts, update)
        return self.sizes[stage - 1] if stage else self.layers

    def kept(self, update: int) -> tuple[float, ...]:
        """Return the probability with which each layer is kept in an update."""
        kinds = {"raptr": self._path_probabilities, "stacking": self._prefix, "layerdrop": self._drop_probabilities}
        return kinds[self.depth.kind](update) if self.depth.kind in kinds else (1.0,) * self.layers

    def _path_probabilities(self, update: int) -> tuple[float, ...]:
        """Return 1 for a fixed layer and (n - |I|) / (L - |I|) for the others, with n the size of the stage."""
        size = self.size(update)
        fixed = self.depth.fixed_layers()
        others = self.layers - len(fixed)
        p = (size - len(fixed)) / others if others else 1.0
        return tuple(1.0 if layer in fixed else p for layer in range(1, self.layers + 1))

    def _prefix(self, update: int) -> tuple[float, ...]:
        size = self.size(update)
        return (1.0,) * size + (0.0,) * (self.layers - size)

    def _drop_probabilities(self, update: int) -> tuple[float, ...]:
        dropped = (1 - self.depth.keep) * mean_progress(self.depth.gamma, self.steps, update, update)
        return tuple(1 - layer / self.layers * dropped for layer in range(1, self.layers + 1))

    def at(self, seed: int, update: int) -> ActiveLayers:
        """Return the layers that train in an update."""
        kept = self.kept(update)
        active = draw(seed, update, kept, exactly=self.depth.drawn == "exactly")
        scale = self.depth.scale if self.depth.kind in ("raptr", "layerdrop") else "none"
        return ActiveLayers(active, factors_of(scale, active, self.layers, kept))

    def evaluated(self, update: int) -> ActiveLayers:
        """Return the layers that an evaluation after an update uses: all that the network has at that time."""
        there = self.size(max(1, update)) if self.depth.kind == "stacking" else self.layers
        return ActiveLayers(tuple(range(1, there + 1)), (1.0,) * there)

    def copies(self, update: int) -> tuple[tuple[int, int], ...]:
        """Return (layer, the layer that it starts as a copy of) for every layer that is new in an update."""
        if self.depth.kind != "stacking" or update not in self.starts[1:]:
            return ()
        return copies(self.size(update - 1), self.size(update), self.depth.copied)

    def drawn(self, seed: int, first: int, last: int) -> float:
        """Return the average number of layers that train in the updates first..last."""
        if self.depth.is_full:
            return self.layers
        return sum(len(self.at(seed, update).layers) for update in range(first, last + 1)) / (last + 1 - first)

    def average(self, first: int = 1, last: int = 0) -> float:
        """Return the average of the expected number of layers over the updates first..last, by default all."""
        last = last or self.steps
        if self.depth.is_full:
            return self.layers
        if self.depth.kind == "layerdrop":
            dropped = (1 - self.depth.keep) * mean_progress(self.depth.gamma, self.steps, first, last)
            return self.layers - (self.layers + 1) / 2 * dropped
        edges = [first, *(start for start in self.starts if first < start <= last), last + 1]
        total = sum(self.size(start) * (end - start) for start, end in pairwise(edges))
        return total / (last + 1 - first)


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
        return list(_stacking_problems(depth, model, optim))
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
            ("average",), f"{depth.average:g} is not between {least:.4g} and {layers} layers, as layer drop requires"
        )
    elif not depth.average and depth.keep == 1:
        yield Problem(("keep",), "1 keeps every layer in every update; write depth: full")


def _stacking_problems(depth: Depth, model: Model, optim: Optim) -> Iterator[Problem]:
    pairs = (pair for before, after in pairwise(depth.sizes()) for pair in copies(before, after, depth.copied))
    for target, source in [pair for pair in pairs if len({_parts(model, layer) for layer in pair}) > 1][:1]:
        why = f"norm: {model.scheme} gives them different norms"
        yield Problem(("kind",), f"stacking cannot copy layer {source} to layer {target}: {why}")
    start = stage_boundaries(depth, optim.steps)[-1]
    if 0 < optim.stop <= start:
        yield Problem(
            ("kind",), f"stacking reaches all layers in update {start + 1}, and optim.stop ends after {optim.stop}"
        )


def _parts(model: Model, layer: int) -> tuple[bool, ...]:
    first, second = model.wiring(layer).parts
    parts = (*first.norms, *second.norms, *(getattr(part, name) for part in (first, second) for name in FACTORS))
    return (first.qkv_norm != "none", *(isinstance(part, Norm | Factor) for part in parts))
