"""Compute the gates' gradients from the weights' gradients, without saved activations and without autograd.

Write <a, b> for the sum over all elements, G(y) for dL/dy. A norm is invariant to the scale of its input x, so
<G(x), x> = 0. A linear map y = W h + b has <G(y), y> = <W, dL/dW> + <b, dL/db>, and the same holds for a norm's weight
and bias. Together they give <G, stream> everywhere, from the last sub-layer to the first:

    final norm, out_norm    <G(x), x> = 0 for the input x
    sum                     <G(s), skip k> = <G(s), s> - <G(b), b>      b: the branch, k: the stream on the skip path
    in_norm                 the branch adds nothing to <G(x), x>

and at a gate y = (1 - g) u, with g = act(alpha), the gradient is dL/dg = -<G(y), u>. With stop-gradient G(u) = G(y),
without it G(u) = (1 - g) G(y).

The result is exact up to rounding and the norms' eps, each relative to sums that partly cancel (eps: about
eps / mean(x^2) of them). The error is 1e-3 of the gradient before the first update, when branches hardly change the
stream, about 1e-2 with tokens whose embedding is zero, and 1e-6 after tens of updates (benchmarks/RESULTS.md). It is
the gradient of everything accumulated in the weights' gradients: call it after micro-batches and ranks have been summed
and before clipping and decoupled weight decay. The gradient is not determined where a gate's share of the stream enters
no norm: on the stream that enters a Post-type sub-layer ("entry"), on the skip path below a bottom-to-top connection,
and where the matrices that end the branches are frozen. There the gates stay in the autograd graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gpas_cli.model.attention import Positions
from gpas_cli.model.dot_products import dot_products
from gpas_cli.model.dtensors import local
from gpas_cli.model.gate import GpasGate
from gpas_cli.model.gate_system import Factor, GateSolver, GateSystem, Symbol
from gpas_cli.model.llama import Block, Llama, SubLayer
from gpas_cli.model.norm import LayerNorm, RMSNorm
from gpas_cli.spec.depth import ActiveLayers

# A number on the host, or a symbol for a number that stays on its device.
Scalar = float | Symbol
Reduce = Callable[[Tensor, Sequence[Tensor]], Tensor]


class NotDetermined(Exception):
    """The weights' gradients do not determine a gate's gradient."""


class GateGradients:
    """Sets the gates' gradients after a backward pass. Constructing it removes the gates from the autograd graph.

    Raises NotDetermined, and changes nothing, if no gate is learnable or one of them needs autograd.
    """

    def __init__(self, network: Llama):
        self._network = network
        if not any(gate.alpha.requires_grad for gate in network.gates()):
            raise NotDetermined
        self._select(None)
        self._require_determined()
        self._put_in_graph(False)

    def prepare(self, active: ActiveLayers | None) -> None:
        """Prepare for forward passes that apply only the `active` layers, None for all: if the layers' factors make the
        weights' gradients insufficient, autograd computes the gates' gradients.
        """
        self._select(active)
        try:
            self._require_determined()
        except NotDetermined:
            self._put_in_graph(True)
        else:
            self._put_in_graph(False)

    def _select(self, active: ActiveLayers | None) -> None:
        self._active = active
        self._gates = list(_gates(self._network, active))
        ends = {m: list(m.parameters()) for m in _ends(self._network, active)}
        self._ends = {m: own for m, own in ends.items() if all(p.requires_grad for p in own)}
        self._solver: GateSolver | None = None

    def _put_in_graph(self, in_graph: bool) -> None:
        self._by_autograd = in_graph
        for gate in self._network.gates():
            gate.in_graph = in_graph

    def _require_determined(self) -> None:
        """Run the recursion once with arbitrary numbers: whether it needs an unknown product depends on the network."""
        ends = dict.fromkeys(self._ends, 0.0)
        gate_totals(self._network, ends, dict.fromkeys(self._gates, 1.0), self._active)

    def fill(self, reduce: Reduce = lambda dots, parameters: dots) -> None:
        """Set alpha.grad of every gate of the active layers from the weights' gradients, unless autograd did.

        `reduce` sums dot products, shape (n,), over the ranks that have parts of the weights. Its second argument has a
        parameter of each.
        """
        if self._by_autograd or not self._gates:
            return
        alphas = torch.cat([gate.alpha.detach() for gate in self._gates]).double().requires_grad_()
        shares = self._gates[0].activation(alphas)
        (slopes,) = torch.autograd.grad(shares.sum(), alphas)
        kept = 1 - shares.detach()
        totals = self._totals_on_host(kept, reduce) if _on_host(kept) else self._totals_on_device(kept, reduce)
        gradients = (slopes * totals).to(self._gates[0].alpha.dtype)
        for gate, gradient in zip(self._gates, gradients[:, None].unbind(), strict=True):
            if gate.alpha.requires_grad:
                gate.alpha.grad = gradient

    def _totals_on_host(self, kept: Tensor, reduce: Reduce) -> Tensor:
        """Return the gates' totals by the recursion on numbers, float64 (gates,)."""
        owners = [own[0] for own in self._ends.values()]
        dots = reduce(torch.stack([_dot(own) for own in self._ends.values()]).double(), owners)
        products = dict(zip(self._ends, dots.tolist(), strict=True))
        factors = dict(zip(self._gates, kept.tolist(), strict=True))
        totals = gate_totals(self._network, products, factors, self._active)
        return kept.new_tensor([totals[gate] for gate in self._gates])

    def _totals_on_device(self, kept: Tensor, reduce: Reduce) -> Tensor:
        """Return the gates' totals, float64 (gates,), without waiting for the device and in as many kernels for any
        number of layers."""
        parameters = [p for own in self._ends.values() for p in own]
        weights = [local(p.detach()) for p in parameters]
        dots = reduce(dot_products(weights, [_gradient(p) for p in parameters]).double(), parameters)
        if self._solver is None:
            self._solver = self._solver_of_recursion(kept.device)
        return self._solver.solve(dots, kept)

    def _solver_of_recursion(self, device: torch.device) -> GateSolver:
        """Return the recursion over the active layers as a system of equations. Its dot products are by parameter."""
        counts = [len(own) for own in self._ends.values()]
        ends = list(itertools.accumulate(counts, initial=0))
        system = GateSystem(ends[-1], len(self._gates))
        products = {
            m: system.product(range(*span)) for m, span in zip(self._ends, itertools.pairwise(ends), strict=True)
        }
        factors = {gate: Factor(number) for number, gate in enumerate(self._gates)}
        totals = gate_totals(self._network, products, factors, self._active)
        return system.solver([totals[gate] for gate in self._gates], device)


