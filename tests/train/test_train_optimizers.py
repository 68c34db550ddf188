"""The optimizer registry, clipping, and nine Adam updates of the reference, compared number by number with ours."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from canonical_names import canonical_parameters
from cases import cases, tables
from documents import write_documents
from golden_inputs import probe, train_batch
from golden_networks import GOLDEN, close, filled
from recorder import stop_after
from safetensors.torch import load_file
from saving import save
from torch.utils._python_dispatch import TorchDispatchMode

from gpas_cli.checkpoints import path_of
from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.errors import InvalidExperiments
from gpas_cli.events import Outcome, silent
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters, state_bytes
from gpas_cli.spec.optim import MATRIX, OPTIMIZERS, AdafactorSettings, Optim, OptimizerKind, StateTensor, role
from gpas_cli.spec.parse import setting_classes
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Cadence
from gpas_cli.train import checkpoint, optim
from gpas_cli.train import evaluate as room
from gpas_cli.train import loop as loop_module
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.evaluate import evaluate, validation_rows
from gpas_cli.train.loop import Loop, micro_batches
from gpas_cli.train.optim import Adafactor, clip, make_adam, make_optimizer, orthogonalised, set_learning_rate
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import Execution, RunPaths, train

STEPS = 8
MOMENTUM = OptimizerKind(
    name="momentum",
    constructor=f"{__name__}:make_momentum",
    settings=("beta1",),
    tensors=(StateTensor("momentum_buffer"),),
)


def make_momentum(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return stochastic gradient descent with momentum `beta1`: one state tensor per parameter and no counter."""
    trainable = [p for p in network.parameters() if p.requires_grad]
    return torch.optim.SGD(trainable, lr=0.0, momentum=spec.beta1, weight_decay=spec.weight_decay)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, MOMENTUM.name, MOMENTUM)


# Every optimizer, each with settings of its own that are not the defaults.
SETTINGS = tables("train/cases.yaml")["its_settings_are_in_the_key_and_in_the_recorded_cell"]
KINDS = sorted({kind.name for kind in OPTIMIZERS.values()} | {MOMENTUM.name})


def cell(**optim: object) -> Cell:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 280}
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 200}
    recipe = {"lr": 0.01, "warmup": 2, "steps": STEPS, "batch": 4, **optim}
    return cell_from({"size": size, "gate": "gpas", "data": data, "optim": recipe})


def test_every_optimizer_is_tested() -> None:
    assert sorted(SETTINGS) == KINDS


@pytest.mark.parametrize("name", KINDS)
def test_its_settings_are_in_the_key_and_in_the_recorded_cell(name: str) -> None:
    changed = cell(optimizer=name, **SETTINGS[name])
    keys = {cell(optimizer=name, **{setting: value}).key for setting, value in SETTINGS[name].items()}
    assert len(keys | {cell(optimizer=name).key}) == len(SETTINGS[name]) + 1
    assert cell_from(changed.to_mapping()) == changed
    for other in set(KINDS) - {name}:
        own = set(setting_classes(Optim)) & set(SETTINGS[name])
        for setting in own:
            with pytest.raises(
                InvalidExperiments, match=rf"optim\.{setting}: has no effect: optimizer is {other}; {name} reads it"
            ):
                cell(optimizer=other, **{setting: SETTINGS[name][setting]})


def test_adamw_is_another_name_of_adam() -> None:
    assert cell(optimizer="adamw", weight_decay=0.1) == cell(weight_decay=0.1)
    assert cell(optimizer="adamw").key == cell().key


def test_keys_of_adam_stay_and_unread_settings_do_not_count() -> None:
    adam, momentum = cell(), cell(optimizer="momentum")
    assert cell(optimizer="adam").key == adam.key
    assert momentum.key != adam.key
    assert cell(optimizer="momentum", beta2=0.95, eps=1e-6) == momentum
    assert cell(optimizer="momentum", beta1=0.8).key != momentum.key
    assert cell(beta2=0.95).key != adam.key


@pytest.mark.parametrize(("precision", "weight"), [("fp32", 4), ("bf16", 4), ("pure_bf16", 2)])
def test_the_memory_estimate_uses_the_bytes_of_the_state(precision: str, weight: int) -> None:
    adam, momentum, adafactor, muon = (
        replace(cell(optimizer=name), precision=precision) for name in ("adam", "momentum", "adafactor", "muon")
    )
    assert state_bytes(adam) == 4 * weight * parameters(adam)  # weight, gradient, two averages
    assert state_bytes(momentum) == 3 * weight * parameters(momentum)
    matrices = 2 * (4 * 16 * 16 + 3 * 16 * 24)  # with one average each; the two tables have two
    assert state_bytes(muon) == 3 * weight * matrices + 4 * weight * (parameters(muon) - matrices)
    statistics = 2 * (4 * (16 + 16) + 3 * (16 + 24)) + 2 * (280 + 16)  # in float32
    assert state_bytes(adafactor) == 2 * weight * parameters(adafactor) + 4 * statistics


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder, [150] * 40)
    return folder


