"""Measurements of a training (norms, speed, memory, MFU), and spikes and divergence as functions of the series."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from cases import cases
from torch import Tensor

from gpas_cli.events import Event, Layers, Step
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.stream import RANK, effective_rank, stream_statistics
from gpas_cli.processor import GPUS, peak_flops
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import flops_per_token
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Monitoring
from gpas_cli.train import observe
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.loop import Update, measure_layers
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.observe import Divergence, Health, Observer, Spike, _read_state, _SpeedMeter, fetch

OPTIM = {"lr": 0.01, "warmup": 1, "steps": 40, "batch": 4}


def cell(**values: object) -> Cell:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280}
    return cell_from({"size": size, "gate": "gpas", "data": "quickstart", "optim": OPTIM, **values})


def trained(**values: object) -> Llama:
    """Return a network with gradients."""
    return with_gradients(build(cell(**values).model, seed=1))


def with_gradients(network: Llama) -> Llama:
    network(torch.arange(16).reshape(2, 8)).logsumexp(-1).sum().backward()
    return network


def measured(network: Llama) -> dict[str, list[float]]:
    found = measure_layers(network, [])
    return found.series(*fetch([found.numbers]))


def joint(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in tensors))


@pytest.mark.parametrize("scheme", ["pre", "post", "sandwich", "mix", "lns", "deepnorm"])
def test_norms_are_those_of_the_layers(scheme: str) -> None:
    network = trained(norm=scheme)
    found = measure_layers(network, [{"activation_variance": torch.tensor(value)} for value in (2.0, 3.0)])
    (numbers,) = fetch([found.numbers])
    series = found.series(numbers)
    for i, layer in enumerate(network.model.layers):
        parameters = dict(layer.named_parameters())
        assert series["weight_norm"][i] == pytest.approx(joint(list(parameters.values())), rel=1e-5)
        assert series["grad_norm"][i] == pytest.approx(joint([p.grad for p in parameters.values()]), rel=1e-5)
        norms = [p for name, p in parameters.items() if "norm" in name]
        assert series["weight_norm_norms"][i] == pytest.approx(joint(norms), rel=1e-5)
        assert series["weight_norm_ffn_gate"][i] == pytest.approx(joint([layer.mlp.gate_proj.weight]), rel=1e-5)
    assert series["weight_norm_head"] == [pytest.approx(joint([network.lm_head.weight]), rel=1e-5)]
    assert series["grad_norm_embedding"] == [pytest.approx(joint([network.model.embed_tokens.weight.grad]), rel=1e-5)]
    assert series["gate"] == pytest.approx([gate.value().item() for gate in network.gates()])
    assert series["alpha"] == pytest.approx([gate.alpha.item() for gate in network.gates()])
    assert series["activation_variance"] == [2.0, 3.0]


def test_gpt_and_a_network_without_gates() -> None:
    network = trained(gate=None, family="gpt")
    series = measured(network)
    assert "gate" not in series
    assert "alpha" not in series
    assert "weight_norm_head" not in series  # tied
    assert "weight_norm_ffn_gate" not in series
    layer = network.model.layers[1]
    both = [layer.mlp.up_proj.weight, layer.mlp.up_proj.bias]
    assert series["weight_norm_ffn_up"][1] == pytest.approx(joint(both), rel=1e-5)


def test_two_gates_in_a_layer_follow_each_other() -> None:
    assert len(measured(trained(gate={"share": "sublayer", "init": 0.3}))["gate"]) == 8


def test_all_numbers_are_copied_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    observer = Observer(cell(), Monitoring(), torch.device("cpu"), events.append)
    network = trained()
    for step in range(1, 11):
        layers = measure_layers(network, []) if step == 10 else None
        observer.add(Update(step, torch.tensor(float(step)), 0.01, torch.tensor(1.0), layers))
    calls = []
    once = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: calls.append(len(self)) or once(self))
    monkeypatch.setattr(Tensor, "item", lambda self: pytest.fail("one number at a time"))
    assert observer.settle() is None
    observer.log(Position(step=10, tokens=640, seconds=1.0))
    assert len(calls) == 1
    layers, step = events
    assert (type(layers), type(step)) == (Layers, Step)
    assert (step.loss, step.mean_loss) == (10.0, 5.5)
    assert step.seconds_per_step > 0


def test_without_pending_updates_nothing_is_reported() -> None:
    observer = Observer(cell(), Monitoring(), torch.device("cpu"), lambda *a, **k: pytest.fail("an event was emitted"))
    assert observer.settle() is None


def test_flops_are_those_of_the_convention() -> None:
    """The convention is 6 (N - V d) + 6 L T d, without norms and gates."""
    what = cell(gate=None)
    with torch.device("meta"):
        network = Llama(what.model)
    matrices = sum(p.numel() for name, p in network.named_parameters() if "norm" not in name)
    size = what.model.size
    expected = 6 * (matrices - size.vocab * size.hidden) + 6 * size.layers * what.data.length * size.hidden
    assert flops_per_token(what) == expected


@cases("train/cases.yaml")
def test_a_peak_is_known_or_not(name: str, precision: str, expected: float | None) -> None:
    assert peak_flops(name, precision) == expected


def test_every_peak_is_found_by_its_own_name() -> None:
    for name, gpu in GPUS.items():
        found = [peak_flops(f"NVIDIA {name}", p, tf32=t) for p, t in (("bf16", False), ("fp32", True), ("fp32", False))]
        assert found == [1e12 * gpu.bf16, 1e12 * gpu.tf32, 1e12 * gpu.fp32]


def test_mfu_is_absent_if_the_peak_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = _SpeedMeter(cell(), torch.device("cpu"))
    measured = meter.read(Position(step=2, tokens=128))
    assert "mfu" not in measured
    assert measured["flops_per_second"] == pytest.approx(measured["tokens_per_second"] * flops_per_token(cell()))
    assert measured["memory"] > 2**20
    meter.peak = 1e12
    clock = iter([10.0])
    monkeypatch.setattr(observe.time, "perf_counter", lambda: next(clock))
    meter.since = (8.0, Position(step=2, tokens=128))
    measured = meter.read(Position(step=6, tokens=1128))
    assert measured["seconds_per_step"] == 0.5
    assert measured["mfu"] == pytest.approx(500 * flops_per_token(cell()) / 1e12)


def test_the_flops_of_updates_that_skip_layers_are_those_of_the_layers_that_trained() -> None:
    what = cell(depth={"like": "stacking", "stages": "1-3-4"})
    meter = _SpeedMeter(what, torch.device("cpu"))
    last_start = what.layer_schedule.starts[-1]
    assert meter.flops(1, 1) == flops_per_token(what, 1)
    assert meter.flops(last_start - 1, last_start) == pytest.approx(flops_per_token(what, 3.5))
    paths = cell(depth={"like": "raptr", "stages": "1-4", "fixed": "none"})
    drawn = [len(paths.layer_schedule.at(paths.seed, update).layers) for update in (1, 2, 3)]
    assert _SpeedMeter(paths, torch.device("cpu")).flops(1, 3) == flops_per_token(paths, sum(drawn) / 3)


VOCAB = 512


def healthy(updates: int = 600, seed: int = 1) -> list[tuple[float, float]]:
    """Return loss and gradient norm as in a small run: falling, noisy."""
    chooser = random.Random(seed)
    losses = (3.5 + 2.7 * math.exp(-t / 120) + chooser.gauss(0, 0.03) for t in range(updates))
    return [(loss, 0.4 * math.exp(chooser.gauss(0, 0.15))) for loss in losses]


def judge(series: list[tuple[float, float]], health: Health | None = None, first: int = 1) -> list[Spike | Divergence]:
    health = health or Health(Monitoring(), VOCAB)
    verdicts = []
    for step, (loss, norm) in enumerate(series, first):
        spikes, divergence = health.add(step, loss, norm)
        verdicts += spikes
        if divergence:
            return [*verdicts, divergence]
    return verdicts


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_run_is_left_alone(seed: int) -> None:
    assert judge(healthy(seed=seed)) == []


def test_a_spike_is_reported_once_with_the_running_median() -> None:
    series = healthy()
    series[299:303] = [(5.5, 0.4), (5.3, 4.0), (5.1, 5.0), (4.6, 0.5)]
    verdicts = judge(series)
    assert [(spike.step, spike.of, spike.value) for spike in verdicts] == [(300, "loss", 5.5), (301, "grad_norm", 4.0)]
    assert verdicts[0].usual == pytest.approx(3.8, abs=0.2)
    assert verdicts[1].usual == pytest.approx(0.4, rel=0.1)


def test_two_spikes_apart_are_two() -> None:
    series = healthy()
    series[299] = series[310] = (5.5, 0.4)
    assert [spike.step for spike in judge(series)] == [300, 311]


def test_no_spike_is_reported_in_the_first_updates() -> None:
    assert judge([(9.0, 1.0), (3.0, 1.0), (8.0, 40.0), *healthy(200)]) == []


def test_detection_can_be_turned_off() -> None:
    series = healthy()
    series[299] = (50.0, 99.0)
    assert judge(series, Health(Monitoring(spike=0.0), VOCAB)) == []


@pytest.mark.parametrize("at", [1, 200, 299, 300, 301, 302, 420])
def test_a_resumed_run_reports_the_same(at: int, tmp_path: Path) -> None:
    series = healthy()
    series[299:302] = [(5.5, 4.0)] * 3
    series[450] = (3.6, 9.0)
    whole = judge(series)
    assert len(whole) == 3
    before = Health(Monitoring(), VOCAB)
    verdicts = judge(series[:at], before)
    (tmp_path / f"step-{at:08d}.safetensors").touch()
    before.save(tmp_path, at)
    after = Health(Monitoring(), VOCAB)
    state = _read_state([tmp_path / "elsewhere", tmp_path], at)
    after.restore(state)
    assert json.dumps(after.state()) == json.dumps(before.state())
    assert verdicts + judge(series[at:], after, first=at + 1) == whole


def test_states_go_with_their_checkpoints(tmp_path: Path) -> None:
    health = Health(Monitoring(), VOCAB)
    for step in (10, 20, 30):
        (tmp_path / f"step-{step:08d}.safetensors").touch()
        health.save(tmp_path, step)
        (tmp_path / f"step-{step - 10:08d}.safetensors").unlink(missing_ok=True)
    assert sorted(path.name for path in tmp_path.glob("watch-*")) == ["watch-00000020.json", "watch-00000030.json"]
    health.save(tmp_path, 30)
    assert [path.name for path in tmp_path.glob("watch-*")] == ["watch-00000030.json"]
    assert not list(tmp_path.glob(".watch*"))


def test_a_state_of_before_mean_losses_is_read(tmp_path: Path) -> None:
    state = {name: value for name, value in Health(Monitoring(), VOCAB).state().items() if name != "unlogged"}
    (tmp_path / "watch-00000010.json").write_text(json.dumps(state))
    assert _read_state([tmp_path], 10) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"first": 1}', "null"])
def test_a_damaged_state_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "watch-00000010.json").write_text(text)
    assert _read_state([tmp_path], 10) is None


@cases("train/cases.yaml")
def test_a_nonfinite_loss_is_a_divergence(pair: tuple[float, float], cause: str) -> None:
    assert judge([*healthy(8), pair]) == [Divergence(9, cause, finite=False)]


def test_a_skipped_update_is_no_divergence_unless_its_loss_is() -> None:
    health = Health(Monitoring(), VOCAB)
    assert judge(healthy(60), health) == []
    assert health.add(61, 5.0, None) == ([], None)
    assert health.add(62, math.nan, None)[1] == Divergence(62, "the training loss of update 62 is nan", finite=False)


def test_a_loss_above_guessing_for_long_has_diverged() -> None:
    verdicts = judge([*healthy(100), *[(8.0, 1.0)] * 600])
    assert verdicts[-1].step == 100 + Monitoring().patience
    assert "8.000, was above 7.2" in verdicts[-1].cause


@pytest.mark.parametrize(
    "losses",
    [
        [math.log(VOCAB) + 0.4] * 3000,  # no learning: a Post-LN plateau at the initial loss
        [30.0] * 3000,  # starts far above the loss of guessing and stays there
        [*[9.0] * 499, 6.0, *[9.0] * 499],  # recovers, if only for a moment
        [6.0, 6.5] * 1500,
    ],
)
def test_a_plateau_has_not(losses: list[float]) -> None:
    verdicts = judge([(losses[0], 1.0), *[(loss, 1.0) for loss in losses]])
    assert not [verdict for verdict in verdicts if isinstance(verdict, Divergence)]


def test_the_count_continues_after_a_resume() -> None:
    before = Health(Monitoring(patience=50), VOCAB)
    assert judge([(6.0, 1.0), *[(9.0, 1.0)] * 30], before) == []
    after = Health(Monitoring(patience=50), VOCAB)
    after.restore(before.state())
    verdicts = judge([(9.0, 1.0)] * 40, after, first=32)
    assert [verdict.step for verdict in verdicts] == [51]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_observation_changes_no_bit_of_a_training_and_measures_the_first_micro_batch(precision: str) -> None:
    found = []
    for observed in (True, False):
        loop = synthetic_loop(cell(precision=precision), padded=True)
        loop.micro_batch = 1
        updates = [loop.update(observe=observed) for _ in range(2)]
        found.append((torch.stack([update.loss for update in updates]), *loop.network.state_dict().values()))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    loop = synthetic_loop(cell(precision=precision), padded=True)
    loop.micro_batch = 1
    rows = DeviceRows.of_batch(loop.batches.at(0), slice(0, 1), loop.precision.device)
    with stream_statistics(loop.network) as seen, loop.precision.compute():
        loop.network.model(rows.inputs, rows.packing)
    layers = loop.update(observe=True).layers
    series = layers.series(layers.numbers.tolist())
    for name, value in seen[1].items():
        number = effective_rank(value) if name == RANK else value.item()
        assert series[name][1] == pytest.approx(number, rel=1e-5), name
    lengths = {name: len(series[name]) for name in seen[1]}
    assert lengths == {
        "activation_variance": 5, "kurtosis": 5, "max_to_rms": 5, "max_to_median": 5, "effective_rank": 5,
        "first_token_share": 4, "block_cosine": 4, "block_update": 4,
    }  # fmt: skip
