"""The papers' theory for one cell at initialisation, in float64: bounds and measured norms, layer by layer.

Networks at initialisation without their matrices: the products with them are drawn, from the moments that they have.

A matrix W, shape (m, n), at initialisation has independent normal elements of mean 0 and one standard deviation. For
inputs X (time, n) that do not depend on W, the outputs X W^T are then normal: their columns are independent, with
covariance std^2 X X^T between tokens. `Drawn` replaces each product by such a draw, from `time` x m numbers instead of
n x m. It is exact in distribution, since every matrix is used once in a forward pass. Norms, gates, activations,
attention's weights and learned positions are computed as ever.

Matrices of up to _MOST_ELEMENTS elements are drawn themselves, with the numbers that training starts from: networks of
such matrices give what they give when they are built, up to rounding. Larger ones give what another seed could give.
Measured on networks of 384 features, 6 layers and 256 tokens, of six schemes and initialisations with three seeds each:
if no matrix is drawn itself, the bounds of equation (15) differ from the built network's by 1.5 % on average and
8 % at most; two built networks with different seeds differ by up to 12 %. The standard deviation of a matrix that is
not drawn is the expected one, which a drawn matrix meets within about 1 / sqrt(2 n m).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gpas_cli.data.loader import Batches
from gpas_cli.errors import DataError, GpasError
from gpas_cli.extensions.theory.bounds import (
    NOT_COMPOSED,
    attention_numbers,
    both_gradients,
    deviation,
    feed_forward_numbers,
    gate_alphas,
    mean_squares,
    naive_over_preserved,
    reading,
    readings,
    spectral_norm,
    stream_gradients,
    sublayer_inputs,
)
from gpas_cli.extensions.theory.depth_bounds import DepthBound, StageGap, depth_bound, stage_gap
from gpas_cli.model.attention import Positions
from gpas_cli.model.init import draw, initialise, standard_deviations
from gpas_cli.model.llama import Llama, SubLayer, build
from gpas_cli.model.stream import observed_inputs
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Wiring
from gpas_cli.structure import Frozen
from gpas_cli.train import checkpoint
from gpas_cli.train.device import choose_device, suitable_threads, threads
from gpas_cli.train.training import prepare_text
from gpas_cli.words import byte_size

_MOST_ELEMENTS = 1_000_000
# Added to the diagonal of X X^T, as a share of its mean, so that equal tokens leave it positive definite.
_RIDGE = 1e-10
# Measured tokens: a row of the reference. Attention's bound and its Jacobian depend on their number.
_TOKENS = 256
# Built in float32 (4) and then copied to float64 (8).
_BYTES_PER_PARAMETER = 12


class Drawn(TorchFunctionMode):
    """Inside this context, products with matrices of `network` are draws for `seed`; one matrix is in memory at most.

    network: what `skeleton` returns.
    """

    def __init__(self, network: Llama, seed: int):
        super().__init__()
        self._stds = standard_deviations(network, network.spec)
        self._names: dict[Tensor, str] = {
            parameter: name for name, parameter in network.named_parameters() if parameter.is_meta
        }
        self._zero_row = network.spec.size.vocab - 1 if network.spec.init.zero_last_row else -1
        self._seed = seed
        self._last: tuple[Tensor, Tensor] | None = None

    def deviation(self, weight: Tensor) -> float:
        """Return the standard deviation of a matrix: of its elements where they are drawn, else the expected one."""
        known = weight.numel() > _MOST_ELEMENTS
        return self._stds[self._names[weight]] if known else deviation(self._normal(weight, weight.shape).double())

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = {F.linear: self._product, F.embedding: self._rows}.get(func)  # every bias starts at 0
        return drawn(*args[:2]) if drawn and args[1] in self._names else func(*args, **(kwargs or {}))

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: (1, time, n) -> x W^T, (1, time, m)."""
        if weight.numel() <= _MOST_ELEMENTS:
            return x @ self._normal(weight, weight.shape).to(x).T
        # In float32, in which the numbers are drawn: twice as fast as in float64.
        return (self._root(x) @ self._normal(weight, (x.shape[1], len(weight)))).to(x)[None]

    def _root(self, x: Tensor) -> Tensor:
        """Return R with R R^T = x x^T, (time, time), in float32. Queries, keys and values have the same x."""
        if self._last is None or self._last[0] is not x:
            gram = x[0] @ x[0].T
            gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
            self._last = x, torch.linalg.cholesky(gram).float()
        return self._last[1]

    def _rows(self, tokens: Tensor, table: Tensor) -> Tensor:
        if table.numel() > _MOST_ELEMENTS:  # the rows of these tokens alone
            own, index = torch.unique(tokens, return_inverse=True)
            rows = self._normal(table, (len(own), table.shape[1]))[index]
        else:
            rows = self._normal(table, table.shape)[tokens]
        return rows.masked_fill(tokens[..., None] == self._zero_row, 0.0).double()

    def _normal(self, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
        return draw(torch.Size(shape), self._seed, self._names[weight]) * self._stds[self._names[weight]]


def skeleton(model: Model, seed: int, layers: int = 0) -> Llama:
    """Return the network at initialisation in float64, with its linear maps and its table of tokens on the device
    "meta" in float32, where the functions for narrow networks do not take them; the first `layers` layers are whole."""
    network = build(model, device="meta")
    for module in network.modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            module.to_empty(device="cpu", recurse=False)
    for block in network.model.blocks()[:layers]:
        block.to_empty(device="cpu")
    initialise(network, model, seed)
    for parameter in network.parameters():
        parameter.data = parameter.data if parameter.is_meta else parameter.data.double()
    return network


class Sample(Frozen):
    """One row of text: tokens and their successors, shape (1, time), and their origin."""

    tokens: Tensor
    targets: Tensor
    origin: str


class _SubLayerBound(Frozen):
    """One sub-layer."""

    stream_std: float  # the standard deviation of the stream that the bounds are for
    bound: float  # equation (20), (44), or (29) for a feed-forward network without a gate
    worst: float  # the same for the token with the largest bound
    norm: float  # the measured spectral norm of the Jacobian over all tokens together


class _FeedForwardBound(_SubLayerBound):
    """One feed-forward sub-layer."""

    identity: float  # equation (15), as in Figure 2
    swiglu: bool  # whether `bound` and `worst` are (44)
    slope: float  # the factor of the activation in (29), without `swiglu`


class LayerBounds(Frozen):
    """One layer, counted from 1. `gradient_ratio`: ||dL/d input|| / ||dL/d output||, at most `norm`s' product."""

    layer: int
    equation: bool
    attention: _SubLayerBound
    feed_forward: _FeedForwardBound
    gradient_ratio: float

    @property
    def bound(self) -> float:
        """The layer's factor in equation (7)."""
        return self.attention.bound * self.feed_forward.bound


class Preserved(Frozen):
    """The norm of the gradient under naive scaling over that under GPAS, for the stream entering layer `layer` (L + 1:
    the final norm): predicted from the gates (None if no product of betas is exact) and measured by autograd.

    `error`: the largest difference of an element from the prediction, relative to the largest element.
    """

    layer: int
    predicted: float | None
    measured: float
    error: float | None


class Theory(Frozen):
    """The results of `gpas theory bounds` for a cell. `gates`: the origin of the gates' values, "" without gates."""

    sample: str
    length: int
    layers: tuple[LayerBounds, ...]
    gates: str
    preserved: tuple[Preserved, ...]

    @property
    def log10_bound(self) -> float:
        """Equation (7): log10 of the bound of ||dL/dx_1|| / ||dL/dy_L||. The paper's product ends at N - 1, which
        omits a layer; this one is over all layers."""
        return sum(math.log10(layer.bound) for layer in self.layers)

    @property
    def log10_gradient_ratio(self) -> float:
        """log10 of ||dL/dx_1|| / ||dL/dy_L||, measured."""
        return sum(math.log10(layer.gradient_ratio) for layer in self.layers)


def examine(
    cell: Cell,
    cache: Path,
    root: Path,
    trained: Sequence[Path] = (),
    notify: Callable[[str], None] = lambda message: None,
) -> Theory:
    """Compute bounds and measurements of `cell`'s network at initialisation, and the gradients its gates preserve.

    trained: checkpoints, best first, for the gates' values in the comparison of gradients; all else is initial.
    `notify` is called with each step. Raises GpasError if the network does not fit into memory.
    """
    _check_attention(cell)
    with suitable_threads(cell.model.size):
        notify("building the network in float64")
        network, sample = _network_and_text(cell, cache, root)
        layers = tuple(bounds_of(network, sample, notify))
        gates = ""
        preserved = list[Preserved]()
        if cell.model.gate is not None:
            gates = _take_gates(network, trained)
            preserved = _preserved_gradients(network, sample)
    return Theory(sample.origin, sample.tokens.shape[1], layers, gates, tuple(preserved))


def depth_theory(
    cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]
) -> tuple[DepthBound | None, StageGap]:
    """Return the bounds of The Curse of Depth, None where it derives none, and both sides of RaPTr's theorem 4.2.

    `notify` is called with each layer. Raises GpasError as `examine`.
    """
    _check_attention(cell)
    with suitable_threads(cell.model.size):
        network, sample = _network_and_text(cell, cache, root)
        stages = stage_gap(network, sample.tokens, sample.targets, lambda layers: announced(layers, notify))
        return depth_bound(network, sample.tokens), stages


