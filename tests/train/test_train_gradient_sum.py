"""Messages of gradients: sent during the backward pass, in one order, and complete in a process that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpas_cli.model.layers import RMSNorm
from gpas_cli.model.llama import Llama
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import parallel
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import GradientSum, World
from gpas_cli.train.precision import Precision
from gpas_cli.train.strategy import ParallelLayout

CPU = torch.device("cpu")
WORLD = World(0, 2, 0)  # as if there were another process; the group below has one


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def sent(group: None, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that are sent, in order."""
    messages: list[Tensor] = []
    usual = dist.all_reduce

    def recorded(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
        messages.append(tensor.clone())
        return usual(tensor, *arguments, **more)

    monkeypatch.setattr(dist, "all_reduce", recorded)
    monkeypatch.setattr(parallel, "_BUCKET_BYTES", 4 * 9)
    return messages


def chain() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(6)))


def test_messages_are_sent_as_the_backward_pass_completes_them(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))
    seen: list[int] = []
    network[2].register_full_backward_hook(lambda *_: seen.append(len(sent)))
    with gradients.during_backward():
        network(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert seen == [4], "those of the last four layers, before the gradients of the first two"
    gradients.finish()
    assert [m.tolist() for m in sent] == [p.grad.flatten().tolist() for p in reversed(list(network.parameters()))]


def test_only_the_backward_pass_that_is_marked_sends(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))
    network(torch.ones(2, 3)).sum().backward()
    assert not sent
    with gradients.during_backward():
        network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 6
    gradients.finish()
    network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 6


def test_a_process_that_failed_sends_what_the_others_expect(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    network[1].weight.register_hook(fail)
    with pytest.raises(torch.OutOfMemoryError), gradients.during_backward():
        network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 4
    network.zero_grad(set_to_none=True)
    gradients.finish()
    assert [m.numel() for m in sent] == [9] * 6
    assert all(p.grad is None for p in network.parameters())


def test_what_has_no_gradient_is_in_no_message(group: None) -> None:
    network = Llama(parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 2, "layers": 2, "vocab": 8}, "gate": "gpas"}))
    layout = ParallelLayout(WORLD, "ddp")
    every = sum(p.numel() for p in network.parameters())

    def numbers() -> int:
        return sum(p.numel() for bucket in layout.gradient_sum(network, None)._buckets for p in bucket)

    assert numbers() == every
    network.model.layers[0].requires_grad_(False)
    assert numbers() == every - sum(p.numel() for p in network.model.layers[0].parameters())


@pytest.mark.keeps_open("gloo keeps its connections until the process ends")
def test_bf16_gathers_the_matrices_of_layers_in_bfloat16(group: None) -> None:
    model = parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 2, "layers": 2, "vocab": 8}, "gate": "gpas"})
    precision = Precision("bf16", CPU)
    network = ParallelLayout(World(), "fsdp").build(model, 1, precision)
    seen: dict[str, torch.dtype] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding | RMSNorm):
            module.register_forward_pre_hook(lambda m, _, name=name: seen.update({name: m.weight.dtype}))
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    summed_loss(network, DeviceRows(tokens, tokens, None), precision).backward()
    narrow = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    assert narrow == {name for name in seen if name.endswith("_proj") and "down" not in name}
    assert all(p.dtype == torch.float32 == p.grad.dtype for p in network.parameters() if p.grad is not None)
    network.unshard()
    assert {p.dtype for layer in network.model.layers for n, p in layer.named_parameters() if "norm" in n} == {
        torch.float32
    }
