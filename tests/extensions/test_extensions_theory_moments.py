"""Products drawn from moments, exact for small matrices and in little memory; what gates preserve."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import cases

from gpas_cli.errors import GpasError
from gpas_cli.extensions.theory import initialisation
from gpas_cli.extensions.theory.bounds import both_gradients, gate_alphas, naive_over_preserved, stream_gradients
from gpas_cli.extensions.theory.initialisation import Drawn, bounds_of, identity_bounds, random_text, skeleton
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.gate import activation
from gpas_cli.spec.parse_cell import cell_from, parse_model

OPTIM = {"lr": 0.01, "warmup": 3, "steps": 8, "batch": 4}
DATA = {"source": "stdlib", "tokenizer": "bpe", "layout": "pack", "length": 48}
PARTS: list[dict[str, object]] = [
    {},
    {"family": "gpt", "init": "small", "embed": "scaled"},
    {"family": "gpt", "init": {"preset": "xavier", "everywhere": True}},
    {"norm": {"scheme": "mix", "post_fraction": 0.5}, "gate": {"init": 0.4, "stop_gradient": False}},
    {"norm": "sandwich"},
    {"norm": "lns", "init": {"zero_last_row": True}},
]


def cell(hidden: int = 96, **parts: object) -> Cell:
    size = {"hidden": hidden, "ffn": 3 * hidden, "heads": 4, "layers": 3, "vocab": 600}
    return cell_from({"size": size, "data": DATA, "optim": OPTIM, **parts})


def built(cell: Cell) -> list[float]:
    """Equation (15) of the network that training starts from."""
    network = build(cell.model, seed=cell.seed, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialisation, "spectral_norm", lambda *_: 0.0)  # slow, and no part of the equation
        return [layer.feed_forward.identity for layer in bounds_of(network, random_text(cell))]


@pytest.mark.parametrize("parts", PARTS)
def test_matrices_of_small_networks_are_those_of_training(tmp_path: Path, parts: dict[str, object]) -> None:
    small = cell(32, **parts)
    assert identity_bounds(small, tmp_path, tmp_path) == pytest.approx(built(small), rel=1e-9)


@pytest.mark.parametrize("parts", PARTS)
def test_drawn_products_give_the_bounds_of_a_built_network(
    tmp_path: Path, parts: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialisation, "_MOST_ELEMENTS", 0)
    wide = cell(**parts)
    found = identity_bounds(wide, tmp_path, tmp_path)
    assert found == pytest.approx(built(wide), rel=0.2)  # as between two seeds at this width
    assert found == identity_bounds(wide, tmp_path, tmp_path)


def test_outputs_of_a_drawn_product_have_the_covariance_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisation, "_MOST_ELEMENTS", 0)
    network = skeleton(cell(1024, init={"preset": "normal", "std": 0.05}).model, seed=1)
    x = torch.randn(1, 3, 1024, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 1] = 0.6 * x[0, 0] + 0.8 * x[0, 1]
    x[0, 2] = x[0, 0]
    with torch.no_grad(), Drawn(network, seed=1):
        y = network.model.layers[0].get_submodule("mlp.up_proj")(x)[0]
    assert y.shape == (3, 3072)
    assert torch.allclose(y[0], y[2], rtol=1e-3, atol=1e-3)
    expected = 0.05**2 * (x[0] @ x[0].T)
    assert torch.allclose(y @ y.T / 3072, expected, rtol=0.1, atol=0.1 * expected[0, 0].item())


def test_whole_layers_of_a_skeleton_are_those_of_the_built_network() -> None:
    parts = cell(family="gpt", init="small")
    built_network = build(parts.model, seed=parts.seed, dtype=torch.float64)
    first, second = skeleton(parts.model, parts.seed, layers=1).model.blocks()[:2]
    for name, weight in built_network.model.blocks()[0].named_parameters():
        assert torch.equal(weight, first.get_parameter(name))
    assert second.get_parameter("mlp.up_proj.weight").is_meta


def test_a_layer_with_a_path_around_it_has_no_bound(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match="attention followed by a feed-forward network"):
        identity_bounds(cell(norm="b2t"), tmp_path, tmp_path)


LARGE = """
from pathlib import Path
from gpas_cli.extensions.theory.initialisation import identity_bounds
from gpas_cli.spec.parse_cell import cell_from
size = {"hidden": 2560, "ffn": 20480, "heads": 20, "layers": 1, "vocab": 50257}
data = {"source": "c4", "tokenizer": "gpt2", "layout": "pack", "length": 256}
optim = {"lr": 0.01, "warmup": 3, "steps": 8, "batch": 4}
cell = cell_from({"size": size, "data": data, "optim": optim, "family": "gpt", "init": "small"})
assert len(identity_bounds(cell, Path("cache"), Path())) == 1
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_layers_as_wide_as_those_of_3_billion_parameters_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    """Built in float64, one of them and the two tables take 3 GB. Layers are computed one after the other."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LARGE]
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1]) < 1_000_000  # kB


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


@cases("extensions/cases.yaml")
def test_the_product_is_exact_if_the_whole_stream_passes_the_gate(norm: str, gate: dict[str, object]) -> None:
    network = gated(norm, **gate)
    assert check(network, predicted(network)) == 13


def test_the_product_is_the_papers_with_two_sublayers_to_a_layer() -> None:
    network = gated("pre")
    betas = [1 - activation("silu", row[0])[0] for row in gate_alphas(network)]
    assert predicted(network)[0] == pytest.approx(math.prod(betas) ** 2, rel=1e-12)
    assert predicted(network)[-2:] == [pytest.approx(betas[-1] ** 2, rel=1e-12), 1.0]


@cases("extensions/cases.yaml")
def test_a_gate_on_a_part_of_the_sum_has_no_product(norm: str, site: str) -> None:
    network = gated(norm, site=site, init=[0.5] * 12)
    assert predicted(network) == [None] * 12 + [1.0]
    naive, preserved = both_gradients(network, TOKENS, TARGETS)
    assert not torch.allclose(naive[0], (1 - activation("silu", 0.5)[0]) ** 24 * preserved[0], rtol=1e-3)
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
