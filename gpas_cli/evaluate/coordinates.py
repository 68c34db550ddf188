"""The coordinate check of a parametrisation (Yang et al. 2022, appendix D.1): how much the activations change over the
first updates, by width and by depth.

In muP the change of every activation over a few updates depends on neither; in the standard parametrisation that of the
stream and the logits grows with the width, roughly in proportion, and with the depth. The check trains small networks
with a cell's scheme, gate and recipe on one row of its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.evaluate.stability import power
from gpas_cli.evaluate.theory import Sample, own_text, random_text
from gpas_cli.model.llama import Llama, build, observed_inputs
from gpas_cli.spec.cell import LATER_STAGES, Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.optim import make_optimizer, set_learning_rate
from gpas_cli.train.precision import suitable_threads

_LEAST_WIDTH = 32
_FACTORS = {"width": (1, 2, 4, 8), "depth": (1, 2, 4)}
_LAYERS = 4  # of the networks of different width, and of the base: the fewest of a Mix-LN network
_PLACES = (0, 2, 4)  # layers of the base after which the stream is measured


@dataclass(frozen=True)
class Change:
    """The change of an activation over the updates, in one parametrisation.

    over: `width` or `depth`, whose values are `at`. place: `logits`, or the layer of the base after which the stream is
    measured, 0 for the embedding; a deeper network has it as far up. changes: root mean squares of the differences, for
    each value. exponent: of a power law fitted to them, 0 where they are flat.
    """

    parametrisation: str
    over: str
    place: str
    at: tuple[int, ...]
    changes: tuple[float, ...]
    exponent: float


def coordinates(
    cell: Cell, cache: Path, root: Path, updates: int = 5, notify: Callable[[str], None] = lambda message: None
) -> list[Change]:
    """Train networks of four widths and of three depths with the scheme and recipe of `cell`, each in the standard
    parametrisation, in muP and, of several depths, in CompleteP; return the changes.

    The base is the narrowest and shallowest of them; the width of a head and the ratio of `ffn` to `hidden` are the
    cell's. Raises InvalidExperiments if the recipe has no such parametrisation.
    """
    size = cell.model.size
    width = max(_LEAST_WIDTH // size.head_dim, 1) * size.head_dim
    mup = {"kind": "mup", "base_hidden": width}
    complete = {"kind": "completep", "base_hidden": width, "base_layers": _LAYERS}
    sample = own_text(cell, cache, root) or random_text(cell)
    found = []
    with suitable_threads(size):
        for over, kinds in (("width", ({}, mup)), ("depth", ({}, mup, complete))):
            at = tuple((width if over == "width" else _LAYERS) * factor for factor in _FACTORS[over])
            for how in kinds:
                kind = str(how.get("kind", "standard"))
                rows = []
                for value in at:
                    notify(f"{kind}, {over} {value}")
                    shape = (value, _LAYERS) if over == "width" else (width, value)
                    rows.append(_changes(_at(cell, *shape, how), sample, updates))
                for number, place in enumerate((*map(str, _PLACES), "logits")):
                    changes = tuple(row[number] for row in rows)
                    found.append(Change(kind, over, place, at, changes, power(list(zip(at, changes, strict=True)))))
    return found


def _at(cell: Cell, hidden: int, layers: int, how: dict[str, Any]) -> Cell:
    """Return the cell's pretraining with another width, depth and parametrisation."""
    size = cell.model.size
    shape = {
        "hidden": hidden, "layers": layers, "heads": hidden // size.head_dim,
        "ffn": max(1, round(size.ffn * hidden / size.hidden)),
    }  # fmt: skip
    values = cell.to_mapping()
    return cell_from(
        {
            **{name: value for name, value in values.items() if name not in LATER_STAGES},
            "size": {**values["size"], **shape},
            "depth": "full",
            "parametrisation": how or "standard",
        }
    )


def _changes(cell: Cell, sample: Sample, updates: int) -> list[float]:
    """Return the changes of the stream at the base's places, first to last, and of the logits."""
    network = build(cell.model, seed=cell.seed)
    optimizer = make_optimizer(network, cell.optim)
    set_learning_rate(optimizer, cell.optim.lr)
    before = _activations(network, sample.tokens)
    for _ in range(updates):
        loss = F.cross_entropy(network(sample.tokens).flatten(0, 1), sample.targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    after = _activations(network, sample.tokens)
    return [float((b - a).square().mean().sqrt()) for a, b in zip(before, after, strict=True)]


@torch.no_grad()
def _activations(network: Llama, tokens: Tensor) -> list[Tensor]:
    """Return the stream at the places of the base, and the logits."""
    streams: list[Tensor] = []
    with observed_inputs([*network.model.layers, network.model.norm], lambda _, x: streams.append(x)):
        logits = network(tokens)
    deeper = network.spec.size.layers // _LAYERS
    return [*(streams[deeper * place] for place in _PLACES), logits]
