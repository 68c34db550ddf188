"""Rows per micro-batch: bounded by memory, halved if they do not fit, and without effect on the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from together import limited, run, text

from gpas_cli.errors import GpasError
from gpas_cli.model.llama import build
from gpas_cli.schedule.retry import is_memory
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import _update_bytes, activation_bytes
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Resources
from gpas_cli.train import assemble, loop
from gpas_cli.train.assemble import _free_bytes, micro_batch_rows
from gpas_cli.train.loop import IGNORED, Loop, micro_batches
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision, make_deterministic
from gpas_cli.train.strategy import ParallelLayout, choose_layout

CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 280}


def cell(**optim: Any) -> Cell:
    recipe = {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 512, **optim}
    data = {"source": "stdlib", "tokenizer": "bpe", "layout": "pad", "length": 16}
    return cell_from({"size": SIZE, "data": data, "optim": recipe})


def test_rows_at_once_follow_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    what = cell()
    monkeypatch.setattr(assemble, "_CPU_LOGITS", 2**40)
    monkeypatch.setattr(assemble, "logits_at_once", lambda _: 2**10)
    monkeypatch.setattr(assemble, "USABLE_FRACTION", 1.0)
    needed = _update_bytes(what, 100, logits=2**10)
    for rows, free in [(100, needed), (99, needed - 1), (1, 0), (512, 10**15)]:
        monkeypatch.setattr(assemble, "_free_bytes", lambda _, free=free: free)
        assert micro_batch_rows(what, FP32) == rows
    monkeypatch.setattr(assemble, "_free_bytes", lambda _: needed)
    assert micro_batch_rows(what, FP32, reserved=needed - _update_bytes(what, 50, logits=2**10)) == 50
    assert 40 < micro_batch_rows(what, FP32, processes=2) <= 50
    assert micro_batch_rows(what, FP32, 7) == 7
    assert micro_batch_rows(cell(mean_rows=8), FP32, 99, processes=4) == 8  # 16 whole means each
    assert micro_batch_rows(cell(mean_rows=256), FP32, 99, processes=4) == 64  # 2 means, shared
    assert micro_batch_rows(what, FP32, recompute=True) > 100


@pytest.mark.parametrize("scheme", ["pre", "sandwich"])
@pytest.mark.parametrize("name", ["fp32", "bf16", "pure_bf16"])
def test_an_estimate_covers_what_a_forward_pass_keeps(scheme: str, name: str) -> None:
    size = {"hidden": 64, "ffn": 172, "heads": 4, "layers": 4, "vocab": 300}
    model = parse_model({"size": size, "norm": scheme})
    precision = Precision(name, CPU)
    network = build(model, dtype=torch.bfloat16 if name == "pure_bf16" else torch.float32)
    tokens = (2, 48)
    sizes = {parameter.numel() for parameter in network.parameters()}  # no activation has one of these sizes
    kept: dict[int, torch.Tensor] = {}  # storages count once; the reference prevents reuse

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() >= 96 * 64 and tensor.numel() not in sizes:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    inputs = np.zeros(tokens, np.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = summed_loss(network, DeviceRows.of(inputs, np.ones(tokens, np.int64), CPU), precision)
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    estimate = 96 * activation_bytes(model, name)
    assert 0.8 * estimate < found <= estimate
    loss.backward()


def test_free_memory_heeds_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_CGROUP", tmp_path)
    assert _free_bytes(CPU) <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert _free_bytes(CPU) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert _free_bytes(CPU) > 10**6


def test_too_little_memory_halves_the_rows_not_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text(tmp_path)
    make_deterministic(1)
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 99}
    what = {"size": SIZE, "gate": "gpas", "data": data, "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 8}}
    plain = run(tmp_path, ["plain", what, {"micro_batch": 2}, [], 99], ALONE)
    monkeypatch.setattr(loop, "summed_loss", limited(loop.summed_loss, 2))
    result = run(tmp_path, ["small", what, {}, [], 99], ALONE)
    assert result["outcome"] == {**plain["outcome"], "metrics": {**result["outcome"]["metrics"]}}
    assert [event["loss"] for event in result["step"]] == [event["loss"] for event in plain["step"]]
    assert [event["message"] for event in result["warning"] if "rows at once" in event["message"]] == [
        "8 rows at once do not fit the device's memory; continuing with 4",
        "4 rows at once do not fit the device's memory; continuing with 2",
    ]


@pytest.mark.parametrize(
    ("strategy", "rows", "words"),
    [("none", 4, "not even one row"), ("fsdp", 1, "not even one row"), ("fsdp", 4, "4 rows at once do not fit")],
)
def test_a_network_that_does_not_fit_ends_the_job(
    strategy: str, rows: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop.Loop, "_accumulate", none)
    network = build(parse_model({"size": SIZE}))
    what = Loop(network, None, None, None, FP32, rows, layout=ParallelLayout(ALONE, strategy), warn=lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(GpasError, match=words) as refusal:
        what._gradients(None, False, None)  # type: ignore[arg-type]
    assert is_memory(str(refusal.value)) is ("4 rows" in words), "is tried again with fewer rows where that can help"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("mean_rows", [0, 3, 6])
@pytest.mark.parametrize("micro_batch", [1, 2, 7])
def test_processes_share_every_row_once(size: int, mean_rows: int, micro_batch: int) -> None:
    targets = torch.ones(12, 4, dtype=torch.int64)
    targets[3:7, 1:] = IGNORED
    parts = [list(micro_batches(targets, micro_batch, mean_rows, World(r, size, r))) for r in range(size)]
    assert len({len(part) for part in parts}) == 1, "all make as many forward passes"
    rows = [row for part in parts for where, weight in part if weight < 1e9 for row in range(12)[where]]
    assert sorted(rows) == list(range(12))
    assert all(len(range(12)[where]) <= micro_batch for part in parts for where, _ in part)
    alone = dict(enumerate(w for where, w in micro_batches(targets, 1, mean_rows) for _ in range(12)[where]))
    assert all(alone[r] == w for part in parts for where, w in part if w < 1e9 for r in range(12)[where])


def test_processes_have_whole_means_where_these_can_be_shared() -> None:
    """As in the reference at 7B: means of 4 rows on 8 processes, the rows of each in one forward pass."""
    targets = torch.ones(16, 4, dtype=torch.int64)
    for rank in range(2):
        parts = [list(range(16)[where]) for where, _ in micro_batches(targets, 8, 4, World(rank, 2, rank))]
        assert parts == [list(range(first, first + 4)) for first in (4 * rank, 8 + 4 * rank)]
    assert micro_batch_rows(cell(mean_rows=4, batch=16), FP32, 99, processes=2) == 4


def test_layouts_are_chosen_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpas_cli.train import strategy

    two, eight = World(0, 2, 0), World(0, 8, 0)
    gpu = Precision("bf16", torch.device("cuda"))
    monkeypatch.setattr(World, "min", lambda _, number: number)
    recipe = {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 512}

    def chosen(size: object, world: World, gigabytes: float, where: Precision = gpu, **asked: Any) -> tuple[str, bool]:
        monkeypatch.setattr(strategy, "_memory", lambda _: int(gigabytes * 2**30))
        what = cell_from({"size": size, "data": "c4", "optim": recipe, "precision": "bf16"})
        layout = choose_layout(what, Resources(**asked), where, world)
        return layout.strategy, layout.recompute

    assert chosen("71m", ALONE, 80) == ("none", False)
    assert chosen("71m", two, 80) == ("ddp", False)
    assert chosen("1b", two, 80) == ("ddp", False), "21 GB of 80"
    assert chosen("1b", ALONE, 80) == ("none", False)
    assert chosen("1b", two, 40) == ("fsdp", False), "21 GB of 40"
    assert chosen("1b", ALONE, 32) == ("none", True)
    assert chosen("7b", eight, 80) == ("fsdp", False)
    assert chosen("7b", eight, 24) == ("fsdp", True)
    assert chosen("1b", two, 80, FP32) == ("ddp", False)
    assert chosen("71m", two, 80, FP32, strategy="fsdp") == ("fsdp", False)
    assert chosen("1b", two, 24, strategy="ddp", activation_checkpointing="none") == ("ddp", False)
    assert chosen("71m", two, 80, activation_checkpointing="blocks") == ("ddp", True)
