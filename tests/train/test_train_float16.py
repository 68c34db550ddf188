"""Precision fp16: the scale of the loss, updates that are skipped, and a resume with the scale of the checkpoint."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from together import run, text
from torch import Tensor

from gpas_cli.events import Event, Skipped
from gpas_cli.spec.cost import activation_bytes, peak_flops, state_bytes
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Monitoring, Resources
from gpas_cli.train import precision
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.loop import Loop
from gpas_cli.train.observe import Observer
from gpas_cli.train.parallel import ALONE
from gpas_cli.train.precision import LossScale

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 280}
OPTIM = {"lr": 3e-3, "warmup": 1, "steps": 8, "batch": 8, "clip": 1.0}
TOO_LARGE = 2.0**40


def cell(name: str = "fp16", **more: Any) -> Any:
    data = {"like": "quickstart", "layout": "pad"}
    return cell_from({"size": SIZE, "gate": "gpas", "data": data, "optim": OPTIM, "precision": name, **more})


def loop(name: str = "fp16", **more: Any) -> Loop:
    made = cell(name, **more)
    return assemble(made, SyntheticBatches(made, padded=True), Resources(compile="off", micro_batch=4))


def with_scale(what: Loop, scale: float) -> Loop:
    """Return a training after its first update, with this scale."""
    what.update()
    what.position = replace(what.position, loss_scale=scale)
    return what


def state(what: Loop) -> list[Tensor]:
    moments = [t.clone() for parts in what.optimizer.state.values() for t in parts.values()]
    return [*(t.clone() for t in what.network.state_dict().values()), *moments]


@pytest.mark.parametrize("seed", range(4))
def test_the_scale_is_that_of_torch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_GOOD_UPDATES", 3)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    theirs, ours = torch.amp.GradScaler("cpu", growth_interval=3), LossScale()
    chooser = random.Random(seed)
    for _ in range(60):
        finite = chooser.random() > 0.25
        optimizer.zero_grad()
        theirs.scale(weight.sum() * (1.0 if finite else torch.inf)).backward()
        assert theirs.get_scale() == ours.value
        theirs.step(optimizer)
        theirs.update()
        ours = ours.after(finite=finite)
    assert theirs.get_scale() == ours.value
    assert 1 < ours.value != LossScale().value


@pytest.mark.parametrize("scale", [2.0**8, 2.0**16])
def test_gradients_have_no_scale_when_they_are_clipped_and_used(scale: float) -> None:
    clipped = {**OPTIM, "clip": 0.1}
    ours, theirs = with_scale(loop(optim=clipped), scale), with_scale(loop("fp32", optim=clipped), 0.0)
    half, exact = ours.update(), theirs.update()
    assert (half.loss_scale, exact.loss_scale) == (scale, None)
    assert float(half.loss) == pytest.approx(float(exact.loss), rel=1e-3)
    assert float(half.grad_norm) == pytest.approx(float(exact.grad_norm), rel=5e-3)
    a, b = (torch.cat([p.grad.flatten() for p in what.network.parameters()]) for what in (ours, theirs))
    assert float(a.norm()) == pytest.approx(0.1, rel=1e-4)
    assert float((a - b).norm()) < 0.01 * float(b.norm())


def test_products_are_in_float16_and_weights_are_not() -> None:
    what = loop()
    seen: list[torch.dtype] = []
    what.network.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *args: seen.append(args[2].dtype))
    what.update()
    assert set(seen) == {torch.float16}
    assert {p.dtype for p in what.network.parameters()} == {torch.float32}


def test_small_gradients_survive_only_with_a_scale() -> None:
    """Without the scale, float16 turns gradients below 6e-8 into zeros."""

    def zeros(scale: float) -> float:
        what = loop(optim={**OPTIM, "clip": 0}, data={"like": "quickstart", "length": 512, "layout": "pad"})
        with_scale(what, scale).update()
        gradients = torch.cat([p.grad.flatten() for layer in what.network.model.layers for p in layer.parameters()])
        return float((gradients == 0).double().mean())

    assert zeros(2.0**16) < 0.01
    assert zeros(1.0) > 2 * zeros(2.0**16)


def test_an_update_whose_gradients_overflow_changes_nothing_but_the_scale() -> None:
    what = with_scale(loop(), TOO_LARGE)
    before = state(what)
    update = what.update()
    assert (update.skipped, update.loss_scale, update.step) == (True, TOO_LARGE, 2)
    assert update.loss.isfinite()
    assert not update.grad_norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(state(what), before, strict=True))
    assert (what.position.step, what.position.loss_scale, what.position.good_updates) == (2, TOO_LARGE / 2, 0)
    skipped = 1
    while what.update().skipped:
        skipped += 1
    assert what.position.loss_scale == TOO_LARGE / 2**skipped > 1
    assert what.position.good_updates == 1
    assert not all(torch.equal(a, b) for a, b in zip(state(what), before, strict=True))


def observed(what: Loop) -> tuple[list[Event], Observer]:
    events: list[Event] = []
    return events, Observer(cell(), Monitoring(), torch.device("cpu"), events.append)


def test_a_skipped_update_is_an_event_and_no_divergence() -> None:
    what = with_scale(loop(), TOO_LARGE)
    events, observer = observed(what)
    observer.add(what.update())
    assert observer.settle() is None
    assert events == [Skipped(2, TOO_LARGE)]
    observer.log(what.position)
    assert events[-1].loss_scale == TOO_LARGE


def test_gradients_that_are_not_finite_without_a_scale_are_a_divergence() -> None:
    what = with_scale(loop(), 1.0)
    what.network.model.layers[1].mlp.up_proj.weight.register_hook(lambda gradient: gradient * torch.inf)
    events, observer = observed(what)
    observer.add(what.update())
    found = observer.settle()
    assert found is not None
    assert found.parameter == "model.layers.1.mlp.up_proj.weight"
    assert events == []


def test_a_resumed_run_has_the_scale_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, although the scale grows every second update and overflows on the way."""
    monkeypatch.setattr(precision, "_GOOD_UPDATES", 2)
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**22, 0))
    text(tmp_path)
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 300}
    whole = {"size": SIZE, "gate": "gpas", "data": data, "optim": OPTIM, "precision": "fp16", "dropout": 0.1}
    straight = run(tmp_path, ["straight", whole, {}, [], 10**6], ALONE)
    run(tmp_path, ["first", whole, {}, [], 5], ALONE)
    second = run(tmp_path, ["second", whole, {}, ["first"], 10**6], ALONE)
    names = ("loss", "grad_norm", "loss_scale")
    ours, theirs = ([[e[name] for name in names] for e in one["step"]] for one in (second, straight))
    assert ours == theirs[5:]
    scales = [e["loss_scale"] for e in straight["step"]]
    assert any(after > before for before, after in pairwise(scales))
    fallen = [update for update, (before, after) in enumerate(pairwise(scales), 1) if after < before]
    assert [e["step"] for e in straight["skipped"]] == fallen != []
    assert second["evaluation"][-1] == straight["evaluation"][-1]
    assert straight["outcome"]["outcome"] == "done"


def test_costs_are_those_of_bf16() -> None:
    half, bfloat = cell("fp16"), cell("bf16")
    assert half.key != bfloat.key
    assert activation_bytes(half.model, "fp16") == activation_bytes(bfloat.model, "bf16")
    assert state_bytes(half) == state_bytes(bfloat)
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp16") == peak_flops("NVIDIA H100 80GB HBM3", "bf16")
