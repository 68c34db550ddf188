"""The predicted memory of an update is that of its tensors, counted without memory (FakeTensorMode)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import _update_bytes
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train import loss as loss_module
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision
from gpas_cli.train.strategy import _recompute, _shard

CPU = torch.device("cpu")
GB = 2**30
SIZE = {"hidden": 512, "ffn": 1376, "heads": 8, "layers": 2, "vocab": 2048}


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
    monkeypatch.setattr(device_mesh, "init_device_mesh", lambda *_: made)


def cell(precision: str, size: object = SIZE, **more: Any) -> Cell:
    data = {"source": "c4", "tokenizer": "bpe", "length": 64} if size is SIZE else "c4"
    optim = {"lr": 1e-3, "warmup": 1, "steps": 5, "batch": 512}
    return cell_from({"size": size, "precision": precision, "data": data, "optim": optim, **more})


def measured(what: Cell, rows: int, *, sharded: bool, recompute: bool) -> int:
    """Return the most bytes that exist in the second micro-batch, besides weights, gradients and optimizer state."""
    precision = Precision(what.precision, CPU)
    network = build(what.model, device="meta").to(precision.weights)
    with FakeTensorMode(allow_non_fake_inputs=True), PeakBytes() as bytes_held:
        _allocate(network)
        if recompute:
            _recompute(network)
        if sharded:
            _shard(network, precision)
        tokens = torch.zeros(rows, what.data.length, dtype=torch.int64)
        for _ in range(2):
            before = bytes_held.peak = bytes_held.now
            summed_loss(network, DeviceRows(tokens, tokens, None), precision).backward()
        return bytes_held.peak - before


def _allocate(network: Llama) -> None:
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))


LOGITS = 2**16
CASES: dict[str, tuple[Cell, int, bool]] = {
    "bf16": (cell("bf16", gate="gpas"), 64, False),
    "bf16-sandwich": (cell("bf16", norm="sandwich", gate="gpas"), 64, False),
    "bf16-recomputed": (cell("bf16"), 64, True),
    "fp32-post": (cell("fp32", norm="post"), 64, False),
    "pure": (cell("pure_bf16", gate="gpas"), 64, False),
    "gpt": (cell("bf16", family="gpt"), 64, False),
}


@pytest.mark.parametrize("name", ["bf16", *(pytest.param(n, marks=pytest.mark.long) for n in list(CASES)[1:])])
def test_an_update_takes_what_is_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", LOGITS)
    what, rows, recompute = CASES[name]
    found = measured(what, rows, sharded=False, recompute=recompute)
    expected = _update_bytes(what, rows, recompute=recompute, logits=LOGITS)
    assert 0.98 * found <= expected <= 1.03 * found


@pytest.mark.parametrize(
    ("precision", "recompute"),
    [
        ("bf16", False),
        pytest.param("bf16", True, marks=pytest.mark.long),
        pytest.param("pure_bf16", False, marks=pytest.mark.long),
    ],
)
def test_a_sharded_update_takes_what_is_predicted(
    precision: str, recompute: bool, mesh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", LOGITS)
    what = cell(precision, gate="gpas")
    found = measured(what, 64, sharded=True, recompute=recompute)
    expected = _update_bytes(what, 64, strategy="fsdp", recompute=recompute, logits=LOGITS)
    # What is gathered counts for much in a network of two layers.
    assert 0.98 * found <= expected <= 1.10 * found


@pytest.mark.long
@pytest.mark.parametrize(("size", "sharded", "rows"), [("1b", False, 64), ("1b", True, 64), ("7b", True, 32)])
def test_the_published_sizes_take_what_is_predicted(
    size: str, sharded: bool, rows: int, mesh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", LOGITS)
    what = cell("bf16", size, gate="gpas")
    found = measured(what, rows, sharded=sharded, recompute=False)
    expected = _update_bytes(what, rows, strategy="fsdp" if sharded else "none", logits=LOGITS)
    assert 0.98 * found <= expected <= 1.08 * found
