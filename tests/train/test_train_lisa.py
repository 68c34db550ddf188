"""Which layers train: draws, frozen layers and gates, and the optimizer's state of layers that are not drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import finetuning
import pytest
import torch
from torch import Tensor

from gpas_cli.data.loader import Batch
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.finetune import Finetune
from gpas_cli.train.depth import LayerSelection, _drawn_layers, freeze_gates
from gpas_cli.train.loop import Loop
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.precision import Precision, make_deterministic

LAYERS = 6


class RandomBatches:
    """The same random rows in every test."""

    def at(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        rows = torch.randint(0, 280, (4, 9), generator=generator).numpy()
        return Batch(rows[:, :-1].copy(), rows[:, 1:].copy())


def loop(**section: Any) -> Loop:
    make_deterministic(1)
    spec = Finetune(**{"lisa_layers": 2, "lr": 0.01, "seed": 1, **section})
    size = {**finetuning.SIZE, "layers": LAYERS}
    network = build(finetuning.cell(size=size).model, seed=1)
    for number, gate in enumerate(network.gates()):
        gate.alpha.data.fill_(0.1 + 0.01 * number)
    freeze_gates(network)
    recipe = spec.optim(30)
    return Loop(
        network, make_optimizer(network, recipe), recipe, RandomBatches(), Precision("fp32", torch.device("cpu")), 4,
        selection=LayerSelection.of(spec, LAYERS),
    )  # fmt: skip


def layers_of(network: Llama) -> list[dict[str, Tensor]]:
    """Return the weights of every layer, without its gates."""
    return [
        {name: tensor.detach().clone() for name, tensor in layer.named_parameters() if not name.endswith("alpha")}
        for layer in network.model.layers
    ]


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Return whether every tensor changed, after checking that all did or none."""
    changed = {not torch.equal(before[name], after[name]) for name in before}
    assert len(changed) == 1
    return changed.pop()


def test_draws_are_uniform_and_without_replacement() -> None:
    draws = 6000
    counts = Counter(layer for draw in range(draws) for layer in _drawn_layers(42, draw, 24, 4))
    assert all(len(_drawn_layers(42, draw, 24, 4)) == 4 for draw in range(100))
    expected = draws * 4 / 24
    # Chi-squared with 23 degrees of freedom: 49.7 is its 99.9 % quantile.
    assert sum((counts[layer] - expected) ** 2 / expected for layer in range(24)) * 23 / 20 < 49.7
    pairs = Counter(frozenset(pair) for draw in range(draws) for pair in [sorted(_drawn_layers(7, draw, 6, 2))])
    assert len(pairs) == 15
    assert min(pairs.values()) > 300  # 400 +- 19


def test_layers_are_drawn_again_every_interval_and_by_the_seed() -> None:
    selection = LayerSelection(seed=42, layers=24, count=4, interval=3)
    drawn = [selection.at(step) for step in range(60)]
    assert all(drawn[step] == drawn[step - step % 3] for step in range(60))
    assert len({drawn[step] for step in range(0, 60, 3)}) > 15
    assert drawn != [LayerSelection(seed=43, layers=24, count=4, interval=3).at(step) for step in range(60)]


def test_exactly_the_drawn_layers_and_what_always_trains_change_and_gates_never() -> None:
    training = loop()
    network = training.network
    assert training.selection is not None
    gates = [gate.alpha.detach().clone() for gate in network.gates()]
    for step in range(12):
        before = layers_of(network)
        ends = [p.detach().clone() for p in (network.model.embed_tokens.weight, network.model.norm.weight)]
        head = network.lm_head.weight.detach().clone()
        training.update()
        changed = {number for number, pair in enumerate(zip(before, layers_of(network), strict=True)) if moved(*pair)}
        assert changed == training.selection.at(step)
        assert not torch.equal(ends[0], network.model.embed_tokens.weight)
        assert not torch.equal(ends[1], network.model.norm.weight)
        assert not torch.equal(head, network.lm_head.weight)
        for number, layer in enumerate(network.model.layers):
            drawn = number in changed
            parameters = [p for name, p in layer.named_parameters() if not name.endswith("alpha")]
            assert {p.requires_grad for p in parameters} == {drawn}
            assert {p.grad is not None for p in parameters} == {drawn}
    assert all(torch.equal(gate.alpha, kept) for gate, kept in zip(network.gates(), gates, strict=True))
    assert all(gate.alpha.grad is None and not gate.alpha.requires_grad for gate in network.gates())


@pytest.mark.parametrize("state", ["keep", "reset"])
def test_adam_counts_the_updates_of_every_layer_and_keeps_its_moments_between_them(state: str) -> None:
    training = loop(lisa_state=state)
    assert training.selection is not None
    expected = dict.fromkeys(range(LAYERS), 0)
    moments: dict[int, Tensor] = {}
    for step in range(15):
        training.update()
        drawn = training.selection.at(step)
        expected = {
            layer: count + 1 if layer in drawn else count if state == "keep" else 0 for layer, count in expected.items()
        }
        for number, layer in enumerate(training.network.model.layers):
            found = training.optimizer.state.get(layer.mlp.up_proj.weight, {})
            assert int(found.get("step", 0)) == expected[number]
            if found and number not in drawn:
                assert torch.equal(found["exp_avg"], moments[number])
            elif found:
                moments[number] = found["exp_avg"].clone()
    assert len(moments) == LAYERS
    head = training.optimizer.state[training.network.lm_head.weight]
    assert int(head["step"]) == 15
    assert all(gate.alpha not in training.optimizer.state for gate in training.network.gates())


def test_all_layers_at_once_are_full_finetuning_bit_for_bit() -> None:
    lisa = loop(lisa_layers=LAYERS)
    full = loop(method="full")
    assert (lisa.selection is None, full.selection is None) == (False, True)
    for _ in range(8):
        ours = lisa.update()
        theirs = full.update()
        assert torch.equal(ours.loss, theirs.loss)
        assert torch.equal(ours.grad_norm, theirs.grad_norm)
    for name, tensor in lisa.network.state_dict().items():
        assert torch.equal(tensor, full.network.state_dict()[name]), name
