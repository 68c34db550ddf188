"""benchmarks/step.py: the products it counts, the other side without a mask, goals, and a comparison at tiny size."""

from collections.abc import Iterator

import pytest
import torch
from exporting import needs_transformers
from marks import long_but
from products import Products
from step import Comparison, Setting

from gpas_cli.spec.cost import parameters

pytestmark = needs_transformers


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    path = torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(path)
    torch.set_num_threads(threads)


def test_products_are_those_of_all_matrices_but_the_input_table() -> None:
    cell = Setting("fp32", 4, shrink=True).cell()
    matrices = parameters(cell) - cell.model.size.vocab * cell.model.size.hidden
    assert Products(cell).flops_per_token == 6 * matrices


@pytest.mark.parametrize("precision", long_but(["fp32", "bf16"], "fp32"))
def test_a_comparison_at_tiny_size(precision: str) -> None:
    one = Comparison(Setting(precision, 4, shrink=True), padded=True, rounds=1, path="highest")
    found = one.ratios(compiled=False)
    assert set(found) - {"out_of_the_box"} == {"padded", "padded_unmasked"}
    assert ("out_of_the_box" in found) == (precision == "fp32")
    for ratio in found.values():
        # One round: the quotient of the speeds is that of the shares.
        assert ratio.value == pytest.approx(ratio.our_share / ratio.their_share)