def _check_attention(cell: Cell) -> None:
    if not cell.objective.causal:
        raise GpasError(
            f"the bounds are for causal attention; objective {cell.objective.kind} has bidirectional attention"
        )
    if cell.model.family.qk_norm != "none" or cell.model.wiring(cell.model.size.layers).qkv_norm != "none":
        raise GpasError("the bound of attention is for queries and keys without norms, which this network has")
    for name in ("kv_heads", "head_dim"):
        if getattr(cell.model.size, name):
            raise GpasError(f"the bound of attention is for heads of d / h features; size.{name} changes that")
    _check_norm(cell)
    if cell.model.shares_values:
        raise GpasError(f"the bounds are for one residual stream; norm: {cell.model.scheme} also passes on values")
    if cell.model.query_factor != 1:
        raise GpasError("the bound of attention is for logits in 1/sqrt(d); parametrisation.base_heads changes that")


def _check_norm(cell: Cell) -> None:
    if cell.model.family.norm == "dyt":
        raise GpasError("the bounds are for norms, whose output has a fixed scale; that of family.norm: dyt has none")


def _network_and_text(cell: Cell, cache: Path, root: Path) -> tuple[Llama, Sample]:
    network, device = initial_network(cell)
    text = own_text(cell, cache, root) or random_text(cell)
    return network, replace(text, tokens=text.tokens.to(device), targets=text.targets.to(device))


