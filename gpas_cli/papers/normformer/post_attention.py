"""The parts of NormFormer that the residual formula has: a norm after attention, and ResScale."""

from dataclasses import dataclass
from typing import ClassVar

from gpas_cli.spec.norm import Factor, Norm, Scheme, Wiring
from gpas_cli.spec.parse import setting


@dataclass(frozen=True, kw_only=True)
class PostAttention(Scheme):
    """x + N(f(N(x))) for attention, s * x + f(N(x)) for the feed-forward network; s is learned with `res_scale`."""

    res_scale: bool = setting(False)

    title: ClassVar[str] = "Pre-LN + post-attention LN"

    def wiring(self, layer: int, depth: int) -> Wiring:
        skip = Factor(wide=True) if self.res_scale else 1.0
        return Wiring(in_norm=Norm(), branch_norm=Norm(), ffn=Wiring(in_norm=Norm(), skip=skip))


SCHEMES = {"post-attention": PostAttention}
