"""Determinism, the allocator and the float32 matrix product of a process that trains.

What decides how a training rounds: recorded, and compared by a run that resumes.

Precision fp16: the scale of the loss, updates that are skipped, and a resume with the scale of the checkpoint.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from cases import cases
from together import run, text
from torch import Tensor

from gpas_cli.events import Event, Skipped
from gpas_cli.model.llama import build
from gpas_cli.processor import peak_flops
from gpas_cli.spec.cost import activation_bytes, state_bytes
from gpas_cli.spec.model import SIZES
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Monitoring, Resources
from gpas_cli.train import precision
from gpas_cli.train.assemble import assemble, changes
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.device import _ALLOCATOR_VARIABLES, make_deterministic, use_expandable_segments
from gpas_cli.train.loop import Loop
from gpas_cli.train.observe import Observer
from gpas_cli.train.parallel import ALONE
from gpas_cli.train.precision import TOLERANCE, LossScale, MatmulChoice, choose_matmul


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what `make_deterministic` sets."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", *_ALLOCATOR_VARIABLES):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_with_a_gpu_determinism_is_strict(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen's attention is deterministic in its backward pass only if it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    make_deterministic(torch.get_num_threads())
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is not on_gpu
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    compile_layers(build(parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 1, "layers": 1, "vocab": 9}})), "eager")
    assert torch._inductor.config.deterministic


@pytest.mark.parametrize("variable", [None, *_ALLOCATOR_VARIABLES])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_segments_expand_by_default(on_gpu: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    use_expandable_segments()
    assert found == (["expandable_segments:True"] if on_gpu and variable is None else [])


def test_torch_accepts_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    use_expandable_segments()


def test_an_allocator_that_cannot_extend_segments_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    monkeypatch.setattr(
        torch, "empty", Mock(side_effect=RuntimeError("CUDA driver error: operation not supported\nmore"))
    )
    with pytest.warns(UserWarning, match="may become fragmented: CUDA driver error: operation not supported$"):
        use_expandable_segments()
    assert found == ["expandable_segments:True", "expandable_segments:False"]


CPU = torch.device("cpu")
SIZE = SIZES["71m"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def processor(monkeypatch: pytest.MonkeyPatch, capability: str, error: float) -> None:
    """Fix the processor's instructions and the error of "medium"."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(precision, "_product_error", lambda path, *_: error if path == "medium" else 1e-7)


def test_the_chosen_product_is_accurate_and_set() -> None:
    choice = choose_matmul(SIZE, CPU)
    assert choice.error <= TOLERANCE
    assert choice.path == torch.get_float32_matmul_precision()


@cases("train/cases.yaml")
def test_the_product_of_each_processor(
    monkeypatch: pytest.MonkeyPatch, capability: str, error: float, before: str, choice: list[Any]
) -> None:
    """oneDNN's with AVX-512, unless it is bfloat16 there; a resumed run keeps its own if it is float32 here."""
    processor(monkeypatch, capability, error)
    assert choose_matmul(SIZE, CPU, before) == MatmulChoice(*choice)


BEFORE = {
    "device": "A", "threads": 2, "torch": "2.10.0", "compiled": True, "triton": False, "ragged": False, "wider": False,
    "deterministic": True,
}  # fmt: skip


def test_each_field_that_differs_is_said_in_words() -> None:
    now = {**BEFORE, "device": "B", "threads": 4, "compiled": False, "wider": True}
    assert changes(BEFORE, now, 7) == {
        "device": "the device: A up to update 7, B after it",
        "threads": "threads: 2 up to update 7, 4 after it",
        "compiled": "compiled layers: yes up to update 7, no after it",
        "wider": "float32 sums of the head's gradient: no up to update 7, yes after it",
    }
    assert changes(BEFORE, BEFORE, 7) == {}


def test_what_a_checkpoint_does_not_record_counts_as_equal() -> None:
    assert changes({}, BEFORE, 7) == {}
    assert changes({"torch": "2.10.0", "of a later version": 1}, BEFORE, 7) == {}


@pytest.mark.parametrize(
    ("before", "words"), [({}, "yes"), (BEFORE, "yes"), ({**BEFORE, "deterministic": False}, "no")]
)
def test_kernels_that_are_not_deterministic_differ_from_any_before(before: dict[str, Any], words: str) -> None:
    """Checkpoints that do not record it had deterministic ones. A training that begins differs from none."""
    now = {**BEFORE, "deterministic": False}
    changed = f"deterministic kernels (resources.deterministic): {words} up to update 7, no after it"
    assert changes(before, now, 7) == {"deterministic": changed}
    assert changes({}, now, 0) == {}


