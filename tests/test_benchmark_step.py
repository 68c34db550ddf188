"""benchmarks/step.py: the products it counts, the other side without a mask, goals, and a comparison at tiny size."""

from collections.abc import Iterator

import pytest
import step
import torch
from exporting import needs_transformers
from marks import long_but
from products import Products
from step import Comparison, Ratio, Setting, with_goal

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


def test_right_padding_needs_no_mask() -> None:
    gradients = []
    for masked in (True, False):
        torch.manual_seed(0)
        theirs = Setting("fp32", 8, shrink=True).theirs(padded=True)
        theirs.masked = masked
        theirs.update()
        gradients.append([parameter.grad for parameter in theirs.network.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", long_but(["fp32", "bf16"], "fp32"))
def test_a_comparison_at_tiny_size(precision: str) -> None:
    one = Comparison(Setting(precision, 4, shrink=True), padded=True, rounds=1, path="highest")
    found = one.ratios(compiled=False)
    assert set(found) - {"out_of_the_box"} == {"padded", "padded_unmasked"}
    assert ("out_of_the_box" in found) == (precision == "fp32")
    for ratio in found.values():
        # One round: the quotient of the speeds is that of the shares.
        assert ratio.our_share is not None
        assert ratio.their_share is not None
        assert ratio.value == pytest.approx(ratio.our_share / ratio.their_share)


@pytest.mark.skipif(step.DEVICE.type != "cpu", reason="goals are for CPUs")
@pytest.mark.parametrize(("instructions", "goal"), [("AVX512", ">= 2: missed"), ("AVX2", ">= 1.45: met"), ("X", "")])
def test_goals_follow_the_instructions(instructions: str, goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    assert with_goal("padded", Ratio(1.5), Setting("fp32", 8)).goal == goal
    assert with_goal("padded", Ratio(1.5), Setting("bf16", 8)).goal == ""
    assert with_goal("memory", Ratio(0.9), Setting("fp32", 8)).goal == "<= 0.8: missed"
