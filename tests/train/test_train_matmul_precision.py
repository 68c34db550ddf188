"""The float32 matrix product: chosen if faster and exact, and kept by a resumed run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpas_cli.spec.model import SIZES
from gpas_cli.train import matmul_precision
from gpas_cli.train.matmul_precision import TOLERANCE, choose_matmul

CPU = torch.device("cpu")
SIZE = SIZES["71m"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], noise: dict[str, float] | None = None) -> None:
    """Fix the seconds that each path takes, and its error as a fraction of its largest element."""

    def product(path: str, x: torch.Tensor, weight: torch.Tensor) -> tuple[float, torch.Tensor]:
        exact = x @ weight.t()
        return seconds[path], exact + (noise or {}).get(path, 0) * exact.abs().max()

    monkeypatch.setattr(matmul_precision, "_timed", product)


def test_the_chosen_product_is_accurate_and_set() -> None:
    found = choose_matmul(SIZE, CPU)
    assert found.error <= TOLERANCE
    assert found.path == torch.get_float32_matmul_precision()


def test_the_faster_one_is_taken_with_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0})
    assert choose_matmul(SIZE, CPU).path == "medium"
    assert choose_matmul(SIZE, CPU).speedup == 2
    timed(monkeypatch, {"highest": 1.1, "medium": 1.0})
    assert choose_matmul(SIZE, CPU).path == "highest"


def test_a_fast_one_that_is_bfloat16_in_fact_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0}, {"medium": 2**-9})
    assert choose_matmul(SIZE, CPU).path == "highest"
    assert choose_matmul(SIZE, CPU, before="medium").path == "highest"


def test_a_resumed_run_keeps_its_matmul_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"highest": 1.0, "medium": 2.0})
    assert choose_matmul(SIZE, CPU, before="medium").path == "medium"


def test_all_runs_of_a_machine_take_one_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first choice stands whatever later probes measure, but a checkpoint's own choice takes precedence."""
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0})
    first = choose_matmul(SIZE, CPU, record=tmp_path)
    timed(monkeypatch, {"highest": 1.0, "medium": 2.0})
    second = choose_matmul(SIZE, CPU, record=tmp_path)
    assert (first.path, first.origin) == ("medium", "probe")
    assert (second.path, second.origin) == ("medium", "record")
    assert torch.get_float32_matmul_precision() == "medium"
    assert choose_matmul(SIZE, CPU, before="highest", record=tmp_path).path == "highest"
    assert choose_matmul(SIZES["130m"], CPU, record=tmp_path).origin == "probe"  # another shape
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert choose_matmul(SIZE, CPU, record=tmp_path).origin == "probe"
    finally:
        torch.set_num_threads(threads)


def test_a_recorded_path_that_is_not_float32_here_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0})
    assert choose_matmul(SIZE, CPU, record=tmp_path).path == "medium"
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0}, {"medium": 2**-9})
    assert choose_matmul(SIZE, CPU, record=tmp_path).path == "highest"


def test_a_damaged_record_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0})
    choose_matmul(SIZE, CPU, record=tmp_path)
    (record,) = tmp_path.glob("*.json")
    record.write_text('{"path": "lowest"}')
    assert choose_matmul(SIZE, CPU, record=tmp_path).origin == "probe"
    assert choose_matmul(SIZE, CPU, record=tmp_path).origin == "record"


def test_without_a_writable_cache_no_probe_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed(monkeypatch, {"highest": 2.0, "medium": 1.0})
    (tmp_path / "file").write_text("")
    found = choose_matmul(SIZE, CPU, record=tmp_path / "file")
    assert (found.path, found.origin) == ("highest", "unrecorded")
