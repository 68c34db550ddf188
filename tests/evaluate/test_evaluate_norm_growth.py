"""Laws at initialisation: the growth of the stream (RaPTr, theorem 2.3), attention over length (Spike No More, 48)."""

from __future__ import annotations

import pytest

from gpas_cli.evaluate.norm_growth import growth, growths, length_law
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from

SIZE = {"hidden": 64, "ffn": 128, "heads": 4, "layers": 8, "vocab": 300}
RECIPE = {"lr": 1e-3, "warmup": 1, "steps": 2, "batch": 2}


def cell(std: float) -> Cell:
    data = {"source": "stdlib", "tokenizer": "bpe", "length": 64}
    return cell_from({"size": SIZE, "init": {"std": std}, "data": data, "optim": RECIPE})


def test_layers_of_the_proof_add_between_d_and_2d_and_scaled_paths_grow_like_the_whole_network() -> None:
    proof, whole, scaled, unscaled = growths(cell(0.08))
    assert 1 <= proof.slope <= 2  # lemma F.10
    assert proof.fit > 0.9
    assert scaled.slope == pytest.approx(whole.slope, rel=0.2)
    assert unscaled.slope < 0.7 * whole.slope
    assert len(whole.squares) == SIZE["layers"] + 1


def test_a_line_fits_a_line() -> None:
    found = growth("", [1.0, 3.0, 5.0])
    assert (found.slope, found.fit) == (pytest.approx(2.0), pytest.approx(1.0))


def test_variance_falls_with_the_length() -> None:
    found = length_law(cell(0.03), (16, 64, 256))
    assert found.exponent == pytest.approx(-1, abs=0.1)
    assert [point.measured / point.predicted for point in found.points] == pytest.approx([1.0] * 3, abs=0.15)