@cases("train/cases.yaml")
def test_training_with_it_resumes_in_the_same_bits(
    text: Path, tmp_path: Path, name: str, precision: str, how: str | dict[str, object]
) -> None:
    make_deterministic(1)
    plain = cell(optimizer=name, **SETTINGS[name]).to_mapping()
    trained = cell_from({**plain, "precision": precision, "parametrisation": how})

    def go(folder: str, stop_at: int | None = None, earlier: tuple[str, ...] = ()) -> Outcome:
        paths = RunPaths(tmp_path / folder, [tmp_path / e for e in earlier], text / "cache", text)
        return train(trained, paths, silent, Execution(Cadence(checkpoint_every=3), stop_after(stop_at)))

    whole = go("whole")
    assert go("first", stop_at=5).outcome == "interrupted"
    resumed = go("second", earlier=("first",))
    assert (whole.outcome, resumed.metrics["loss"]) == ("done", whole.metrics["loss"])
    ours, theirs = (load_file(*path_of(tmp_path / n, STEPS).glob("*.safetensors")) for n in ("second", "whole"))
    kind = trained.optim.kind
    state = {full.split("/")[1] for full in ours if full.startswith(kind.prefix)}
    assert state == {*(tensor.name for tensor in kind.tensors), *kind.counters}
    assert all(torch.equal(ours[full], theirs[full]) for full in theirs)
    assert whole.metrics["loss"] < 5.5  # guessing: log 280 = 5.63
    assert all(t.abs().max() > 0 for full, t in ours.items() if full.endswith("alpha"))
    own = {full: t for full, t in ours.items() if full.startswith(kind.prefix)}
    steps = sum(full.split("/")[1] in kind.counters for full in own)
    network = {full.removeprefix("network/"): t for full, t in ours.items() if full.startswith("network/")}
    estimated = sum(kind.state_bytes(role(n, t.dim()), t.shape, t.element_size()) for n, t in network.items())
    assert sum(t.numel() * t.element_size() for t in own.values()) == estimated + 4 * steps


def test_adafactor_is_torchs_below_its_bound_of_the_rate() -> None:
    """torch bounds the rate by 1/sqrt(step), which is 0.27 at the end, and adds nothing to squared gradients."""
    ours, theirs = (build(cell().model, seed=1) for _ in range(2))
    own = make_optimizer(ours, cell(optimizer="adafactor", weight_decay=0.1).optim)
    reference = torch.optim.Adafactor(theirs.parameters(), eps=(1e-20, 1e-3), weight_decay=0.1)
    for step in range(1, 15):
        batch = torch.randint(0, 280, (2, 9), generator=torch.Generator().manual_seed(step))
        for network, optimizer in ((ours, own), (theirs, reference)):
            network.zero_grad()
            set_learning_rate(optimizer, 0.2)
            F.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
    for (name, mine), yours in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-3, atol=2e-5, msg=name)


def test_adafactor_follows_the_schedule_where_torchs_does_not() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = Adafactor([weight], AdafactorSettings(), 0.0)
    optimizer.state[weight] = {
        "row_var": torch.ones(4, 1), "col_var": torch.ones(1, 4), "step": torch.tensor(10_000.0)
    }  # fmt: skip
    weight.grad = torch.ones(4, 4)
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 4), 0.5))  # 1 - rate * rms(weight)


