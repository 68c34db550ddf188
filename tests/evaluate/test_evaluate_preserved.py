"""GPAS, appendix B: twelve layers in float64, autograd against the product of 1 - act(alpha)."""

from __future__ import annotations

import math
import random

import pytest
import torch
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.evaluate.bounds import both_gradients, gate_alphas, naive_over_preserved, stream_gradients
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.gate import activation
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 12, "vocab": 29}
ROW = torch.randint(0, 28, (1, 9), generator=torch.Generator().manual_seed(1))
TOKENS, TARGETS = ROW[:, :-1], ROW[:, 1:]


def gated(norm: str, **gate: object) -> Llama:
    """Twelve layers whose gates are all different, negative ones among them; large enough matrices to matter."""
    chooser = random.Random(7)
    values = {"init": [chooser.uniform(-0.4, 0.6) for _ in range(12)], **gate}
    model = parse_model({"size": SIZE, "norm": norm, "gate": values, "init": {"std": 0.2}})
    network = build(model, dtype=torch.float64)
    if gate.get("share") == "sublayer":
        with torch.no_grad():
            for alpha in (gate.alpha for gate in network.gates()):
                alpha.fill_(chooser.uniform(-0.4, 0.6))
    return network


def check(network: Llama, ratios: list[float | None]) -> int:
    """Count the positions, of 13, that have a product; there, every element of the gradient must agree."""
    naive, preserved = both_gradients(network, TOKENS, TARGETS)
    for ratio, n, p in zip(ratios, naive, preserved, strict=True):
        if ratio is not None:
            assert (n - ratio * p).abs().max() <= 1e-9 * n.abs().max()
            assert torch.allclose(n, ratio * p, rtol=1e-9, atol=1e-12 * n.abs().max().item())
    return sum(ratio is not None for ratio in ratios)


def predicted(network: Llama) -> list[float | None]:
    return naive_over_preserved(network.spec, gate_alphas(network))


@pytest.mark.parametrize(
    ("norm", "gate"),
    [
        *(("pre", {"activation": act}) for act in ALL_ACTIVATIONS),
        ("pre", {"share": "sublayer"}),
        ("pre", {"site": "before-sublayer"}),
        ("pre", {"learnable": False}),
        ("lns", {}),
        ("sandwich", {}),
        ("post", {"site": "after-sublayer"}),
        ("post", {"site": "after-norm"}),
        ("deepnorm", {"site": "before-sublayer"}),
    ],
    ids=str,
)
def test_the_product_is_exact_if_the_whole_stream_passes_the_gate(norm: str, gate: dict[str, object]) -> None:
    network = gated(norm, **gate)
    assert check(network, predicted(network)) == 13


def test_the_product_is_the_papers_with_two_sublayers_to_a_layer() -> None:
    network = gated("pre")
    silu = activation("silu").value
    betas = [1 - silu(row[0]) for row in gate_alphas(network)]
    assert predicted(network)[0] == pytest.approx(math.prod(betas) ** 2, rel=1e-12)
    assert predicted(network)[-2:] == [pytest.approx(betas[-1] ** 2, rel=1e-12), 1.0]


@pytest.mark.parametrize(
    ("norm", "site"),
    [("post", "home"), ("deepnorm", "home"), ("pre", "after-norm"), ("pre", "after-module"),
     ("pre", "before-sublayer-shortcut")],
)  # fmt: skip
def test_a_gate_on_a_part_of_the_sum_has_no_product(norm: str, site: str) -> None:
    network = gated(norm, site=site, init=[0.5] * 12)
    assert predicted(network) == [None] * 12 + [1.0]
    naive, preserved = both_gradients(network, TOKENS, TARGETS)
    silu = activation("silu").value
    assert not torch.allclose(naive[0], (1 - silu(0.5)) ** 24 * preserved[0], rtol=1e-3)
    # not the product, and no other number either: the direction differs
    cosine = torch.nn.functional.cosine_similarity(naive[0].flatten(), preserved[0].flatten(), dim=0)
    assert abs(cosine.item()) < 0.999


def test_mix_has_a_product_after_its_post_layers() -> None:
    network = gated("mix")
    assert check(network, predicted(network)) == 10


def test_gates_at_zero_have_ratio_one() -> None:
    network = gated("post", init=0.0)
    assert predicted(network) == [1.0] * 13
    assert check(network, predicted(network)) == 13


def test_preserved_is_not_the_gradient_without_gates() -> None:
    """Gates shrink the stream, and every norm's Jacobian grows by as much. Appendix B compares another pair."""
    network = gated("pre", init=0.3)
    plain = build(
        parse_model({"size": SIZE, "norm": "pre", "init": {"std": 0.2}}), dtype=torch.float64
    )  # fmt: skip
    _, preserved = both_gradients(network, TOKENS, TARGETS)
    ungated = stream_gradients(plain, TOKENS, TARGETS)
    assert not torch.allclose(preserved[0], ungated[0], rtol=0.05)


def test_the_gates_are_unchanged_afterwards() -> None:
    network = gated("pre", stop_gradient=False)
    before = stream_gradients(network, TOKENS, TARGETS)
    both_gradients(network, TOKENS, TARGETS)
    assert torch.equal(before[0], stream_gradients(network, TOKENS, TARGETS)[0])