def identity_bounds(
    cell: Cell, cache: Path, root: Path, notify: Callable[[str], None] = lambda message: None
) -> list[float]:
    """Return equation (15) of every layer at initialisation, as in Figure 2 of Spike No More, from one forward pass.

    No network is built: products with large matrices are drawn (`Drawn`). `notify` is called with each layer. Raises
    GpasError for layers that are not the composition of their two sub-layers.
    """
    _check_norm(cell)
    network = skeleton(cell.model, cell.seed)
    blocks = network.model.blocks()
    if any(block.bottom for block in blocks):
        raise GpasError(NOT_COMPOSED)
    tokens = (own_text(cell, cache, root) or random_text(cell)).tokens
    parts = [block.sublayers(Positions())[1] for block in blocks]
    drawn = Drawn(network, cell.seed)
    layers = announced(len(blocks), notify)
    with (
        threads(1),  # two take two thirds of the time of one, but on a busy machine four times as long
        torch.no_grad(),
        drawn,
        mean_squares(parts) as seen,
        observed_inputs(blocks, lambda *_: next(layers)),
    ):
        network.model(tokens)
    return [
        reading(part, seen, torch.mean, torch.mean).bound(
            feed_forward_numbers(part.module, cell.model, drawn.deviation).identity()
        )
        for part in parts
    ]


