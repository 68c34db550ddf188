"""Layer importance: by hand on small networks, for every scheme, continued at every layer, on two processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from importance_ranks import TEXTS, cell_of, save_network
from recorder import Recorder
from torch import Tensor, nn

from gpas_cli.data.loader import Batch, validation_batches
from gpas_cli.evaluate import importance, removal
from gpas_cli.evaluate.importance import measure
from gpas_cli.evaluate.removal import series_name
from gpas_cli.events import Outcome, Removal
from gpas_cli.model.llama import Block, Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES, Norm, Scheme, Wiring
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.train.precision import make_deterministic
from gpas_cli.train.run import prepare_text

LAYERS = 4


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts of different lengths and their tokens."""
    root = tmp_path_factory.mktemp("importance")
    for name, text in TEXTS.items():
        (root / name).write_text(text)
    make_deterministic(1)
    return root


def never() -> None:
    return None


def go(
    room: Path, cell: Cell, path: Path, earlier: Iterable[Removal] = (), stop: Callable[[], str | None] = never
) -> tuple[Outcome, Recorder]:
    recorder = Recorder()
    outcome = measure(
        cell,
        path,
        prepare_text(cell, room / "cache", room, notify=lambda _: None),
        room,
        recorder,
        stop,
        earlier=earlier,
    )
    return outcome, recorder


def batches(room: Path, cell: Cell) -> list[Batch]:
    corpus = prepare_text(cell, room / "cache", room, notify=lambda _: None)
    return list(validation_batches(corpus.validation, cell.optim.batch, cell.parameters("importance").eval_tokens))


def series(recorder: Recorder) -> dict[str, list[float]]:
    (event,) = recorder.of("layers")
    return event["values"]


def silence(block: Block) -> None:
    """Make both sub-layers' modules return zero."""
    for linear in (block.self_attn.o_proj, block.mlp.down_proj):
        nn.init.zeros_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def blocks(network: Llama) -> list[Block]:
    return network.model.blocks()


def pre(block: Block, x: Tensor, positions: Any) -> Tensor:
    x = x + block.self_attn(block.input_layernorm(x), positions)
    return x + block.mlp(block.post_attention_layernorm(x))


def post(block: Block, x: Tensor, positions: Any) -> Tensor:
    x = block.attn_out_norm(x + block.self_attn(x, positions))
    return block.mlp_out_norm(x + block.mlp(x))


def streams(
    network: Llama, row: Tensor, formula: Callable[[Block, Tensor, Any], Tensor], removed: int = 0
) -> list[Tensor]:
    """Return the stream entering each layer that is there, and the final norm, for one row (time,)."""
    model = network.model
    x = model.embed_stages(model.embed_tokens(row[None]))
    found = [x]
    for layer, block in enumerate(blocks(network), start=1):
        if layer != removed:
            found.append(formula(block, found[-1], model.positions(x)))
    return found


@torch.no_grad()
def loss_by_hand(
    network: Llama, text: list[Batch], formula: Callable[[Block, Tensor, Any], Tensor], removed: int = 0
) -> float:
    total = 0.0
    count = 0
    for batch in text:
        for inputs, targets in zip(torch.tensor(batch.inputs), torch.tensor(batch.targets), strict=True):
            final = network.model.norm(streams(network, inputs, formula, removed)[-1])[0]
            counted = targets >= 0
            logits = F.linear(final, network.lm_head.weight)[counted]
            total += F.cross_entropy(logits.double(), targets[counted], reduction="sum").item()
            count += int(counted.sum())
    return total / count


@pytest.mark.parametrize("layout", ["pack", "pad"])
@torch.no_grad()
def test_norms_and_changes_of_the_output_are_those_computed_by_hand(room: Path, tmp_path: Path, layout: str) -> None:
    cell = cell_of(norm="pre", gate=None, layout=layout)
    path, network = save_network(cell, tmp_path)
    _, recorder = go(room, cell, path)
    norms: list[list[Tensor]] = [[] for _ in range(LAYERS + 1)]
    changes: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    for batch in batches(room, cell):
        for inputs, targets in zip(torch.tensor(batch.inputs), torch.tensor(batch.targets), strict=True):
            counted = targets >= 0
            whole = streams(network, inputs, pre)
            for place, stream in enumerate(whole):
                norms[place].append(stream[0][counted].norm(dim=-1))
            for layer in range(1, LAYERS + 1):
                without = streams(network, inputs, pre, layer)[-1]
                changes[layer - 1].append((without - whole[-1])[0][counted].norm(dim=-1))
    found = series(recorder)
    assert found["stream_norm"] == pytest.approx([float(torch.cat(own).mean()) for own in norms], rel=1e-5)
    assert found["stability"] == pytest.approx([float(torch.cat(own).mean()) for own in changes], rel=1e-5)


