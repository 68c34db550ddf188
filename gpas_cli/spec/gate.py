"""The GPAS gate G(x) = x - act(alpha) * sg(x) (GPAS, equation 4) and its position in a sub-layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpas_cli.spec.activation import ACTIVATIONS, activation_fault
from gpas_cli.spec.norm import Wiring
from gpas_cli.spec.parse import setting

SITES = ("home", "after-sublayer", "before-sublayer", "before-sublayer-shortcut", "after-norm", "after-module")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One GPAS gate per layer, or per sub-layer.

    `activation`: a name, or a formula of alpha such as `alpha / (1 + abs(alpha))`.
    `site`: `home` is the paper's position (after the residual sum; on the skip path of post-norm layers); the others
    are the positions of Table 4, where `before-sublayer-shortcut` is a second reading of "before".
    `init`: the initial alpha, one number or one per layer.
    `from_trained`: start at the trained alphas of the same cell with a learnable gate of the same activation, site,
    stop-gradient, sharing and `init` (the predefined gates of Table 5).
    """

    activation: str = setting("silu", choices=tuple(ACTIVATIONS), check=activation_fault)
    site: str = setting("home", choices=SITES)
    stop_gradient: bool = setting(True)
    learnable: bool = setting(True)
    init: float | tuple[float, ...] = setting(0.0, low=-100, high=100)
    share: str = setting("layer", choices=("layer", "sublayer"))
    from_trained: bool = setting(False)

    def starts(self, layers: int) -> tuple[float, ...]:
        """Return the initial alpha of each layer, shape (layers,)."""
        return self.init if isinstance(self.init, tuple) else (self.init,) * layers

    def teacher(self) -> Gate:
        """Return the learnable gate whose trained values this one starts from."""
        return replace(self, learnable=True, from_trained=False)


def slot(wiring: Wiring, site: str) -> str:
    """Return the slot of the residual formula that `site` refers to in a layer with this wiring."""
    if site == "home":
        return wiring.home
    if site == "after-norm":
        return "in" if wiring.in_norm else "out"
    slots = {
        "after-sublayer": "sum",
        "before-sublayer": "entry",
        "before-sublayer-shortcut": "skip",
        "after-module": "branch",
    }
    return slots[site]
