"""Nine Adam updates of the reference, compared number by number with ours, and the averages of a validation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from canonical_names import canonical_parameters
from golden_inputs import probe, train_batch
from golden_networks import GOLDEN, close, filled

from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train import evaluate as room
from gpas_cli.train import loop as loop_module
from gpas_cli.train.evaluate import evaluate, validation_rows
from gpas_cli.train.loop import Loop, micro_batches
from gpas_cli.train.optim import clip, make_adam, set_learning_rate
from gpas_cli.train.precision import Precision

NAMES = sorted(path.stem for path in GOLDEN.glob("train_*.json"))
FP32 = Precision("fp32", torch.device("cpu"))


@dataclass
class GoldenBatches:
    """Two micro-batches of two rows per update; every second one has padding."""

    def at(self, step: int) -> Batch:
        ids = np.concatenate([train_batch(2 * step), train_batch(2 * step + 1)])
        return Batch(ids[:, :-1], np.where(ids[:, 1:] == 0, IGNORED, ids[:, 1:]))


def recipe(golden: dict) -> Optim:
    settings = golden["optimizer"]
    return Optim(
        lr=settings["lr"], warmup=settings["warmup_steps"], steps=settings["num_training_steps"], batch=4,
        min_ratio=settings["min_lr_ratio"], eps=settings["eps"], clip=settings["grad_clipping"],
        clip_gates=settings["clip_gate_grad"], mean_rows=4 // settings["gradient_accumulation"],
    )  # fmt: skip


def training(name: str, dtype: torch.dtype, micro_batch: int) -> Loop:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    network = filled(golden["norm_type"], dtype, zero_gates=True)
    spec = recipe(golden)
    return Loop(network, make_adam(network, spec), spec, GoldenBatches(), FP32, micro_batch)  # type: ignore[arg-type]


def gate_gradients(network: Llama) -> list[float]:
    return [gate.alpha.grad.item() for gate in network.gates()]


# In float32, rounding hides all but large errors: one network shows that nothing needs the digits of float64.
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [*((name, torch.float64, 1e-9) for name in NAMES), ("train_pre_gpas", torch.float32, 1e-4)],
)
def test_nine_updates(name: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    before = []

    def watched_clip(
        parameters: Sequence[torch.Tensor], gates: Sequence[torch.Tensor], spec: Optim
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before.append([gate.grad.item() for gate in gates])
        return clip(parameters, gates, spec)

    monkeypatch.setattr(loop_module, "clip", watched_clip)
    run = training(name, dtype, micro_batch=2)
    # Adam divides by the root of a mean squared gradient: where that is nearly zero, float32 has no digits left.
    loose, looser = (tolerance, tolerance) if dtype == torch.float64 else (1e-3, 1e-2)
    for reference in golden["updates"]:
        done = run.update()
        close(done.rate, reference["lr_used"], 1e-12)
        close(done.loss.item(), np.mean(reference["micro_losses"]), tolerance)
        close(done.grad_norm.item(), reference["grad_l2_before_clip"], loose)
        if "gates_after" in reference:
            close(before[-1], reference["gate_grads_before_clip"], looser)
            close(
                gate_gradients(run.network),
                reference.get("gate_grads_after_clip", reference["gate_grads_before_clip"]),
                looser,
            )
            close([gate.alpha.item() for gate in run.network.gates()], reference["gates_after"], looser)
        squares = sum(p.detach().double().square().sum().item() for p in run.network.parameters())
        close(np.sqrt(squares), reference["param_l2_after"], tolerance)
    parameters = canonical_parameters(run.network)
    assert parameters.keys() == golden["final_params"].keys()
    for key, final in golden["final_params"].items():
        values = parameters[key].detach().double().numpy()
        close(np.linalg.norm(values), final["l2"], loose)
        close(probe(values), final["probe"], looser)


def test_all_thirteen_are_here() -> None:
    assert len(NAMES) == 13


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_the_mean_is_of_declared_rows_whatever_fits_at_once(micro_batch: int) -> None:
    expected, run = training("train_pre_gpas", torch.float64, 2), training("train_pre_gpas", torch.float64, micro_batch)
    for _ in range(2):
        close(run.update().loss.item(), expected.update().loss.item(), 1e-12)
    for ours, theirs in zip(run.network.parameters(), expected.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_by_default_every_token_weighs_the_same() -> None:
    targets = torch.tensor([[1, 2, 3], [1, 2, 3], [1, IGNORED, IGNORED], [1, 2, IGNORED]])
    assert list(micro_batches(targets, 3)) == [(slice(0, 3, 1), 9), (slice(3, 4, 1), 9)]
    # The means of 6 and of 3 targets, and then the mean of the two.
    assert list(micro_batches(targets, 3, 2)) == [(slice(0, 2, 1), 12), (slice(2, 4, 1), 6)]


def test_bfloat16_weights_get_the_reference_adam() -> None:
    """The reference Adam rounds after every operation; the fused one ends with different second moments."""
    values = {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 4}
    size = {"hidden": 8, "ffn": 8, "heads": 2, "layers": 1, "vocab": 300}
    made = cell_from({"size": size, "precision": "pure_bf16", "data": "quickstart", "optim": values})
    network = build(made.model, dtype=torch.bfloat16)
    ours = make_adam(network, made.optim)
    weight = network.lm_head.weight
    copies = [torch.nn.Parameter(weight.detach().clone()) for _ in range(2)]
    theirs, fused = torch.optim.Adam(copies[:1], foreach=False), torch.optim.Adam(copies[1:], fused=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        gradient = torch.randn(weight.shape, generator=generator).to(torch.bfloat16)
        for parameter in (weight, *copies):
            parameter.grad = gradient
        set_learning_rate(ours, 1e-3)
        for optimizer in (ours, theirs, fused):
            optimizer.step()
    assert torch.equal(weight, copies[0])
    assert not torch.equal(weight, copies[1])


def batch(counted: int, width: int = 4) -> Batch:
    targets = np.full((2, width), IGNORED)
    targets.flat[:counted] = 1
    return Batch(np.zeros((2, width), np.int64), targets)


def test_batches_are_as_many_as_the_references() -> None:
    def rows(size: object, **optim: int) -> int:
        values = {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 512, **optim}
        return validation_rows(cell_from({"size": size, "data": "c4", "optim": values}))

    assert [rows(size) for size in ("71m", "130m", "250m", "350m", "1b", "7b")] == [256, 256, 256, 512, 128, 32]
    assert rows({"like": "71m", "layers": 6}) == 512
    assert rows("71m", validation_rows=64) == 64


def test_batches_do_not_depend_on_the_means_of_an_update() -> None:
    """The reference averages over 128 rows of an update at 350M, and over 512 rows of a validation batch."""
    values = {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 512, "mean_rows": 128}
    assert validation_rows(cell_from({"size": "350m", "data": "c4", "optim": values})) == 512


def test_the_three_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {8: 16.0, 2: 1.0}  # summed loss by number of targets that count
    monkeypatch.setattr(
        room, "summed_loss", lambda network, rows, precision, weight, active: torch.tensor(losses[weight] / weight)
    )
    monkeypatch.setattr(room, "reshard", lambda network: None)
    network, precision = SimpleNamespace(eval=int, train=int), SimpleNamespace(device=torch.device("cpu"))
    found = evaluate(network, [batch(8), batch(2)], precision, 2.0)  # type: ignore[arg-type]
    assert found["loss"] == 17 / 10
    assert found["loss_batch_mean"] == (2 + 0.5) / 2
    assert found["loss_reference"] == (2 + 0.5) / 3
    assert found["tokens"] == 10
