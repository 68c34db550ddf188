"""Spikes and divergence as functions of the series: what is reported, and equality after a resume."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from gpas_cli.spec.run import Monitoring
from gpas_cli.train.observe import Divergence, Health, Spike, _read_state

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
    assert state is not None
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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"first": 1}', "null"])
def test_a_damaged_state_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "watch-00000010.json").write_text(text)
    assert _read_state([tmp_path], 10) is None


@pytest.mark.parametrize(
    ("pair", "cause"),
    [
        ((math.nan, 1.0), "the training loss of update 9 is nan"),
        ((math.inf, 1.0), "the training loss of update 9 is inf"),
        ((5.0, math.inf), "the gradient norm of update 9 is inf"),
        ((5.0, math.nan), "the gradient norm of update 9 is nan"),
    ],
)
def test_a_nonfinite_loss_is_a_divergence(pair: tuple[float, float], cause: str) -> None:
    assert judge([*healthy(8), pair]) == [Divergence(9, cause, finite=False)]


def test_a_loss_above_guessing_for_long_has_diverged() -> None:
    verdicts = judge([*healthy(100), *[(8.0, 1.0)] * 600])
    assert isinstance(verdicts[-1], Divergence)
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