OPTIM = {"lr": 3e-3, "warmup": 1, "steps": 8, "batch": 8, "clip": 1.0}
FP16_SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 280}
TOO_LARGE = 2.0**30


def fp16_cell(name: str = "fp16", **more: Any) -> Any:
    data = {"like": "quickstart", "layout": "pad"}
    return cell_from({"size": FP16_SIZE, "gate": "gpas", "data": data, "optim": OPTIM, "precision": name, **more})


def fp16_loop(name: str = "fp16", **more: Any) -> Loop:
    made = fp16_cell(name, **more)
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
    ours, theirs = with_scale(fp16_loop(optim=clipped), scale), with_scale(fp16_loop("fp32", optim=clipped), 0.0)
    half, exact = ours.update(), theirs.update()
    assert (half.loss_scale, exact.loss_scale) == (scale, None)
    assert float(half.loss) == pytest.approx(float(exact.loss), rel=1e-3)
    assert float(half.grad_norm) == pytest.approx(float(exact.grad_norm), rel=5e-3)
    a, b = (torch.cat([p.grad.flatten() for p in what.network.parameters()]) for what in (ours, theirs))
    assert float(a.norm()) == pytest.approx(0.1, rel=1e-4)
    assert float((a - b).norm()) < 0.01 * float(b.norm())


def test_products_are_in_float16_and_weights_are_not() -> None:
    what = fp16_loop()
    seen: list[torch.dtype] = []
    what.network.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *args: seen.append(args[2].dtype))
    what.update()
    assert set(seen) == {torch.float16}
    assert {p.dtype for p in what.network.parameters()} == {torch.float32}


def test_small_gradients_survive_only_with_a_scale() -> None:
    """Without the scale, float16 turns gradients below 6e-8 into zeros."""

    def zeros(scale: float) -> float:
        what = fp16_loop(
            optim={**OPTIM, "batch": 2, "clip": 0}, data={"like": "quickstart", "length": 512, "layout": "pad"}
        )
        with_scale(what, scale).update()
        gradients = torch.cat([p.grad.flatten() for layer in what.network.model.layers for p in layer.parameters()])
        return float((gradients == 0).double().mean())

    assert zeros(2.0**16) < 0.01
    assert zeros(1.0) > 2 * zeros(2.0**16)


def test_an_update_whose_gradients_overflow_changes_nothing_but_the_scale() -> None:
    what = with_scale(fp16_loop(), TOO_LARGE)
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
    return events, Observer(fp16_cell(), Monitoring(), torch.device("cpu"), events.append)


def test_a_skipped_update_is_an_event_and_no_divergence() -> None:
    what = with_scale(fp16_loop(), TOO_LARGE)
    events, observer = observed(what)
    observer.add(what.update())
    assert observer.settle() is None
    assert events == [Skipped(2, TOO_LARGE)]
    observer.log(what.position)
    assert events[-1].loss_scale == TOO_LARGE


def test_gradients_that_are_not_finite_without_a_scale_are_a_divergence() -> None:
    what = with_scale(fp16_loop(), 1.0)
    what.network.model.layers[1].mlp.up_proj.weight.register_hook(lambda gradient: gradient * torch.inf)
    events, observer = observed(what)
    observer.add(what.update())
    assert observer.settle().parameter == "model.layers.1.mlp.up_proj.weight"
    assert events == []


def test_a_resumed_run_has_the_scale_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, although the scale grows every second update and overflows on the way."""
    monkeypatch.setattr(precision, "_GOOD_UPDATES", 2)
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (2.0**21, 0))
    text(tmp_path)
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 300}
    whole = {"size": FP16_SIZE, "gate": "gpas", "data": data, "optim": OPTIM, "precision": "fp16", "dropout": 0.1}
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
    half, bfloat = fp16_cell("fp16"), fp16_cell("bf16")
    assert half.key != bfloat.key
    assert activation_bytes(half.model, "fp16") == activation_bytes(bfloat.model, "bf16")
    assert state_bytes(half) == state_bytes(bfloat)
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp16") == peak_flops("NVIDIA H100 80GB HBM3", "bf16")
