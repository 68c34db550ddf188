"""How a network and its recipe depend on width and depth, so that a rate tuned on a small one suits a large one.

With m = hidden / base_hidden and n = layers / base_layers (1 but for CompleteP), relative to the standard
parametrisation at the base's width and depth:

    what                        muP     CompleteP            source
    hidden matrices: std        m^-1/2  m^-1/2               Yang et al. 2022, Table 8; Dey et al. 2025, Table 1
    hidden matrices: rate       m^-1    m^-1 n^(alpha-1)     both
    hidden matrices: decay      m       m                    Dey et al., Table 1: rate x decay stays for alpha = 1
    norms and biases: rate      1       n^(alpha-1)          both; outside the layers 1
    embedding, head: std, rate  1       1                    both
    logits                      m^-1    m^-1                 both: a multiplier of the head's input
    logits of attention         1/d instead of 1/sqrt(d)     Yang et al., definition 4.1; as 1/sqrt(d) at the base
    residual branches           1       n^-alpha             Dey et al., Table 1
    eps of Adam                 m^-1    m^-1, in layers also n^-alpha     Dey et al., Table 1

The papers treat Pre-LN. The rest follows from the same wish, that the change of the stream over all layers depends
neither on width nor on depth. What multiplies the whole stream of a layer (a gate on it, a norm after the sum, a
learned factor of the skip path) acts once per layer, so its rate is n^-1. The gradient of a single number is a sum over
features, which does not shrink with width. Constants of a scheme that depend on the layer or the depth, such as those
of LNS and DeepNorm, are those of the base, in the layer as far up; so are initialisations that depend on the depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gpas_cli.errors import Problem
from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

_STANDARD, _MUP, _COMPLETEP = "standard", "mup", "completep"


class AdamFactors(Frozen):
    """Factors of the learning rate, the eps and the weight decay of a parameter."""

    rate: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


class Parametrisation(Frozen, kw_only=True):
    """How init, rates and multipliers depend on width and depth, to take a learning rate from a narrow, shallow network
    to a wide, deep one.

    kind: `standard`: they do not, except as `init` says. `mup`: the maximal update parametrisation of Yang et al. 2022
    (Tensor Programs V, Table 8) for Adam, over the width. `completep`: that, and the depth as in Dey et al. 2025
    (Table 1). At the base's width and depth each of them is the standard parametrisation, and has its key.

    base_hidden, base_layers: the width and the depth of the network on which rates were tuned; its `ffn` and the
    features of all heads over `hidden` are the same. base_heads: its heads; 0: as many as make them as wide as here.
    alpha: branches are multiplied by (layers / base_layers)^-alpha; 1 is CompleteP, 0.5 depth-muP (Yang et al. 2023).
    """

    kind: str = setting(_STANDARD, choices=(_STANDARD, _MUP, _COMPLETEP))
    base_hidden: int = setting(0, low=0, high=65_536)
    base_heads: int = setting(0, low=0, high=1024)
    base_layers: int = setting(0, low=0, high=1024)
    alpha: float = setting(1.0, low=0.5, high=1)

    def width(self, hidden: int) -> float:
        """Return m, the width over the base's."""
        return hidden / (self.base_hidden or hidden)

    def depth(self, layers: int) -> float:
        """Return n, the depth over the base's."""
        return layers / (self.base_layers or layers)

    def branch(self, layers: int) -> float:
        """Return the multiplier of residual branches."""
        return float(self.depth(layers) ** -self.alpha)

    def query(self, hidden: int, heads: int) -> float:
        """Return the factor of queries, sqrt(base head / head): with it, attention's q k / sqrt(head) is
        sqrt(base head) q k / head."""
        return math.sqrt(self.base_hidden / self.base_heads / (hidden / heads)) if self.base_heads else 1.0

    def base_layer(self, layer: int, layers: int) -> int:
        """Return the layer of the base, from 1, that is as far up as layer `layer` of `layers`."""
        return math.ceil(layer * self.base_layers / layers) if self.base_layers else layer

    def adam(self, name: str, shape: tuple[int, ...], hidden: int, layers: int, gate_slot: str | None) -> AdamFactors:
        """Return the factors of the parameter `name` of `gpas_cli.model.llama`, in a network with the gate there."""
        m, n = self.width(hidden), self.depth(layers)
        in_layer = ".layers." in name
        inner, branch = (n ** (self.alpha - 1), n**-self.alpha) if in_layer else (1.0, 1.0)
        if name.endswith("_proj.weight"):
            return AdamFactors(inner / m, branch / m, m)
        on_stream = (".alpha" in name and gate_slot not in ("in", "branch")) or "_out_norm." in name
        if in_layer and (on_stream or "skip_factor" in name):
            inner, branch = 1 / n, 1.0
        return AdamFactors(inner, branch if shape == (1,) else branch / m)

    def canonical(self, hidden: int, heads: int, layers: int) -> Parametrisation:
        """Return the canonical spelling: the standard parametrisation where every factor is 1."""
        found = self
        if found.depth(layers) == 1:
            found = replace(found, kind=_MUP if found.base_hidden else _STANDARD, base_layers=0, alpha=1.0)
        if found.width(hidden) == 1 and not found.base_layers:
            return Parametrisation()
        same_head = found.base_heads * hidden == found.base_hidden * heads
        return replace(found, base_heads=0) if same_head else found

    def problems(self, hidden: int, heads: int, layers: int) -> Iterator[Problem]:
        """Yield what is wrong with the settings for a network of this shape."""
        if self.kind == _STANDARD:
            for name in ("base_hidden", "base_heads", "base_layers"):
                if getattr(self, name):
                    yield Problem((name,), "has no effect with parametrisation: standard; write kind: mup or completep")
            return
        more = f", base_layers: {layers}" if self.kind == _COMPLETEP else ""
        written = f"{{like: {self.kind}, base_hidden: {hidden}{more}}}"
        if not self.base_hidden:
            yield Problem(
                ("base_hidden",), f"is required: the width on which rates were tuned, as in parametrisation: {written}"
            )
        else:
            yield from self._head_problems(hidden, heads)
        if self.kind == _COMPLETEP and not self.base_layers:
            yield Problem(
                ("base_layers",), f"is required: the depth on which rates were tuned, as in parametrisation: {written}"
            )
        elif self.kind == _MUP and (self.base_layers or self.alpha != 1):
            name = "base_layers" if self.base_layers else "alpha"
            yield Problem((name,), "has no effect with parametrisation: mup; write kind: completep")

    def _head_problems(self, hidden: int, heads: int) -> Iterator[Problem]:
        each, base = hidden // math.gcd(hidden, heads), self.base_hidden
        if self.base_heads and base % self.base_heads:
            nearest = min((n for n in range(1, base + 1) if base % n == 0), key=lambda n: abs(n - self.base_heads))
            yield Problem(("base_heads",), f"{self.base_heads} does not divide base_hidden {base}; nearest: {nearest}")
        elif not self.base_heads and base % each:
            nearest = max(1, round(base / each)) * each
            yield Problem(
                ("base_hidden",),
                f"{base} is not a multiple of the {each} features for a head; nearest: {nearest}, or write base_heads",
            )
        elif base == hidden and self.base_heads not in (0, heads):
            yield Problem(
                ("base_heads",), f"a base as wide as the network has its heads: write {heads} or leave it out"
            )


PARAMETRISATIONS = {kind: Parametrisation(kind=kind) for kind in (_STANDARD, _MUP, _COMPLETEP)}
