"""The embedding as ordered stages after the lookup (Spike No More, section 4 and appendix)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpas_cli.spec.parse import setting

EMBED_STAGES = ("scale", "layernorm", "rmsnorm", "detach")


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Stages in order: `scale` by `multiplier`, `layernorm` or `rmsnorm`, `detach` to gamma E + (1 - gamma) sg(E).

    multiplier: by default sqrt(d), as in Scaled Embed. Figure 11 has embeddings with standard deviation 5 and 50.
    """

    stages: tuple[str, ...] = setting((), choices=EMBED_STAGES)
    detach_gamma: float = setting(0.1, low=0, high=1)
    multiplier: float | None = setting(None, above=0, high=1e6, omit_default_from_key=True)

    def factor(self, hidden: int) -> float:
        """Return the factor of the stage `scale` for embeddings of `hidden` features."""
        return math.sqrt(hidden) if self.multiplier is None else self.multiplier


EMBEDS: dict[str, Embed] = {
    "plain": Embed(),
    "scaled": Embed(stages=("scale",)),
    "layernorm": Embed(stages=("layernorm",)),
    "rmsnorm": Embed(stages=("rmsnorm",)),
    "detach": Embed(stages=("detach",)),
}
