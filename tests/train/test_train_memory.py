"""Rows per micro-batch, bounded by memory and without effect on the result; the predicted memory of an update."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from cases import cases, tables
from marks import release_but
from together import limited, run, text
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpas_cli.errors import GpasError
from gpas_cli.model.dropout import Dropout
from gpas_cli.model.llama import Llama, build
from gpas_cli.schedule.retry import is_memory
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import _update_bytes, activation_bytes
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Resources
from gpas_cli.train import assemble, loop
from gpas_cli.train import loss as loss_module
from gpas_cli.train.assemble import _free_bytes, micro_batch_rows
from gpas_cli.train.bench import SyntheticBatches, require_fit
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import IGNORED, Loop, micro_batches
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import ALONE, ParallelLayout, World, _recompute, _shard, choose_layout
from gpas_cli.train.precision import Precision

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
    needed = _update_bytes(what, 128, logits=2**10)
    # 128 of 512 rows, four times; if only 127 fit, five times 103 or fewer
    for rows, free in [(128, needed), (103, needed - 1), (1, 0), (512, 10**15)]:
        monkeypatch.setattr(assemble, "_free_bytes", lambda _, free=free: free)
        assert micro_batch_rows(what, FP32) == rows
    monkeypatch.setattr(assemble, "_free_bytes", lambda _: needed)
    assert micro_batch_rows(what, FP32, reserved=needed - _update_bytes(what, 64, logits=2**10)) == 64
    assert micro_batch_rows(what, FP32, processes=2) in (52, 64)  # of 256 rows, in half of the memory
    assert micro_batch_rows(what, FP32, 7) == 7
    assert micro_batch_rows(cell(mean_rows=8), FP32, 99, processes=4) == 8  # 16 whole means each
    assert micro_batch_rows(cell(mean_rows=256), FP32, 99, processes=4) == 64  # 2 means, shared
    assert micro_batch_rows(what, FP32, recompute=True) > 100


def saved_bytes(network: Llama, rows: DeviceRows, precision: Precision, smallest: int) -> int:
    """Return the bytes of the tensors with at least `smallest` elements that a forward pass saves."""
    sizes = {parameter.numel() for parameter in network.parameters()}  # no activation has one of these sizes
    kept: dict[int, torch.Tensor] = {}  # storages count once; the reference prevents reuse

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() >= smallest and tensor.numel() not in sizes:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = summed_loss(network, rows, precision)
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    loss.backward()
    return found


@pytest.mark.parametrize("heads", [{}, {"head_dim": 40}], ids=["usual heads", "wider heads"])
@pytest.mark.parametrize("scheme", ["pre", "sandwich"])
@pytest.mark.parametrize("name", ["fp32", "bf16", "pure_bf16"])
def test_an_estimate_covers_what_a_forward_pass_keeps(scheme: str, name: str, heads: dict[str, int]) -> None:
    size = {"hidden": 64, "ffn": 172, "heads": 4, "layers": 4, "vocab": 300, **heads}
    model = parse_model({"size": size, "norm": scheme, "family": {"qk_norm": "head"} if heads else "llama"})
    precision = Precision(name, CPU)
    network = build(model, dtype=torch.bfloat16 if name == "pure_bf16" else torch.float32)
    rows = DeviceRows.of(np.zeros((2, 48), np.int64), np.ones((2, 48), np.int64), CPU)
    estimate = 96 * activation_bytes(model, name)
    assert 0.8 * estimate < saved_bytes(network, rows, precision, 96 * 64) <= estimate


@pytest.mark.parametrize("decoder_layers", [1, 3])
@pytest.mark.parametrize(("scheme", "gate"), [("pre", "gpas"), ("post", "none"), ("sandwich", "none")])
@pytest.mark.parametrize("name", ["fp32", "bf16", "pure_bf16"])
def test_an_estimate_covers_an_encoder_and_decoder(scheme: str, gate: str, name: str, decoder_layers: int) -> None:
    """Half of the tokens are the encoder's; a layer of the decoder keeps what its cross-attention needs, too."""
    size = {"hidden": 64, "ffn": 172, "heads": 4, "layers": 4, "vocab": 300, "decoder_layers": decoder_layers}
    model = parse_model({"size": size, "norm": scheme, "gate": gate, "family": "encoder-decoder"})
    network = build(model, dtype=torch.bfloat16 if name == "pure_bf16" else torch.float32)
    targets = np.where(np.arange(48) < 23, IGNORED, np.ones((4, 48), np.int64))
    rows = DeviceRows.of(np.zeros((4, 48), np.int64), targets, CPU, np.full(4, 24))
    found = saved_bytes(network, rows, Precision(name, CPU), 4 * 24 * 64)
    estimate = 4 * 48 * activation_bytes(model, name)
    assert 0.8 * estimate < found <= estimate


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
    what = {"size": SIZE, "gate": "gpas", "data": data, "optim": {"lr": 1e-3, "warmup": 1, "steps": 2, "batch": 8}}
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
    [("none", 4, "not even one row"), ("fsdp", 1, "not even one row"), ("hsdp", 4, "4 rows at once do not fit")],
)
def test_a_network_too_large_is_an_end(strategy: str, rows: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Loop, "_accumulate", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
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


@cases("train/cases.yaml")
def test_layouts_are_chosen_by_bytes(
    monkeypatch: pytest.MonkeyPatch, size: str, processes: int, gigabytes: int, asked: dict[str, Any], chosen: list[Any]
) -> None:
    asked = dict(asked)
    where = FP32 if asked.pop("device", "cuda") == "cpu" else Precision("bf16", torch.device("cuda"))
    layout = layout_on(monkeypatch, size, World(0, processes, 0), gigabytes, where, asked)
    assert [layout.strategy, layout.recompute] == chosen


def layout_on(
    patch: pytest.MonkeyPatch, size: str, world: World, gigabytes: float, where: Precision, asked: dict[str, Any]
) -> ParallelLayout:
    patch.setattr(World, "min", lambda _, number: number)
    patch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 2**30))
    recipe = {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 512}
    what = cell_from({"size": size, "data": "c4", "optim": recipe, "precision": "bf16"})
    return choose_layout(what, Resources(**asked), where, world)


