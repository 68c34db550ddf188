"""Synthetic text has the shape that benchmarks report."""

from __future__ import annotations

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.bench import SyntheticBatches, require_fit


@pytest.mark.parametrize("rows", [8, 512])
def test_every_padded_batch_is_as_full_as_those_of_c4(rows: int) -> None:
    cell = cell_from({"size": "71m", "data": "c4", "optim": {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": rows}})
    filled = [SyntheticBatches(cell, padded=True).at(step).predicted / (rows * 256) for step in range(200)]
    assert sum(filled) / len(filled) == pytest.approx(0.77, abs=0.01)
    assert max(filled) - min(filled) < 0.12
    assert SyntheticBatches(cell, padded=False).at(0).predicted == rows * 256


def test_a_network_that_does_not_fit_the_device_is_named() -> None:
    cell = cell_from({"size": "7b", "data": "c4", "precision": "bf16", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9}})
    require_fit(cell, 0)
    require_fit(cell, 141 * 10**9)
    with pytest.raises(GpasError, match=r"take 108 GB, and the GPU has 80\.0 GB: they fit sharded over 2 or more"):
        require_fit(cell, 80 * 10**9)
