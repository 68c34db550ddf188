"""`gpas bench --profile`: the time of an update by kind of kernel, and the least that each kind needs."""

import pytest
from cases import cases

from gpas_cli.extensions.roofline.kernels import IDLE, KINDS, Kind, Reach, examine, kind_of, least
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import whole_flops_per_token
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.bench import synthetic_loop

TEXT = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16}


def cell(**size: int) -> Cell:
    shape = {"hidden": 32, "ffn": 48, "heads": 4, "layers": 2, "vocab": 264, **size}
    optim = {"lr": 1e-6, "warmup": 1, "steps": 100, "batch": 4}
    return cell_from({"size": shape, "data": TEXT, "gate": "gpas", "optim": optim})


@pytest.mark.parametrize("size", [{}, {"kv_heads": 2}, {"kv_heads": 2, "head_dim": 24}])
def test_the_parts_have_all_flops_of_an_update(size: dict[str, int]) -> None:
    parts = least(cell(**size), 100)
    assert set(parts) == set(KINDS)
    flops = sum(part.flops for each in parts.values() for part in each)
    assert flops == pytest.approx(100 * whole_flops_per_token(cell(**size)))


def test_the_times_of_a_profiled_update_have_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a busy machine reaches may be less than what an update on it did.
    monkeypatch.setattr(Reach, "of", lambda dtype: Reach(flops=1e15, bytes=1e15))
    made = cell()
    found = examine(made, synthetic_loop(made, Resources(compile="off"), padded=True))
    assert [kind.name for kind in found.kinds] == [*KINDS, IDLE]
    assert sum(kind.seconds for kind in found.kinds) >= found.seconds * (1 - 1e-6)
    by_name: dict[str, Kind] = {kind.name: kind for kind in found.kinds}
    assert by_name["products"].seconds > 0
    assert found.mfu < by_name["products"].mfu
    assert 0 < found.mfu < found.bound_mfu


@cases("extensions/cases.yaml")
def test_the_kind_of_a_kernel(chain: tuple[str, ...], kind: str) -> None:
    assert kind_of(chain) == kind
