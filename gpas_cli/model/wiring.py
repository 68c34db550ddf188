"""The residual formula. Every scheme and every position of the gate is a choice of its slots.

    x ──► ENTRY ──┬─► in_norm ─► IN ─► f ─► branch_norm ─► BRANCH ──┐
                  │                                                 ▼
                  └─► SKIP ─► · skip ────────────────────────────► (+) ─► SUM ─► out_norm ─► OUT ─► y

    y = OUT( out_norm( SUM( skip * SKIP(x) + BRANCH( branch_norm( f( IN( in_norm(x) ) ) ) ) ) ) )

With a bottom-to-top connection (B2T) the layer's input is added to the sum (+) of the layer's last sub-layer.
Absent slots are `nn.Identity`; the gate, if any, occupies exactly one of ENTRY IN BRANCH SKIP SUM OUT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpas_cli.spec.norm import GATE_SLOTS


@dataclass(frozen=True)
class Residual:
    """The wiring of one sub-layer. The block owns the modules, so that parameters keep LLaMA's names."""

    in_norm: nn.Module
    branch_norm: nn.Module
    out_norm: nn.Module
    skip: float
    gates: dict[str, nn.Module]

    def apply(self, x: Tensor, f: Callable[[Tensor], Tensor], bottom: Tensor | None = None) -> Tensor:
        """Apply the sub-layer with `f` as its module; x, `bottom` and the result have shape (batch, time, hidden)."""
        gate = self.gates
        x = gate["entry"](x)
        branch = gate["branch"](self.branch_norm(f(gate["in"](self.in_norm(x)))))
        kept = gate["skip"](x)
        # torch.add applies the skip factor within the addition; a separate 1 * x would cost a pass over memory.
        total = torch.add(branch, kept, alpha=self.skip)
        if bottom is not None:
            total = total + bottom
        return gate["out"](self.out_norm(gate["sum"](total)))  # type: ignore[no-any-return]


def gates_in(slot: str | None, gate: nn.Module | None) -> dict[str, nn.Module]:
    """Return a module for every gate slot: `gate` in `slot`, the identity in all others."""
    slots: dict[str, nn.Module] = {name: nn.Identity() for name in GATE_SLOTS}
    if slot is not None and gate is not None:
        slots[slot] = gate
    return slots
