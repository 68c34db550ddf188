"""The embedding as ordered stages after the lookup (Spike No More, section 4 and appendix)."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.parse import setting

EMBED_STAGES = ("scale", "layernorm", "rmsnorm", "detach")


@dataclass(frozen=True, kw_only=True)
class Embed:
    """Stages in order: `scale` by sqrt(d), `layernorm` or `rmsnorm`, `detach` to gamma E + (1 - gamma) sg(E)."""

    stages: tuple[str, ...] = setting((), choices=EMBED_STAGES)
    detach_gamma: float = setting(0.1, low=0, high=1)


EMBEDS: dict[str, Embed] = {
    "plain": Embed(),
    "scaled": Embed(stages=("scale",)),
    "layernorm": Embed(stages=("layernorm",)),
    "rmsnorm": Embed(stages=("rmsnorm",)),
    "detach": Embed(stages=("detach",)),
}