@pytest.mark.parametrize("layout", ["pack", "pad"])
@pytest.mark.parametrize(("scheme", "formula"), [("pre", pre), ("post", post)])
def test_each_rise_is_the_one_computed_by_hand(
    room: Path, tmp_path: Path, scheme: str, formula: Callable[[Block, Tensor, Any], Tensor], layout: str
) -> None:
    cell = cell_of(norm=scheme, gate=None, layout=layout)
    path, network = save_network(cell, tmp_path)
    outcome, recorder = go(room, cell, path)
    text = batches(room, cell)
    whole = loss_by_hand(network, text, formula)
    expected = [loss_by_hand(network, text, formula, layer) - whole for layer in range(1, LAYERS + 1)]
    found = series(recorder)["importance"]
    assert found == pytest.approx(expected, abs=2e-6)
    assert [one["layer"] for one in recorder.of("removal")] == list(range(LAYERS + 1))
    assert outcome.metrics["loss"] == pytest.approx(whole, abs=2e-6)
    assert outcome.metrics["mean_importance"] == pytest.approx(sum(expected) / LAYERS, abs=2e-6)
    assert outcome.metrics["least_importance"] == min(found)
    # The update at which the network was saved is the x of its series.
    assert recorder.of("layers")[0]["step"] == 7


@pytest.mark.parametrize("layout", ["pack", "pad"])
@pytest.mark.parametrize(("scheme", "formula"), [("pre", pre), ("post", post)])
def test_angular_distances_are_those_of_last_tokens(
    room: Path, tmp_path: Path, scheme: str, formula: Callable[[Block, Tensor, Any], Tensor], layout: str
) -> None:
    cell = cell_of(norm=scheme, gate=None, layout=layout)
    path, network = save_network(cell, tmp_path)
    outcome, recorder = go(room, cell, path)
    ends = []
    for batch in batches(room, cell):
        for inputs, targets in zip(torch.tensor(batch.inputs), torch.tensor(batch.targets), strict=True):
            last = int((targets >= 0).nonzero().max())
            with torch.no_grad():
                ends.append(torch.stack([x[0, last] for x in streams(network, inputs, formula)]).double())
    stream = torch.stack(ends)
    lengths = {int((row >= 0).sum()) for batch in batches(room, cell) for row in batch.targets}
    assert len(lengths) > 4 if layout == "pad" else lengths == {16}
    found = series(recorder)
    for n in range(1, LAYERS + 1):
        cosine = F.cosine_similarity(stream[:, :-n], stream[:, n:], dim=-1)
        expected = (cosine.arccos() / math.pi).mean(0).tolist()
        assert found[series_name(n)] == pytest.approx(expected, abs=1e-5)
    assert f"angular_distance/{LAYERS + 1}" not in found
    assert outcome.metrics["mean_angular_distance"] == pytest.approx(sum(found["angular_distance"]) / LAYERS)


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_a_masked_network_is_measured_by_the_loss_of_masked_tokens(room: Path, tmp_path: Path, layout: str) -> None:
    cell = cell_of(gate=None, layout=layout, family="bert", objective="mlm")
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]))
    outcome, recorder = go(room, cell, path)
    assert outcome.outcome == "done"
    found = series(recorder)
    assert found["importance"][1] == 0
    assert found["angular_distance"][1] == 0
    assert all(found["importance"][i] != 0 and found["angular_distance"][i] > 0 for i in (0, 2, 3))
    assert outcome.metrics["masked_loss"] == recorder.of("removal")[0]["loss"]
    assert "loss" not in outcome.metrics


