"""Gates folded into the weights of their own scheme: every scheme, position and family, in float64."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from gate_placements import PLACEMENTS, spread

from gpas_cli.errors import GpasError
from gpas_cli.model.fold import fold, logit_difference
from gpas_cli.model.layers import LayerNorm, LearnedFactor, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES, Norm, Scheme, Wiring
from gpas_cli.spec.parse_cell import parse_model

TOKENS = torch.arange(34).reshape(2, 17)
ALPHAS = (0.3, -0.6, 1.7, 0.5)  # factors of 0.7, 1.6, -0.7 and 0.5
# The positions at which a factor of 0 folds: into the weight of a norm, or of the last matrix of the branch. At all
# others it removes the stream from a sum, which only a gate does.
ZERO_FOLDS = {
    **{scheme: {"after-norm", "after-module"} for scheme in SCHEMES},
    # Without norms before sub-layers, all others are on the stream.
    **{scheme: {"after-module"} for scheme in ("rezero", "skipinit", "hybridnorm")},
    "post": {"after-norm", "after-module", "after-sublayer"},
    "deepnorm": {"after-norm", "after-module", "after-sublayer"},
    "b2t": {"after-norm", "after-module", "after-sublayer"},
}


def gated(scheme: str, site: str, *, family: str = "llama", **gate: object) -> Llama:
    """Return a float64 network whose eps does not matter, with gates, norms and biases unlike their initial values."""
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 37, "eps": 1e-30}
    gate = {"site": site, "activation": "identity", "init": 0.2, **gate}
    model = parse_model({"size": size, "norm": scheme, "gate": gate, "init": {"std": 0.2}, "family": family})
    network = build(model).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, RMSNorm | LayerNorm):
                module.weight *= 1 + 0.3 * torch.randn(module.weight.shape, generator=generator)
            if isinstance(module, LearnedFactor):
                module.weight += 0.5 + 0.3 * torch.randn(module.weight.shape, generator=generator)
            if isinstance(bias := getattr(module, "bias", None), torch.Tensor):
                bias += 0.3 * torch.randn(bias.shape, generator=generator)
        for module, alpha in zip(network.gates(), itertools.cycle(ALPHAS), strict=False):
            module.alpha.fill_(alpha)
    return network


@contextmanager
def without_effect(network: Llama) -> Iterator[None]:
    """Set all gates to a factor of 1 inside the context."""
    before = [gate.alpha.clone() for gate in network.gates()]
    with torch.no_grad():
        for gate in network.gates():
            gate.alpha.zero_()
        yield
        for gate, alpha in zip(network.gates(), before, strict=True):
            gate.alpha.copy_(alpha)


DECODERS = [name for name, family in FAMILIES.items() if not family.encoder]


@pytest.mark.parametrize(
    ("scheme", "site", "family", "share", "learnable"), spread(DECODERS, ("layer", "sublayer"), (True, False))
)
def test_every_gate_folds_into_its_own_scheme(scheme: str, site: str, family: str, share: str, learnable: bool) -> None:
    network = gated(scheme, site, learnable=learnable, family=family, share=share)
    folded = fold(network, replace(network.spec, gate=None))
    assert (folded.spec.gate, folded.spec.scheme, list(folded.gates())) == (None, scheme, [])
    assert logit_difference(network, folded, TOKENS) < 1e-11
    # Leaving the gates out would have been another network, except where a norm removes any scale.
    with without_effect(network):
        changed = logit_difference(folded, network, TOKENS)
    assert changed > 1e-3 or (scheme, site) in (("post", "after-sublayer"), ("deepnorm", "after-sublayer"))


@pytest.mark.parametrize(("scheme", "site"), PLACEMENTS)
def test_a_factor_of_0_folds_only_where_it_leaves_the_stream_in_the_sum(scheme: str, site: str) -> None:
    # With biases, the stream grows again. With stop-gradient, a factor of 0 would be 2^-60.
    network = gated(scheme, site, stop_gradient=False, family="gpt")
    list(network.gates())[1].alpha.data.fill_(1.0)
    goal = replace(network.spec, gate=None)
    if site in ZERO_FOLDS[scheme]:
        assert logit_difference(network, fold(network, goal), TOKENS) < 1e-11
    else:
        # After the sublayer, the gate of layer 2 takes the stream from the sums of layer 2 or, behind them, of 3.
        with pytest.raises(GpasError, match=r"up to layer [23] multiplies the residual stream by 0"):
            fold(network, goal)


@dataclass(frozen=True, kw_only=True)
class _BottomPre(Scheme):
    """A Pre-LN layer that adds its input once more: no norm can undo the scale between the two."""

    title: ClassVar[str] = "bottom"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), bottom=True)


def test_a_layers_input_that_no_norm_can_scale_is_named() -> None:
    network = gated("pre", "before-sublayer-shortcut")
    with torch.device("cpu"):
        other = Llama(replace(network.spec, norm=_BottomPre())).double()
    other.load_state_dict(network.state_dict())
    with pytest.raises(GpasError, match="layer 1 adds its input to a stream that gates have scaled"):
        fold(other, replace(other.spec, gate=None))
    with without_effect(other):
        assert logit_difference(other, fold(other, replace(other.spec, gate=None)), TOKENS) < 1e-11