def test_processes_that_cannot_be_spread_over_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"ranks": 6, "nodes": 3, "strategy": "hsdp"}
    with pytest.raises(GpasError, match="nodes: 8 processes cannot be spread evenly over 3 nodes; nodes may be 1 or"):
        layout_on(monkeypatch, "7b", World(0, 8, 0), 80, FP32, asked)


GB = 2**30
WIDE = {"hidden": 512, "ffn": 1376, "heads": 8, "layers": 2, "vocab": 2048}


class PeakBytes(TorchDispatchMode):
    """Follows the storages of all tensors that operations return; `peak` is the most bytes that existed at once."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operation(*arguments, **(options or {}))
        for tensor in tree_iter((result, arguments)):
            if isinstance(tensor, Tensor):
                self._follow(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _follow(self, storage: Any) -> None:
        """Count the storage with its size, which changes where FSDP frees and allocates it."""
        key, size = storage._cdata, storage.nbytes()
        known = self._storages.get(key)
        if known is not None and known[0]() is storage and known[1] == size:
            return
        self.now += size - (known[1] if known is not None else 0)
        self._storages[key] = weakref.ref(storage, lambda _: self._forget(key)), size

    def _forget(self, key: int) -> None:
        self.now -= self._storages.pop(key, (None, 0))[1]


@pytest.fixture(scope="module")
def eight() -> Iterator[None]:
    """A group of 8 processes of which there is one, and whose messages have no content."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(eight: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device mesh that is made of tensors with values."""
    made = device_mesh.init_device_mesh("cpu", (8,))
    monkeypatch.setattr(device_mesh, "init_device_mesh", lambda *_, **__: made)


def wide_cell(precision: str, size: object = WIDE, **more: Any) -> Cell:
    data = {"source": "c4", "tokenizer": "bpe", "length": 64} if isinstance(size, dict) else "c4"
    optim = {"lr": 1e-3, "warmup": 1, "steps": 5, "batch": 512}
    return cell_from({"size": size, "precision": precision, "data": data, "optim": optim, **more})


def measured(what: Cell, rows: int, *, sharded: bool, recompute: bool) -> int:
    """Return the most bytes that exist in the second micro-batch, besides weights, gradients and optimizer state."""
    precision = Precision(what.precision, CPU)
    network = build(what.model, device="meta").to(precision.weights)
    precision.apply(network)
    with FakeTensorMode(allow_non_fake_inputs=True), PeakBytes() as bytes_held:
        _allocate(network)
        if recompute:
            _recompute(network)
        if sharded:
            _shard(network, precision)
        tokens = torch.zeros(rows, what.data.length, dtype=torch.int64)
        dropout = Dropout(what.dropout, tokens.int()) if what.dropout else None
        for _ in range(2):
            before = bytes_held.peak = bytes_held.now
            summed_loss(network, DeviceRows(tokens, tokens, None, dropout=dropout), precision).backward()
        return bytes_held.peak - before


def _allocate(network: Llama) -> None:
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))


LOGITS = 2**18  # of a chunk: the chunks are few, and take little memory beside the activations
CASES = tables("train/cases.yaml")["an_update_takes_what_is_predicted"]


def takes_as_predicted(
    what: Cell, rows: int, at_most: float, *, sharded: bool = False, recompute: bool = False, logits: int = LOGITS
) -> None:
    """Compare an update's bytes with those predicted, which are at least 98 % of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_module, "_CHUNK_LOGITS", logits)
        found = measured(what, rows, sharded=sharded, recompute=recompute)
    strategy = "fsdp" if sharded else "none"
    expected = _update_bytes(what, rows, strategy=strategy, recompute=recompute, logits=logits)
    assert 0.98 * found <= expected <= at_most * found


@pytest.mark.parametrize("name", release_but(CASES, "bf16"))
def test_an_update_takes_what_is_predicted(name: str) -> None:
    precision, settings, recompute = CASES[name]
    takes_as_predicted(wide_cell(precision, **settings), 64, 1.03, recompute=recompute)


@pytest.mark.parametrize(
    ("precision", "recompute"), release_but([("bf16", False), ("bf16", True), ("pure_bf16", False)], ("bf16", False))
)
def test_a_sharded_update_takes_what_is_predicted(precision: str, recompute: bool, mesh: None) -> None:
    # What is gathered counts for much in a network of two layers.
    takes_as_predicted(wide_cell(precision, gate="gpas"), 64, 1.10, sharded=True, recompute=recompute)


@pytest.mark.release
@pytest.mark.parametrize(("size", "sharded", "rows"), [("1b", False, 64), ("1b", True, 64), ("7b", True, 32)])
def test_the_published_sizes_take_what_is_predicted(size: str, sharded: bool, rows: int, mesh: None) -> None:
    takes_as_predicted(wide_cell("bf16", size, gate="gpas"), rows, 1.08, sharded=sharded, logits=64 * LOGITS)


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