@pytest.mark.parametrize("gate", [None, "gpas"])
@pytest.mark.parametrize("scheme", ["pre", "lns", "sandwich", "peri", "mix"])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_a_layer_without_effect_has_no_importance(
    room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str
) -> None:
    """A gate that starts at zero scales by one."""
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]), gates=0.0)
    _, recorder = go(room, cell, path)
    found = series(recorder)
    assert found["importance"][1] == 0
    assert found["angular_distance"][1] == 0
    assert all(found["importance"][i] != 0 and found["angular_distance"][i] > 0 for i in (0, 2, 3))
    assert found["angular_distance/2"][0] == pytest.approx(found["angular_distance"][0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("gate", [None, "gpas"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_is_measured(room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str) -> None:
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path)
    _, recorder = go(room, cell, path)
    found = series(recorder)
    assert {name: len(values) for name, values in found.items()} == {
        "importance": LAYERS, **{series_name(n): LAYERS + 1 - n for n in range(1, LAYERS + 1)},
        "stream_norm": LAYERS + 1, "stability": LAYERS,
    }  # fmt: skip
    assert all(math.isfinite(rise) and rise != 0 for rise in found["importance"])
    assert all(0 < value < 1 for name in found if name.startswith("angular") for value in found[name])
    assert all(value > 0 for name in ("stream_norm", "stability") for value in found[name])


@dataclass(frozen=True, kw_only=True)
class Faded(Scheme):
    """x / 2 + f(N(x)), as a plugin may declare it."""

    title = "Faded"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=0.5)


def test_a_plugin_scheme_loses_its_skip_factor_with_the_layer(room: Path, tmp_path: Path) -> None:
    """A silent layer halves the stream, which the angular distance does not see and the layers after it do."""
    catalogue = Catalogue(schemes={**SCHEMES, "faded": Faded})
    cell = cell_of(norm="faded", gate=None, catalogue=catalogue)
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[0]))
    _, recorder = go(room, cell, path)
    found = series(recorder)
    assert found["angular_distance"][0] == pytest.approx(0, abs=1e-7)
    assert found["importance"][0] != 0


@pytest.mark.parametrize("stop_at", range(LAYERS + 1))
def test_a_later_attempt_continues_at_any_layer_with_the_same_bits(room: Path, tmp_path: Path, stop_at: int) -> None:
    cell = cell_of(norm="mix", gate="gpas", layout="pad")
    path, _ = save_network(cell, tmp_path)
    straight, expected = go(room, cell, path)
    asked = itertools.count()
    stopped, first = go(room, cell, path, stop=lambda: "interrupted" if next(asked) >= stop_at else None)
    assert (stopped.outcome, stopped.step) == ("interrupted", max(0, stop_at - 1))
    assert not first.of("layers")
    done, second = go(room, cell, path, earlier=[Removal(**event) for event in first.of("removal")])
    assert [event["layer"] for event in second.of("removal")] == list(range(stop_at, LAYERS + 1))
    assert second.of("layers") == expected.of("layers")
    assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}


def test_only_measurements_of_this_network_on_this_text_are_taken_over(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="pre", gate=None)
    path, _ = save_network(cell, tmp_path)
    _, whole = go(room, cell, path)
    (true, *_) = [Removal(**event) for event in whole.of("removal")]
    for foreign in (replace(true, checkpoint="another"), replace(true, text="another")):
        _, recorder = go(room, cell, path, earlier=[replace(foreign, loss=99.0)])
        assert series(recorder) == series(whole)
    _, recorder = go(room, cell, path, earlier=[replace(true, loss=99.0)])
    assert series(recorder)["importance"] != series(whole)["importance"]


def test_network_and_text_are_read_once(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for module, name in ((importance, "load_trained"), (removal, "validation_batches")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *words, real=real, name=name, **more: calls.append(name) or real(*words, **more)
        )
    cell = cell_of(norm="pre", gate="gpas")
    path, _ = save_network(cell, tmp_path)
    go(room, cell, path)
    assert sorted(calls) == ["load_trained", "validation_batches"]


@pytest.mark.parametrize("layout", [pytest.param("pack", marks=pytest.mark.long), "pad"])
def test_two_processes_measure_the_same(room: Path, tmp_path: Path, layout: str) -> None:
    cell = cell_of(norm="post", gate="gpas", layout=layout)
    path, _ = save_network(cell, tmp_path)
    outcome, recorder = go(room, cell, path)
    script = Path(__file__).with_name("importance_ranks.py")
    modules = f"{script.parents[2]}{os.pathsep}{script.parents[1]}"  # the package, and `recorder`
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), str(rank), str(room), str(path), layout, str(tmp_path / "two.json")],
            env={"PYTHONPATH": modules, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    two = json.loads((tmp_path / "two.json").read_text())
    for name, values in series(recorder).items():
        assert two["values"][name] == pytest.approx(values, abs=1e-6), name
    assert two["loss"] == pytest.approx(outcome.metrics["loss"], abs=1e-6)
