"""An update runs on the device: nothing in it needs numbers on the host, or host tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Monitoring
from gpas_cli.train import assemble
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.observe import Observer

NEEDS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
COPIES = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class Operations(TorchDispatchMode):
    """Collects the operations that make the host wait, except those on numbers already `on_host`."""

    def __init__(self, found: list[str], on_host: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.found = found
        self.on_host = {tensor.data_ptr() for tensor in on_host}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if NEEDS_NUMBERS & set(function.tags) and args[0].data_ptr() not in self.on_host:
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Collects the methods that copy numbers to the host without dispatching an operation."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in COPIES:
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


@contextmanager
def reads(on_host: Iterable[torch.Tensor] = ()) -> Iterator[list[str]]:
    found: list[str] = []
    with Operations(found, on_host), Copies(found):
        yield found


def cell(**values: object) -> Cell:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280}
    optim = {"lr": 0.01, "warmup": 1, "steps": 40, "batch": 6, "mean_rows": 3, "clip_gates": 0.01}
    return cell_from(
        {"size": size, "gate": "gpas", "data": {"like": "quickstart", "layout": "pad"}, "optim": optim, **values}
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure_bf16"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("gate", ["gpas", "none", {"like": "gpas", "site": "before-sublayer"}])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_update_and_its_observation(precision: str, padded: bool, gate: object, norm: str) -> None:
    made = cell(precision=precision, gate=gate, norm=norm)
    loop = synthetic_loop(made, padded=padded)
    observer = Observer(made, Monitoring(), loop.precision.device, lambda *_, **__: None)
    loop.update()  # the first update creates Adam's states
    fused = loop.optimizer.defaults["fused"]
    counts = [] if fused else [state["step"] for state in loop.optimizer.state.values()]
    with reads(counts) as found:
        observer.add(loop.update(observe=True))
        observer.add(loop.update())
    assert found == []
    with reads() as found:
        observer.settle()
    assert len(found) >= 1


@pytest.mark.parametrize(("norm", "family"), [*((norm, "llama") for norm in SCHEMES), ("pre", "gpt")])
def test_all_of_it_is_on_the_device(norm: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which has shapes but no numbers, every operation with a host tensor fails."""
    monkeypatch.setattr(assemble, "choose_device", lambda: torch.device("meta"))
    monkeypatch.setattr(assemble, "worth_compiling", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # unsupported here, as is fused Adam
    monkeypatch.setattr(torch.optim, "AdamW", partial(without_fused, torch.optim.AdamW))
    loop = synthetic_loop(cell(norm=norm, family=family, gate="gpas"), padded=True)
    done = loop.update(observe=True)
    assert done.layers is not None
    gradients = [p.grad for p in loop.network.parameters() if p.grad is not None]
    assert {t.device.type for t in (*gradients, done.loss, done.grad_norm, done.layers.numbers)} == {"meta"}


def without_fused(adam: Callable[..., torch.optim.Optimizer], *asked: Any, **settings: Any) -> torch.optim.Optimizer:
    return adam(*asked, **{**settings, "fused": False, "foreach": True})


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.nonzero, *sorted(COPIES, key=str), bool, float])
def test_reading_is_noticed(read: Callable[[torch.Tensor], object]) -> None:
    with reads() as found:
        read(torch.ones(1))
    assert found