def _on_host(values: Tensor) -> bool:
    """Return whether the host can read `values` without waiting for a device."""
    return values.device.type == "cpu"


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return local(parameter.grad)


def _dot(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return <W, dL/dW> + <b, dL/db>, over this rank's part if the weights are sharded."""
    dots = [torch.dot(local(p.detach()).flatten(), _gradient(p).flatten()) for p in parameters]
    return dots[0] if len(dots) == 1 else torch.stack(dots).sum()


def _applied(network: Llama, active: ActiveLayers | None) -> Iterator[tuple[Block, float]]:
    """Yield the layers that are applied, first to last, with their factors."""
    for layer, factor in network.model.applied(active):
        assert isinstance(layer, Block)
        yield layer, factor


def _gates(network: Llama, active: ActiveLayers | None) -> Iterator[GpasGate]:
    for layer, _ in _applied(network, active):
        yield from (module for module in layer.modules() if isinstance(module, GpasGate))


def _ends(network: Llama, active: ActiveLayers | None) -> Iterator[nn.Module]:
    """Yield every module for whose output y the recursion may need <G(y), y>."""
    for layer, _ in _applied(network, active):
        for sub in layer.sublayers(Positions()):
            parts = sub.residual
            yield from filter(_is_norm, (parts.in_norm, parts.branch_norm, parts.out_norm))
            if not _is_norm(parts.branch_norm):
                yield sub.output


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, RMSNorm | LayerNorm)


def gate_totals(
    network: Llama,
    dots: Mapping[nn.Module, Scalar],
    kept: Mapping[GpasGate, Scalar],
    active: ActiveLayers | None = None,
) -> dict[GpasGate, Scalar]:
    """Return dL/d act(alpha) of every gate of the active layers (None: all), summed over its uses, from the last
    sub-layer to the first.

    dots: <W, dL/dW> by module; kept: 1 - act(alpha) by gate. Raises NotDetermined. Of the output x + s (Block(x) - x)
    of a layer with a factor s other than 1, the shares of x and of Block(x) in <G, output> are unknown.
    """
    recursion = _Recursion(dots, kept)
    along: Scalar | None = 0.0
    for layer, factor in reversed(list(_applied(network, active))):
        attention, feed_forward = layer.sublayers(Positions())
        along = recursion.step(feed_forward, along if factor == 1 else None, bottom=layer.bottom)
        along = recursion.step(attention, along)
        along = along if factor == 1 else None
    return recursion.totals


class _Recursion:
    """The state of the recursion: the totals of the gates so far."""

    def __init__(self, dots: Mapping[nn.Module, Scalar], kept: Mapping[GpasGate, Scalar]):
        self._dots = dots
        self._kept = kept
        self.totals: dict[GpasGate, Scalar] = dict.fromkeys(kept, 0.0)

    def step(self, sub: SubLayer, along: Scalar | None, *, bottom: bool = False) -> Scalar | None:
        """Return <G(x), x> for the input of a sub-layer, given <G(y), y> for its output; None if it is unknown."""
        parts = sub.residual
        gates = parts.gates
        if _is_norm(parts.out_norm):
            self._add(gates["out"], lambda: self._dot(parts.out_norm))
            along = 0.0
        else:
            along = self._below(gates["out"], along)
        along = self._below(gates["sum"], along)
        branch = self._dot(parts.branch_norm if _is_norm(parts.branch_norm) else sub.output)
        self._add(gates["in"], lambda: self._dot(parts.in_norm))
        self._add(gates["branch"], lambda: branch)
        branch = branch / self._factor(gates["branch"])
        along = self._below(gates["skip"], None if bottom or along is None else along - branch)
        return self._below(gates["entry"], along if _is_norm(parts.in_norm) else None)

    def _below(self, gate: nn.Module, above: Scalar | None) -> Scalar | None:
        """Return <G(u), u> for the input of a gate, given <G(y), y> for its output."""
        below = None if above is None else above * self._factor(gate)
        self._add(gate, lambda: below)
        return below

    def _factor(self, gate: nn.Module) -> Scalar:
        """Return the ratio of <G(u), u> for the input of a gate to <G(y), y> for its output."""
        return 1 / self._kept[gate] if isinstance(gate, GpasGate) and gate.stop_gradient else 1.0

    def _add(self, gate: nn.Module, below: Callable[[], Scalar | None]) -> None:
        """Add one use of a gate to its total: -<G(y), u>, where `below` returns <G(u), u>."""
        if not isinstance(gate, GpasGate) or not gate.alpha.requires_grad:
            return
        value = below()
        if value is None:
            raise NotDetermined
        self.totals[gate] = self.totals[gate] - (value if gate.stop_gradient else value / self._kept[gate])

    def _dot(self, module: nn.Module) -> Scalar:
        if module not in self._dots:
            raise NotDetermined
        return self._dots[module]