def announced(layers: int, notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` before each of `layers` layers, with an estimate of the remaining seconds from the second on."""
    began = time.monotonic()
    for done in range(layers):
        left = f", about {(time.monotonic() - began) / done * (layers - done):.0f} s left" if done else ""
        notify(f"layer {done + 1} of {layers}{left}")
        yield


def initial_network(cell: Cell) -> tuple[Llama, torch.device]:
    """Return the cell's network in float64 at initialisation, and its device. Raises GpasError as `examine`."""
    device = choose_device()
    _check_memory(cell.model, device)
    return build(cell.model, seed=cell.seed, dtype=torch.float64, device=device), device


def own_text(cell: Cell, cache: Path, root: Path) -> Sample | None:
    """Return the first row of the cell's first batch without padding; None unless its text is in the cache."""
    if not any((cache / "tokens").glob(f"{cell.data.source}-*")):
        return None
    try:
        corpus = prepare_text(cell, cache, root, notify=_refuse)
    except (DataError, _NotPrepared):
        return None
    batch = Batches(corpus.train, cell.optim.batch, cell.seed).at(0)
    inputs = batch.inputs[:1, :_TOKENS]
    targets = batch.targets[:1, :_TOKENS]
    real = int((targets >= 0).sum())
    tokens = torch.from_numpy(inputs[:, :real].copy())
    successors = torch.from_numpy(targets[:, :real].copy())
    return Sample(tokens, successors, "the first row of the cell's first batch")


class _NotPrepared(Exception):
    """The text would have to be tokenised first."""


def _refuse(message: str) -> None:
    # `prepare_text` notifies before it starts anything slow, which `gpas explain` should not start.
    raise _NotPrepared(message)


def random_text(cell: Cell) -> Sample:
    """Return uniform random tokens of the cell's length, without the vocabulary's last row, which may be zero."""
    # In packed rows the last token has a successor, in padded rows it has none.
    width = min(cell.data.length + (cell.data.layout == "pack"), _TOKENS + 1)
    generator = torch.Generator().manual_seed(cell.seed)
    row = torch.randint(0, cell.model.size.vocab - 1, (1, width), generator=generator)
    return Sample(row[:, :-1], row[:, 1:], "random tokens, since the cell's text is not tokenised here")


def _check_memory(model: Model, device: torch.device) -> None:
    needed = _BYTES_PER_PARAMETER * sum(p.numel() for p in build(model, device="meta").parameters())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise GpasError(
            f"the bounds need this network in float64, about {byte_size(needed)}, and {byte_size(free)} are free; "
            "choose a smaller cell of the same scheme"
        )


def bounds_of(
    network: Llama, sample: Sample, notify: Callable[[str], None] = lambda message: None
) -> Iterator[LayerBounds]:
    """Yield the bounds of every layer of a float64 network, first layer first."""
    notify("gradients of all layers")
    gradients = [g.norm().item() for g in stream_gradients(network, sample.tokens, sample.targets)]
    layers = announced(network.spec.size.layers, notify)
    for index, (attention, feed_forward, x, middle) in enumerate(sublayer_inputs(network, sample.tokens)):
        next(layers)
        yield LayerBounds(
            layer=index + 1,
            equation=_is_papers(network.spec, index + 1),
            attention=_attention_bound(attention, x, network.spec),
            feed_forward=_feed_forward_bound(feed_forward, middle, network.spec),
            gradient_ratio=gradients[index] / gradients[index + 1],
        )


def _is_papers(model: Model, layer: int) -> bool:
    """Return whether the paper's equations apply to the layer: x + f(N(x)), perhaps with gates whose Jacobian is I."""
    wiring = model.wiring(layer)
    bare = replace(wiring, in_norm=None, home=Wiring().home) == Wiring() and wiring.in_norm is not None
    return bare and (model.gate is None or model.gate.stop_gradient)


def _attention_bound(sublayer: SubLayer, x: Tensor, model: Model) -> _SubLayerBound:
    numbers = attention_numbers(sublayer.module, model.size, x.shape[1])
    mean, worst = (around.bound(numbers.jacobian(around.s)) for around in readings(sublayer, x))
    return _SubLayerBound(deviation(x), mean, worst, spectral_norm(sublayer.apply, x))


def _feed_forward_bound(sublayer: SubLayer, x: Tensor, model: Model) -> _FeedForwardBound:
    numbers = feed_forward_numbers(sublayer.module, model)
    mean, worst = readings(sublayer, x)
    return _FeedForwardBound(
        stream_std=deviation(x),
        bound=mean.bound(numbers.jacobian(mean.s)),
        worst=worst.bound(numbers.jacobian(worst.s)),
        norm=spectral_norm(sublayer.apply, x),
        identity=mean.bound(numbers.identity()),
        swiglu=numbers.sigma_v is not None,
        slope=numbers.slope,
    )


def _take_gates(network: Llama, trained: Sequence[Path]) -> str:
    """Load the gates from the first readable checkpoint; return the origin of their values in words."""
    for path in trained:
        try:
            checkpoint.load_gates(path, network)
        except checkpoint.DamagedCheckpoint:
            continue
        return f"as trained ({path.name})"
    return "as initialised" + (f"; none of {len(trained)} checkpoints can be read" if trained else "")


def _preserved_gradients(network: Llama, sample: Sample) -> list[Preserved]:
    """Compare gradients as in GPAS, appendix B, for the stream entering every layer and the final norm."""
    predicted = naive_over_preserved(network.spec, gate_alphas(network))
    naive, preserved = both_gradients(network, sample.tokens, sample.targets)
    rows = []
    for layer, (ratio, n, p) in enumerate(zip(predicted, naive, preserved, strict=True), start=1):
        error = None if ratio is None else ((n - ratio * p).abs().max() / n.abs().max()).item()
        rows.append(Preserved(layer, ratio, (n.norm() / p.norm()).item(), error))
    return rows
