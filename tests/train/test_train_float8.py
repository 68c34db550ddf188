"""Precision fp8: which matrices are multiplied in float8, against an own rounding, and independence of other rows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.loop import Loop
from gpas_cli.train.precision import Precision

CPU = torch.device("cpu")
SIZE = {"hidden": 32, "ffn": 48, "heads": 2, "layers": 2, "vocab": 280}
OPTIM = {"lr": 3e-3, "warmup": 1, "steps": 8, "batch": 8, "clip": 1.0}


def cell(name: str = "fp8", **more: Any) -> Any:
    data = {"like": "quickstart", "layout": "pad"}
    values = {"size": SIZE, "gate": "gpas", "data": data, "optim": OPTIM, "precision": name}
    return cell_from({**values, **more})


def loop(name: str, rows: int = 8, **more: Any) -> Loop:
    made = cell(name, **more)
    return assemble(made, SyntheticBatches(made, padded=True), Resources(compile="off", micro_batch=rows))


def in_float8(x: Tensor) -> Tensor:
    """Round each row of x, (..., width), as e4m3 does after a division that brings its largest element to at most 448:
    3 bits of mantissa, and nothing finer than 2^-9."""
    x = x.double()
    scale = 2.0 ** torch.floor(torch.log2(448 / x.abs().amax(-1, keepdim=True).clamp_min(1e-12)))
    scaled = x * scale
    step = 2.0 ** (torch.floor(torch.log2(scaled.abs().clamp_min(2.0**-6))) - 3)
    return torch.round(scaled / step) * step / scale


def float8_names(network: Llama) -> set[str]:
    return {
        name for name, part in network.named_modules() if isinstance(part, nn.Linear) and type(part) is not nn.Linear
    }


def test_a_product_is_one_of_rounded_rows() -> None:
    torch.manual_seed(0)
    network = build(cell().model)
    Precision("fp8", CPU).apply(network)
    product = network.model.layers[0].self_attn.q_proj
    x = (torch.randn(3, 5, 32) * torch.tensor([1e-3, 1.0, 50.0])[:, None, None]).bfloat16()
    with Precision("fp8", CPU).compute():
        found = product(x)
    assert found.dtype == torch.bfloat16
    expected = in_float8(x) @ in_float8(product.weight.detach()).T
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6 * float(expected.abs().max()))


ATTENTION = {f"self_attn.{name}_proj" for name in "qkvo"}


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({}, {*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
        ({"family": "gpt"}, {*ATTENTION, "mlp.up_proj", "mlp.down_proj"}),
        ({"size": {**SIZE, "ffn": 52}}, ATTENTION),  # as the 5,461 of the papers' 1B
    ],
)
def test_the_matrices_of_the_layers_with_aligned_sides_are(more: Any, parts: set[str]) -> None:
    made = loop("fp8", **more)
    assert float8_names(made.network) == {f"model.layers.{layer}.{part}" for layer in range(2) for part in parts}
    assert [name for name, _ in made.network.named_parameters()] == [
        name for name, _ in build(cell(**more).model).named_parameters()
    ]


@pytest.mark.parametrize(
    "more", [{}, {"family": "gpt"}, {"norm": "post"}, {"family": "gpt", "size": {**SIZE, "ffn": 52}}]
)
def test_an_update_is_near_that_of_float32(more: Any) -> None:
    """And nearer than noise of a tenth would be; not equal, so that the products are not those of float32."""
    moved = {}
    for name in ("fp8", "fp32"):
        made = loop(name, **more)
        before = [p.detach().clone() for p in made.network.parameters()]
        for _ in range(4):  # the first one has no rate
            made.update()
        moved[name] = torch.cat(
            [(b - p.detach()).flatten() for b, p in zip(before, made.network.parameters(), strict=True)]
        )
    alike = torch.cosine_similarity(moved["fp8"], moved["fp32"], 0)
    assert 0.9 < float(alike) < 0.99999


def test_rows_do_not_depend_on_the_rows_beside_them() -> None:
    """One scale for all rows would: the rounding of a row would follow the largest element of the others."""
    losses = [float(loop("fp8", rows).update().loss) for rows in (8, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_network_without_such_a_matrix_is_refused() -> None:
    with pytest.raises(InvalidExperiments, match="sides are multiples of 16, and hidden is 24; write bf16"):
        cell(size={**SIZE, "hidden": 24})
