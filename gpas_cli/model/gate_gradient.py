"""The gates' gradients from the weights' gradients: no activation is kept for them, and backward passes no gate.

Write <a, b> for the sum over all elements, G(y) for dL/dy. A norm ignores the size of its input, so that <G(x), x> = 0
for what enters one. A linear map y = W h + b has <G(y), y> = <W, dL/dW> + <b, dL/db>, and a norm's weight and bias
have the same. Together they give <G, stream> everywhere, from the last sub-layer to the first:

    final norm, out_norm    <G(x), x> = 0 for what enters
    sum                     <G(s), skip k> = <G(s), s> - <G(b), b>      b: the branch, k: what the skip path carries
    in_norm                 the branch adds nothing to <G(x), x>

and at a gate y = (1 - g) u, with g = act(alpha), the gradient is dL/dg = -<G(y), u>. With stop-gradient G(u) = G(y),
without it G(u) = (1 - g) G(y).

It is exact up to rounding and the norms' eps, each relative to sums that partly cancel (eps: about eps / mean(x^2) of
them): before the first update, when branches hardly move the stream, 1e-3 of the gradient, with tokens whose embedding
is zero some 1e-2, after tens of updates 1e-6 (benchmarks/RESULTS.md). It is of whatever was accumulated into the
weights' gradients: micro-batches and ranks add up before, clipping and decoupled weight decay come after. It does not
exist where a gate's share of the stream meets neither norm: on the stream that enters a Post-type sub-layer ("entry"),
on the skip path below a bottom-to-top connection, and where the matrices that end the branches are frozen. There the
gates stay in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gpas_cli.model.attention import Places
from gpas_cli.model.gate import Gate
from gpas_cli.model.llama import Llama, SubLayer
from gpas_cli.model.norm import LayerNorm, RMSNorm
from gpas_cli.model.shards import local

# A number on the host (CPU), or a scalar that stays on its device.
Number = float | Tensor
Reduce = Callable[[Tensor], Tensor]


class NotDetermined(Exception):
    """The weights' gradients do not determine a gate's."""


class GateGradients:
    """Sets the gates' gradients after a backward pass. From its making on, the gates are outside the graph.

    Raises NotDetermined, with nothing changed, where no gate learns or one of them needs autograd.
    """

    def __init__(self, network: Llama):
        self._network = network
        self._gates = list(network.gates())
        self._ends = [m for m in _ends(network) if all(p.requires_grad for p in m.parameters())]
        self._learn = [gate for gate in self._gates if gate.alpha.requires_grad]
        if not self._learn:
            raise NotDetermined
        _Recursion(network, dict.fromkeys(self._ends, 0.0), dict.fromkeys(self._gates, 1.0))
        for gate in self._gates:
            gate.in_graph = False

    def fill(self, reduce: Reduce = lambda dots: dots) -> None:
        """Set alpha.grad of every gate from the gradients that are there. `reduce` sums the dot products, shape
        (modules,), over the ranks that hold parts of the weights."""
        alphas = torch.cat([gate.alpha.detach() for gate in self._gates]).double().requires_grad_()
        shares = self._gates[0].activation(alphas)
        (slopes,) = torch.autograd.grad(shares.sum(), alphas)
        dots = reduce(torch.stack([_dot(module) for module in self._ends]).double())
        kept = dict(zip(self._gates, _numbers(1 - shares.detach()), strict=True))
        totals = _Recursion(self._network, dict(zip(self._ends, _numbers(dots), strict=True)), kept).totals
        for gate, slope in zip(self._gates, slopes, strict=True):
            if gate.alpha.requires_grad:
                gate.alpha.grad = (slope * totals[gate]).to(gate.alpha.dtype).reshape(1)


def _numbers(values: Tensor) -> Sequence[Number]:
    """Scalars: plain numbers where that costs no wait for a device."""
    return values.tolist() if values.device.type == "cpu" else values.unbind()


def _dot(module: nn.Module) -> Tensor:
    """<W, dL/dW>, with the bias if there is one; of this rank's part where the weights are sharded."""
    parts = []
    for parameter in module.parameters():
        assert parameter.grad is not None
        weight, gradient = local(parameter.detach()), local(parameter.grad)
        parts.append(torch.dot(weight.flatten(), gradient.flatten()))
    return torch.stack(parts).sum()


def _ends(network: Llama) -> Iterator[nn.Module]:
    """Every module whose output's <G(y), y> the recursion may ask for."""
    for layer in network.model.blocks():
        for sub in layer.sublayers(Places()):
            parts = sub.residual
            yield from filter(_is_norm, (parts.in_norm, parts.branch_norm, parts.out_norm))
            if not _is_norm(parts.branch_norm):
                yield sub.output


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, RMSNorm | LayerNorm)


class _Recursion:
    """From the last sub-layer to the first. `totals`: dL/d act(alpha) by gate, summed over its uses.

    dots: <W, dL/dW> by module; kept: 1 - act(alpha) by gate. Raises NotDetermined.
    """

    def __init__(self, network: Llama, dots: Mapping[nn.Module, Number], kept: Mapping[Gate, Number]):
        self._dots, self._kept = dots, kept
        self.totals: dict[Gate, Number] = dict.fromkeys(kept, 0.0)
        along: Number | None = 0.0
        for layer in reversed(network.model.blocks()):
            attention, feed_forward = layer.sublayers(Places())
            along = self._pass(feed_forward, along, bottom=layer.bottom)
            along = self._pass(attention, along)

    def _pass(self, sub: SubLayer, along: Number | None, *, bottom: bool = False) -> Number | None:
        """<G(x), x> of what enters the sub-layer from <G(y), y> of what leaves it; None where it is not known."""
        parts, gates = sub.residual, sub.residual.gates
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

    def _below(self, gate: nn.Module, above: Number | None) -> Number | None:
        """<G(u), u> below a gate from <G(y), y> above it."""
        below = None if above is None else above * self._factor(gate)
        self._add(gate, lambda: below)
        return below

    def _factor(self, gate: nn.Module) -> Number:
        """<G(u), u> below a gate over <G(y), y> above it."""
        return 1 / self._kept[gate] if isinstance(gate, Gate) and gate.stop_gradient else 1.0

    def _add(self, gate: nn.Module, below: Callable[[], Number | None]) -> None:
        """Add the use of a gate: -<G(y), u>, where `below` gives <G(u), u>."""
        if not isinstance(gate, Gate) or not gate.alpha.requires_grad:
            return
        value = below()
        if value is None:
            raise NotDetermined
        self.totals[gate] = self.totals[gate] - (value if gate.stop_gradient else value / self._kept[gate])

    def _dot(self, module: nn.Module) -> Number:
        if module not in self._dots:
            raise NotDetermined
        return self._dots[module]
