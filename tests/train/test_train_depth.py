"""Trainings of paths and of growing networks: what changes in an update, resumption, equality with full depth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import long_but
from test_train_run import cell, final_tensors, go, paths
from together import run, start, text
from torch import Tensor

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import Depth, LayerSchedule
from gpas_cli.spec.run import Resources
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.depth import DepthTraining
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import Loop
from gpas_cli.train.parallel import ALONE

__all__ = ["paths"]

STEPS = 12
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 6, "vocab": 280}
DEPTHS: dict[str, Any] = {
    "raptr": {"like": "raptr", "stages": "3-4-6", "full_steps": 2},
    "zero": {"like": "raptr", "stages": "2-4-6", "skipped": "zero", "scale": "linear", "fixed": "none"},
    "stacking": {"like": "stacking", "stages": "2-3-6"},
    "fresh": {"like": "stacking", "stages": "3-6", "moments": "fresh", "copied": "whole"},
    "layerdrop": {"like": "layerdrop", "keep": 0.2},
}


def deep(depth: object, **values: object) -> Cell:
    return cell(**{"size": SIZE, "depth": depth, "optim": recipe(), **values})


def loop(depth: object, **values: object) -> Loop:
    make_deterministic(1)
    made = deep(depth, **values)
    return assemble(made, SyntheticBatches(made, padded=False), Resources(compile="off"))


def tensors(network: Llama) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def layers_of(network: Llama) -> list[dict[str, Tensor]]:
    return [tensors(layer) for layer in network.model.layers]


@pytest.mark.parametrize("depth", long_but(DEPTHS, "raptr", "stacking"))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(paths: Any, tmp_path: Path, depth: str) -> None:
    what = deep(DEPTHS[depth])
    outcome, recorder = go(paths, tmp_path / "whole", what)
    assert outcome.outcome == "done"
    assert recorder.of("step")[-1]["loss"] < recorder.of("step")[0]["loss"]
    interrupted, _ = go(paths, tmp_path / "first", what, stop_at=7)
    assert interrupted.step == 7
    go(paths, tmp_path / "second", what, earlier=[tmp_path / "first"])
    ours, theirs = final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "second")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_path_of_every_layer_trains_as_full_depth_to_the_bit() -> None:
    """p = 1: RaPTr whose only stage is the whole network."""
    full = loop("full")
    path = loop("full")
    whole = Depth(kind="raptr", stages="6", fixed="none")
    path.depth = DepthTraining(LayerSchedule(whole, 6, STEPS), seed=1)
    for _ in range(3):
        ours = path.update(observe=True)
        theirs = full.update(observe=True)
        assert torch.equal(ours.loss, theirs.loss)
        assert torch.equal(ours.grad_norm, theirs.grad_norm)
        assert torch.equal(ours.layers.numbers, theirs.layers.numbers)
    mine, other = tensors(path.network), tensors(full.network)
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("skipped", ["keep", "zero"])
def test_the_optimizer_leaves_a_skipped_layer_alone_or_sees_a_gradient_of_zero(skipped: str) -> None:
    training = loop({"like": "raptr", "stages": "3-6", "skipped": skipped}, optim=recipe(weight_decay=0.1))
    assert training.depth is not None
    counted = [0] * 6
    moved_without_gradient = False
    for update in range(1, 11):
        before = layers_of(training.network)
        result = training.update(observe=True)
        active = training.depth.schedule.at(42, update).layers
        series = result.layers.series(result.layers.numbers.tolist())
        variances = (series["activation_variance"] + [None] * 7)[:7]
        assert [value is not None for value in variances] == [layer in (*active, 7) for layer in range(1, 8)]
        for number, layer in enumerate(training.network.model.layers):
            trains = number + 1 in active
            counted[number] += trains or skipped == "zero"
            same = [torch.equal(before[number][name], value) for name, value in tensors(layer).items()]
            if not trains and skipped == "keep":
                assert all(same)
                assert all(p.grad is None for p in layer.parameters())
            elif not trains:
                assert all(not p.grad.any() for p in layer.parameters())
                moved_without_gradient |= not any(same)
            state = training.optimizer.state.get(layer.mlp.up_proj.weight, {})
            assert int(state.get("step", 0)) == counted[number]
    assert sum(counted) < 60 or skipped == "zero"
    assert moved_without_gradient == (skipped == "zero")


def recipe(**more: object) -> dict[str, object]:
    return {"lr": 0.01, "warmup": 3, "steps": STEPS, "batch": 4, **more}


@pytest.mark.parametrize("moments", ["copied", "fresh"])
def test_a_grown_network_equals_one_stacked_by_hand(moments: str) -> None:
    """At the boundary every layer, its moments, the loss and the gradients are those of the layers it was made of."""
    training = loop({"like": "stacking", "stages": "2-3-6", "moments": moments})
    untouched = build(training.network.spec, seed=42).model.layers[5].mlp.up_proj.weight.to(training.precision.device)
    while training.position.step < 8:
        assert torch.equal(training.network.model.layers[5].mlp.up_proj.weight, untouched)
        training.update()
    before = layers_of(training.network)
    state = [
        dict(training.optimizer.state[layer.mlp.up_proj.weight]) for layer in list(training.network.model.layers)[:3]
    ]
    kept = [{name: value.clone() for name, value in parts.items()} for parts in state]
    device = training.precision.device
    by_hand = build(training.network.spec, seed=1, device=device)
    stacked = training.network.state_dict()
    for target in (4, 5, 6):
        for name, value in before[target - 4].items():
            stacked[f"model.layers.{target - 1}.{name}"] = value
    by_hand.load_state_dict(stacked)
    training.depth.grow(training.network, training.optimizer, 9)
    assert all(torch.equal(value, by_hand.state_dict()[name]) for name, value in tensors(training.network).items())
    for target in (4, 5, 6):
        found = training.optimizer.state.get(training.network.model.layers[target - 1].mlp.up_proj.weight, {})
        assert found.keys() == (kept[target - 4].keys() if moments == "copied" else set())
        assert all(torch.equal(found[name], kept[target - 4][name]) for name in found)
    tokens = torch.randint(0, 280, (2, 8)).to(device)
    assert torch.equal(training.network(tokens), by_hand(tokens))
    training.update()
    later = layers_of(training.network)
    assert not torch.equal(later[3]["mlp.up_proj.weight"], later[0]["mlp.up_proj.weight"])


def test_an_evaluation_sees_the_whole_network_or_that_which_has_grown() -> None:
    stacking = loop(DEPTHS["stacking"])
    seen = []
    for _ in range(STEPS):
        stacking.update()
        active = stacking.evaluated_layers()
        seen.append(6 if active is None else len(active.layers))
    assert seen == [2] * 4 + [3] * 4 + [6] * 4
    raptr = loop(DEPTHS["raptr"])
    raptr.update()
    assert raptr.evaluated_layers() is None


PARALLEL = {
    "raptr": {"like": "raptr", "stages": "3-4-6"},
    "zero": {"like": "raptr", "stages": "2-6", "skipped": "zero", "fixed": "none"},
    "stacking": {"like": "stacking", "stages": "2-3-6"},
}


def together_values(depth: object) -> dict[str, Any]:
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 300}
    optim = {"lr": 3e-3, "warmup": 1, "steps": 6, "batch": 8, "clip": 1.0, "clip_gates": 0.01}
    return {"size": SIZE, "gate": "gpas", "data": data, "optim": optim, "depth": depth}


WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "micro_batch": 2, "room": [1, 1, 0]},
    "fsdp": {"strategy": "fsdp", "micro_batch": 2, "activation_checkpointing": "blocks"},
}


@pytest.mark.long
def test_two_processes_train_the_same_paths_as_one(tmp_path: Path) -> None:
    """Replicated and sharded, in micro-batches, one of them halved; sharded weights are copied as they are."""
    text(tmp_path)
    make_deterministic(1)
    cases = [(name, way) for name in PARALLEL for way in WAYS]
    start(tmp_path, 2, [[f"{way}-{n}", together_values(PARALLEL[n]), WAYS[way], [], 10**6] for n, way in cases])
    for name, way in cases:
        both = json.loads((tmp_path / f"{way}-{name}.json").read_text())
        if way == "ddp":
            alone = run(tmp_path, [name, together_values(PARALLEL[name]), {"micro_batch": 3}, [], 10**6], ALONE)
        for kind, numbers in (("step", ("loss", "grad_norm")), ("evaluation", ("loss",))):
            ours = [[event[number] for number in numbers] for event in alone[kind]]
            theirs = [[event[number] for number in numbers] for event in both[kind]]
            torch.testing.assert_close(torch.tensor(theirs), torch.tensor(ours), rtol=2e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_random_paths_add_no_graphs(counter: Any) -> None:
    """A layer has one graph whatever the path and its factor."""
    training = loop({"like": "raptr", "stages": "3-6", "fixed": "none"}, optim=recipe(steps=12))
    compile_layers(training.network, counter)
    graphs = []
    for _ in range(12):
        training.update()
        graphs.append(counter.frame_count)
    assert graphs[2] == graphs[5]  # of different paths
    assert graphs[6] == graphs[11] <= 3
