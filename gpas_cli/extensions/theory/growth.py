"""How activations grow: with the depth and the length at initialisation, with the width in the first updates.

The growth of the residual stream at initialisation (RaPTr, theorem 2.3, proved as theorem F.11).

    |y^(l)|^2 = |x|^2 + Theta( d sum_{j <= l} alpha_j^2 )

y^(l) is the stream after layer l, and alpha_j the factor of layer j: 0 for a layer that a path skips. The square-root
scaling of RaPTr keeps the sum at l, so that the layers of a path see streams of the size that they see in the whole
network. It is measured for a cell's own network, whole and on random paths, and for the network of the proof: Pre-LN
with LayerNorm and ReLU, weights as in definition F.5. Its layers add between d and 2 d (lemma F.10).

The standard deviation of attention's output over the length of its input (Spike No More, appendix F).

    var(Attn(x)) = var(W_O) var(W_V) var(x) d^2 / L                                        equation (48)

The paper assumes one head, normal inputs, and weights of attention that are 1/L, as at initialisation. Measured here is
the first layer's attention of a cell at initialisation, on normal inputs of variance 1, at the last token, which
attends to all L. The law has the parameters' variances as measured, with any number of heads.

The coordinate check of a parametrisation (Yang et al. 2022, appendix D.1): how much the activations change over the
first updates, by width and by depth.

In muP the change of every activation over a few updates depends on neither; in the standard parametrisation that of the
stream and the logits grows with the width, roughly in proportion, and with the depth. The check trains small networks
with a cell's scheme, gate and recipe on one row of its text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.extensions.theory.bounds import attention_numbers, inputs_of
from gpas_cli.extensions.theory.initialisation import Sample, initial_network, own_text, random_text, skeleton
from gpas_cli.extensions.theory.results import Change, Growth, LengthPoint
from gpas_cli.extensions.theory.stability import power
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.stream import observed_inputs
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import ActiveLayers, draw, factors_of
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Pre
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.structure import Frozen
from gpas_cli.train.device import suitable_threads
from gpas_cli.train.optim import make_optimizer, set_learning_rate

_RANDOM_PATHS = 32  # whose means are reported

_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
_INPUT_ELEMENTS = 2_000_000  # for each length: rows x length x d
_MOST_ROWS = 64
_LEAST_WIDTH = 32
_FACTORS = {"width": (1, 2, 4, 8), "depth": (1, 2, 4)}
_LAYERS = 4  # of the networks of different width, and of the base: the fewest of a Mix-LN network
_PROMISES = {"mup": "width", "completep": "depth"}  # over which the stream changes alike, by parametrisation
_FLAT = 0.25  # of exponents; those of right rules are at most 0.2, without the rule of the matrices' rate 0.6 to 0.8
_PLACES = (0, 2, 4)  # layers of the base after which the stream is measured


def growths(cell: Cell) -> list[Growth]:
    """Return the growth of the network of the proof, and of the cell's network, whole and on paths of half its layers.

    Paths have the first and the last layer; a layer is scaled by the square root of the distance to the next, or not.
    Raises GpasError if the network does not fit into memory.
    """
    network, device = initial_network(cell)
    tokens = random_text(cell).tokens.to(device)
    layers = cell.model.size.layers
    whole = ActiveLayers(tuple(range(1, layers + 1)), (1.0,) * layers)
    proof = _network_of_the_proof(cell).to(device)
    found = [
        growth("network of the proof", _squares(proof, tokens, [whole])),
        growth("this cell", _squares(network, tokens, [whole])),
    ]
    kept = [1.0 if layer in (1, layers) else 0.5 for layer in range(1, layers + 1)]
    paths = [draw(cell.seed, path, kept) for path in range(_RANDOM_PATHS)]
    for scale, title in (("sqrt", "paths, square-root scaling"), ("none", "paths, no scaling")):
        active = [ActiveLayers(path, factors_of(scale, path, layers, kept)) for path in paths]
        found.append(growth(title, _squares(network, tokens, active)))
    return found


def growth(title: str, squares: Sequence[float]) -> Growth:
    """Return the growth with the line fitted to it."""
    layers = np.arange(len(squares))
    slope, start = np.polyfit(layers, squares, 1)
    total = float(np.var(squares))
    left = float(np.mean((np.asarray(squares) - start - slope * layers) ** 2))
    return Growth(title, tuple(squares), float(slope), 1 - left / total if total else 1.0)


def _squares(network: Llama, tokens: Tensor, paths: Sequence[ActiveLayers]) -> list[float]:
    """Return |y|^2 / d of the stream before layer 1 and after each layer, averaged over tokens and paths."""
    total = np.zeros(network.spec.size.layers + 1)
    for path in paths:
        modules = [*(network.model.layers[layer - 1] for layer in path.layers), network.model.norm]
        with suitable_threads(network.spec.size), torch.no_grad(), inputs_of(modules, _mean_square) as seen:
            network.model(tokens, active=path)
        streams = [seen[module].item() for module in modules]
        after = dict(zip((0, *path.layers), streams, strict=True))
        stream = streams[0]
        for layer in range(len(total)):
            stream = after.get(layer, stream)
            total[layer] += stream / len(paths)
    return [float(square) for square in total]


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean()


def _network_of_the_proof(cell: Cell) -> Llama:
    """Return a float64 network of the cell's shape as in definition F.5, with one head."""
    family = replace(cell.model.family, norm="layernorm", ffn="relu", bias=False)
    size = replace(cell.model.size, heads=1, head_dim=None)
    model = Model(
        size=size, scheme="pre", norm=Pre(), gate=None, embed=cell.model.embed, init=cell.model.init, family=family
    )
    network = build(model, seed=cell.seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(cell.seed)
    for block in network.model.blocks():
        for name, parameter in block.named_parameters():
            if parameter.dim() == 2:
                std = math.sqrt(2 / size.ffn) if "up_proj" in name else 1 / math.sqrt(size.hidden)
                with torch.no_grad():
                    parameter.normal_(0.0, std, generator=generator)
    return network


class _LengthLaw(Frozen):
    """The standard deviations by length. exponent: of the length in the measured variance; -1 in (48)."""

    points: tuple[LengthPoint, ...]
    exponent: float


def length_law(cell: Cell, lengths: Sequence[int] = _LENGTHS) -> _LengthLaw:
    """Return equation (48) and the measured values of the first layer's attention. Only that layer is built."""
    network = skeleton(cell.model, cell.seed, layers=1)
    size = cell.model.size
    attention, _ = network.model.blocks()[0].sublayers(network.model.positions(torch.zeros(1, 1, size.hidden)))
    points = []
    for length in lengths:
        generator = torch.Generator().manual_seed(cell.seed)
        rows = max(1, min(_MOST_ROWS, _INPUT_ELEMENTS // (length * size.hidden)))
        x = torch.randn(rows, length, size.hidden, generator=generator, dtype=torch.float64)
        positions = network.model.positions(x)
        with suitable_threads(size), torch.no_grad():
            measured = _mean_square(attention.module(x, positions)[:, -1]).sqrt().item()
        numbers = attention_numbers(attention.module, size, length)
        predicted = numbers.sigma_o * numbers.sigma_v * size.hidden / length**0.5
        points.append(LengthPoint(length, predicted, measured))
    return _LengthLaw(tuple(points), power([(point.length, point.measured**2) for point in points]))


def coordinates(
    cell: Cell, cache: Path, root: Path, updates: int = 5, notify: Callable[[str], None] = lambda message: None
) -> list[Change]:
    """Train networks of four widths and of three depths with the scheme and recipe of `cell`, each in the standard
    parametrisation and, of several widths, in muP, of several depths, in CompleteP; return the changes.

    The base is the narrowest and shallowest of them; the width of a head and the ratio of `ffn` to `hidden` are the
    cell's. Raises InvalidExperiments if the recipe has no such parametrisation.
    """
    size = cell.model.size
    each = size.hidden // math.gcd(size.hidden, size.heads)
    width = max(_LEAST_WIDTH // each, 1) * each
    mup = {"kind": "mup", "base_hidden": width}
    complete = {"kind": "completep", "base_hidden": width, "base_layers": _LAYERS}
    sample = own_text(cell, cache, root) or random_text(cell)
    found = []
    with suitable_threads(size):
        for over, scaled in (("width", mup), ("depth", complete)):
            at = tuple((width if over == "width" else _LAYERS) * factor for factor in _FACTORS[over])
            shapes = [(value, _LAYERS) if over == "width" else (width, value) for value in at]
            # All cells before the first training: a recipe without a rule is refused here.
            for how, cells in [(how, [_at(cell, *shape, how) for shape in shapes]) for how in ({}, scaled)]:
                kind = str(how.get("kind", "standard"))
                rows = []
                for value, own in zip(at, cells, strict=True):
                    notify(f"{kind}, {over} {value}")
                    rows.append(_changes(own, sample, updates))
                for number, place in enumerate((*map(str, _PLACES), "logits")):
                    changes = tuple(row[number] for row in rows)
                    exponent = power(list(zip(at, changes, strict=True)))
                    found.append(Change(kind, over, place, at, changes, exponent, _flat(kind, over, place, exponent)))
    return found


def _flat(kind: str, over: str, place: str, exponent: float) -> bool | None:
    """Return whether the stream changes alike; None where the parametrisation does not promise it.

    The logits are not judged: in muP their change falls over the width in the first updates.
    """
    return abs(exponent) <= _FLAT if place != "logits" and _PROMISES.get(kind) == over else None


def _at(cell: Cell, hidden: int, layers: int, how: dict[str, Any]) -> Cell:
    """Return the cell's pretraining with another width, depth and parametrisation."""
    size = cell.model.size
    shape = {
        "hidden": hidden, "layers": layers, "heads": hidden * size.heads // size.hidden,
        "ffn": max(1, round(size.ffn * hidden / size.hidden)),
    }  # fmt: skip
    values = replace(cell, later=(), start=None).to_mapping()
    return cell_from(
        {**values, "size": {**values["size"], **shape}, "depth": "full", "parametrisation": how or "standard"}
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
