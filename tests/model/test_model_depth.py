"""Paths through the network: skipped layers and factors. In float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from moved_networks import moved_network
from torch import Tensor, nn

from gpas_cli.model.llama import Llama
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.norm import SCHEMES

# An eps that is far below the smallest mean square of these streams, so that gate gradients are exact up to rounding.
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 5, "vocab": 50, "eps": 1e-15}
TOKENS = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(3))
PATHS = {
    "skipping": ActiveLayers((1, 3, 5), (1.0, 1.0, 1.0)),
    "scaled": ActiveLayers((1, 3, 4), (math.sqrt(2), 1.0, math.sqrt(2))),
    "shrunk": ActiveLayers((2, 5), (0.5, 1.0)),
    "the first scaled": ActiveLayers((1, 2, 3, 4, 5), (3.0, 1.0, 1.0, 1.0, 1.0)),
}


def network(norm: str, **gate: object) -> Llama:
    return moved_network({"size": SIZE, "norm": norm, "gate": {"init": [0.3, -0.2, 0.15, 0.4, 0.1], **gate}})


def backward(made: Llama, active: ActiveLayers | None) -> Tensor:
    """Return the loss, after adding its gradients."""
    logits = made(TOKENS, active=active)
    loss = F.cross_entropy(logits.flatten(0, 1), TOKENS.roll(1, 1).flatten())
    loss.backward()
    return loss.detach()


def gradients(made: Llama) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("norm", SCHEMES)
def test_a_path_equals_the_network_without_the_other_layers(norm: str) -> None:
    """Loss and gradients, to the bit; what is skipped has no gradient at all."""
    path = PATHS["skipping"]
    made = network(norm)
    loss = backward(made, path)
    skipped = {name for name, p in made.named_parameters() if p.grad is None}
    assert skipped == {
        name for name, _ in made.named_parameters() if name.startswith(("model.layers.1.", "model.layers.3."))
    }
    short = network(norm)
    short.model.layers = nn.ModuleList(short.model.layers[layer - 1] for layer in path.layers)
    assert torch.equal(backward(short, None), loss)
    ours = [gradient for _, gradient in sorted(gradients(made).items())]
    theirs = [gradient for _, gradient in sorted(gradients(short).items())]
    assert all(map(torch.equal, ours, theirs))
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("norm", SCHEMES)
def test_factors_scale_what_a_layer_adds(norm: str) -> None:
    made = network(norm)
    x = made.model.embed_stages(made.model.embed_tokens(TOKENS))
    positions = made.model.positions(x)
    for layer, factor in zip((1, 3, 4), (math.sqrt(2), 1.0, math.sqrt(2)), strict=True):
        x = x + factor * (made.model.layers[layer - 1](x, positions) - x)
    expected = F.linear(made.model.norm(x), made.lm_head.weight)
    torch.testing.assert_close(made(TOKENS, active=PATHS["scaled"]), expected, rtol=1e-10, atol=1e-12)


def test_all_layers_with_the_factor_1_are_the_network_to_the_bit_and_no_layer_is_the_embedding() -> None:
    made = network("pre")
    everything = ActiveLayers(tuple(range(1, 6)), (1.0,) * 5)
    assert torch.equal(made(TOKENS, active=everything), made(TOKENS))
    nothing = made(TOKENS, active=ActiveLayers((), ()))
    assert torch.equal(nothing, F.linear(made.model.norm(made.model.embed_tokens(TOKENS)), made.lm_head.weight))
