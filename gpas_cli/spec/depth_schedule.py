"""The layers of every update, a pure function of (seed, update): the same in all processes and after a resume."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_128
from itertools import pairwise

from gpas_cli.spec.depth import Depth, copies, mean_progress, stage_boundaries

_WORD_BYTES = 8  # per random number


@dataclass(frozen=True)
class ActiveLayers:
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
    gaps = [after - layer for layer, after in zip(active, (*active, layers + 1)[1:], strict=True)]
    rules: dict[str, Callable[[int, int], float]] = {
        "sqrt": lambda layer, gap: math.sqrt(gap),
        "linear": lambda layer, gap: float(gap),
        "inverse": lambda layer, gap: 1 / kept[layer - 1],
        "none": lambda layer, gap: 1.0,
    }
    return tuple(rules[scale](layer, gap) for layer, gap in zip(active, gaps, strict=True))


def draw(seed: int, update: int, kept: Sequence[float]) -> tuple[int, ...]:
    """Return the layers, numbered from 1, that are kept: layer l with the probability kept[l - 1], independently."""
    words = shake_128(f"depth {seed} {update}".encode()).digest(_WORD_BYTES * len(kept))
    numbers = (int.from_bytes(words[at : at + _WORD_BYTES], "little") for at in range(0, len(words), _WORD_BYTES))
    return tuple(layer for layer, (n, p) in enumerate(zip(numbers, kept, strict=True), 1) if n < p * 2**64)


@dataclass(frozen=True)
class LayerSchedule:
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
        active = draw(seed, update, kept)
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

    def expected(self, update: int) -> float:
        """Return the expected number of layers of an update."""
        return sum(self.kept(update))

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