def test_muon_orthogonalises_the_matrices_of_the_layers_and_adam_trains_the_rest() -> None:
    recipe = cell(optimizer="muon", matrix_lr=2.0, momentum=0.9, nesterov=True, weight_decay=0.1).optim
    ours, theirs = (build(cell().model, seed=1) for _ in range(2))
    muon, adam = make_optimizer(ours, recipe), make_adam(theirs, recipe)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for network, optimizer in ((ours, muon), (theirs, adam)):
        for name, parameter in network.named_parameters():
            # Not the gradients of a few tokens: bfloat16 hides what they say about most directions.
            generator = torch.Generator().manual_seed(len(name))
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_learning_rate(optimizer, 0.01)
        optimizer.step()
    for (name, mine), yours in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if role(name, mine.dim()) != MATRIX:
            assert torch.equal(mine, yours), name
            continue
        rate = 0.02  # twice that of Adam
        moved = (before[name] * (1 - rate * 0.1) - mine.detach()) / (rate * 0.2 * max(mine.shape) ** 0.5)
        # torch iterates in bfloat16; the first update is in the direction of the gradient.
        torch.testing.assert_close(moved, in_float64(mine.grad).float(), rtol=0, atol=0.03, msg=name)


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("at_once", "products"), [(20_000_000, 3 * 15), (1000, 6 * 15), (1, 14 * 15)])
@pytest.mark.parametrize("settings", [{"weight_decay": 0.1}, {"matrix_scale": "original", "nesterov": False}])
def test_muon_in_batches_of_one_shape_moves_each_matrix_as_torchs(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], at_once: int, products: int
) -> None:
    """Of the two layers eight matrices are of 16 x 16, four of 24 x 16 and two of 16 x 24."""
    monkeypatch.setattr(optim, "_STACKED", at_once)
    recipe = cell(optimizer="muon", **settings).optim
    network = build(cell().model, seed=1)
    ours = make_optimizer(network, recipe)
    matrices = [p for name, p in network.named_parameters() if role(name, p.dim()) == MATRIX]
    copies = [torch.nn.Parameter(p.detach().clone()) for p in matrices]
    scale = "match_rms_adamw" if "matrix_scale" not in settings else "original"
    theirs = torch.optim.Muon(
        copies, lr=0.01, weight_decay=recipe.weight_decay, nesterov="nesterov" not in settings, adjust_lr_fn=scale
    )
    set_learning_rate(ours, 0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for mine, yours in zip(matrices, copies, strict=True):
            mine.grad = yours.grad = torch.randn(mine.shape, generator=generator)
        with Products() as counted:
            ours.step()
        assert counted.count == products
        theirs.step()
    for mine, yours in zip(matrices, copies, strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=1e-4)  # 0.2 % of what three updates move


@pytest.mark.parametrize("shape", [(16, 16), (24, 16), (16, 24)])
def test_a_batch_is_orthogonalised_as_one_matrix_after_the_other(shape: tuple[int, int]) -> None:
    batch = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    each = torch.stack([in_float64(matrix) for matrix in batch])
    torch.testing.assert_close(orthogonalised(batch, 5), each, rtol=0, atol=1e-12)


def in_float64(gradient: torch.Tensor) -> torch.Tensor:
    """Return five Newton-Schulz iterations of a matrix in float64, with the coefficients of Jordan (2024)."""
    x = gradient.double() / gradient.double().norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
    return x


def test_state_that_its_entry_does_not_declare_is_an_error(tmp_path: Path) -> None:
    network = build(cell().model, seed=1)
    optimizer = make_optimizer(network, cell(optimizer="momentum").optim)
    network(torch.arange(14).reshape(2, 7)).square().mean().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="'adam' has the state 'momentum_buffer', which its entry does not declare"):
        save(tmp_path, "k", network, optimizer, Position(step=1))
    path = save(tmp_path, "k", network, optimizer, Position(step=1), kind=MOMENTUM)
    with pytest.raises(DamagedCheckpoint, match=r"has momentum/.*, which is not part of this optimizer"):
        checkpoint.load(path, "k", network, make_adam(network, cell().optim))


CLIPPED_SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 40}


@pytest.fixture
def network() -> Llama:
    """Return a network whose gates' gradients have norm 6 and all others' norm 8, together 10."""
    made = build(parse_model({"size": CLIPPED_SIZE, "gate": "gpas"}), seed=1)
    gates = [gate.alpha for gate in made.gates()]
    others = [p for p in made.parameters() if all(p is not gate for gate in gates)]
    torch.manual_seed(0)
    for part, wanted in ((gates, 6.0), (others, 8.0)):
        for parameter in part:
            parameter.grad = torch.randn_like(parameter)
        scale = wanted / norm(part)
        for parameter in part:
            parameter.grad *= scale
    return made


def norm(parameters: list[torch.nn.Parameter]) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters))


def norms(network: Llama) -> tuple[float, float]:
    """Return the gradient norms of the gates and of the other parameters."""
    gates = [gate.alpha for gate in network.gates()]
    return norm(gates), norm([p for p in network.parameters() if all(p is not gate for gate in gates)])


@cases("train/cases.yaml")
def test_norms_after_clipping(network: Llama, settings: dict[str, object], gates: float, others: float) -> None:
    every = list(network.parameters())
    alphas = [gate.alpha for gate in network.gates()]
    total, _ = clip(every, alphas, Optim(lr=1e-3, warmup=1, steps=2, **settings))  # type: ignore[arg-type]
    assert total.item() == pytest.approx(10.0, rel=1e-5)  # the norm before clipping
    # torch divides by the norm plus 1e-6.
    assert norms(network) == pytest.approx((gates, others), rel=2e-4)


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
            alphas = [gate.alpha for gate in run.network.gates()]
            clipped = reference.get("gate_grads_after_clip", reference["gate_grads_before_clip"])
            close([alpha.grad.item() for alpha in alphas], clipped, looser)
            close([alpha.item() for alpha in alphas], reference["gates_after"], looser)
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
    # The reference averages over 128 rows of an update at 350M, and over 512 rows of a validation batch.
    assert rows("350m", mean_rows=128) == 512


def test_the_three_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {8: 16.0, 2: 1.0}  # summed loss by number of targets that count
    monkeypatch.setattr(
        room, "summed_loss", lambda network, rows, precision, weight, active: torch.tensor(losses[weight] / weight)
    )
    monkeypatch.setattr(room, "reshard", lambda network: None)
    network, precision = SimpleNamespace(eval=int, train=int), SimpleNamespace(device=torch.device("cpu"))
    found = evaluate(network, [batch(8), batch(2)], precision, 2.0)  # type: ignore[arg-type]
    assert (found["loss"], found["loss_batch_mean"]) == (17 / 10, (2 + 0.5) / 2)
    assert (found["loss_reference"], found["tokens"]) == ((2 + 0.5) / 3, 10)
