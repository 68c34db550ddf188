"""Layer importance: by hand on small networks, for every scheme, continued at every layer, on two processes."""

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from importance_ranks import cell_of, measured, save_network, write_texts
from recorder import Recorder, stop_after
from torch import Tensor, nn

from gpas_cli.data.loader import validation_batches
from gpas_cli.evaluate import removal
from gpas_cli.evaluate.removal import _series_name
from gpas_cli.events import Removal
from gpas_cli.model.llama import Block, Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES, Norm, Scheme, Wiring
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.train.training import prepare_text

LAYERS = 4


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("importance"))


def rows(room: Path, cell: Cell) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and the targets of each row that is measured."""
    corpus = prepare_text(cell, room / "cache", room, notify=lambda _: None)
    for batch in validation_batches(corpus.validation, cell.optim.batch, cell.parameters("importance").eval_tokens):
        yield from zip(torch.tensor(batch.inputs), torch.tensor(batch.targets), strict=True)


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


@pytest.mark.parametrize("layout", ["pack", "pad"])
@pytest.mark.parametrize(("scheme", "formula"), [("pre", pre), ("post", post)])
@torch.no_grad()
def test_measurements_are_those_computed_by_hand(
    room: Path, tmp_path: Path, scheme: str, formula: Callable[[Block, Tensor, Any], Tensor], layout: str
) -> None:
    cell = cell_of(norm=scheme, gate=None, layout=layout, importance={"eval_tokens": 250})
    path, network = save_network(cell, tmp_path)
    outcome, recorder = measured(room, cell, path)
    losses = torch.zeros(LAYERS + 1, dtype=torch.float64)
    norms: list[list[Tensor]] = [[] for _ in range(LAYERS + 1)]
    changes: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    ends, lengths = [], []
    for inputs, targets in rows(room, cell):
        counted = targets >= 0
        lengths.append(int(counted.sum()))
        found = [streams(network, inputs, formula, removed) for removed in range(LAYERS + 1)]
        for removed, stream in enumerate(found):
            logits = F.linear(network.model.norm(stream[-1])[0], network.lm_head.weight)[counted]
            losses[removed] += F.cross_entropy(logits.double(), targets[counted], reduction="sum")
        for place, x in enumerate(found[0]):
            norms[place].append(x[0][counted].norm(dim=-1))
        for layer, stream in enumerate(found[1:]):
            changes[layer].append((stream[-1] - found[0][-1])[0][counted].norm(dim=-1))
        last = int(counted.nonzero().max())
        ends.append(torch.stack([x[0, last] for x in found[0]]).double())
    assert len(set(lengths)) > 4 if layout == "pad" else set(lengths) == {16}

    values = series(recorder)
    losses /= sum(lengths)
    rises = (losses[1:] - losses[0]).tolist()
    assert values["importance"] == pytest.approx(rises, abs=2e-6)
    assert values["stream_norm"] == pytest.approx([float(torch.cat(own).mean()) for own in norms], rel=1e-5)
    assert values["stability"] == pytest.approx([float(torch.cat(own).mean()) for own in changes], rel=1e-5)
    stream = torch.stack(ends)
    for n in range(1, LAYERS + 1):
        cosine = F.cosine_similarity(stream[:, :-n], stream[:, n:], dim=-1)
        assert values[_series_name(n)] == pytest.approx((cosine.arccos() / math.pi).mean(0).tolist(), abs=1e-5)
    assert f"angular_distance/{LAYERS + 1}" not in values

    assert [one["layer"] for one in recorder.of("removal")] == list(range(LAYERS + 1))
    assert outcome.metrics["loss"] == pytest.approx(losses[0].item(), abs=2e-6)
    assert outcome.metrics["mean_importance"] == pytest.approx(sum(rises) / LAYERS, abs=2e-6)
    assert outcome.metrics["least_importance"] == min(values["importance"])
    assert outcome.metrics["mean_angular_distance"] == pytest.approx(sum(values["angular_distance"]) / LAYERS)
    # The update at which the network was saved is the x of its series.
    assert recorder.of("layers")[0]["step"] == 7


def second_has_no_effect(found: dict[str, list[float]]) -> None:
    assert found["importance"][1] == 0
    assert found["angular_distance"][1] == 0
    assert all(found["importance"][i] != 0 and found["angular_distance"][i] > 0 for i in (0, 2, 3))


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_a_masked_network_is_measured_by_the_loss_of_masked_tokens(room: Path, tmp_path: Path, layout: str) -> None:
    cell = cell_of(gate=None, layout=layout, family="bert", objective="mlm")
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]))
    outcome, recorder = measured(room, cell, path)
    assert outcome.outcome == "done"
    second_has_no_effect(series(recorder))
    assert outcome.metrics["masked_loss"] == recorder.of("removal")[0]["loss"]
    assert "loss" not in outcome.metrics


@pytest.mark.parametrize(
    ("scheme", "gate", "family"),
    [
        ("pre", None, "gpt"),
        ("lns", "gpas", "llama"),
        ("sandwich", "gpas", "gpt"),
        ("peri", None, "llama"),
        ("mix", "gpas", "llama"),
    ],
)
def test_a_layer_without_effect_has_no_importance(
    room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str
) -> None:
    """A gate that starts at zero scales by one."""
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path, lambda network: silence(blocks(network)[1]), gates=0.0)
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    second_has_no_effect(found)
    assert found["angular_distance/2"][0] == pytest.approx(found["angular_distance"][0])


# Layers that read the values of layer 1 are not removed, and no layer of an encoder and a decoder is.
MEASURED = sorted(FAMILIES.keys() - {"encoder-decoder"})


@pytest.mark.parametrize(
    ("scheme", "gate", "family"),
    [
        *(("pre", None, family) for family in MEASURED),
        *zip(sorted(SCHEMES.keys() - {"value-residual"}), itertools.repeat("gpas"), itertools.cycle(MEASURED)),
    ],
)
def test_every_architecture_is_measured(room: Path, tmp_path: Path, scheme: str, gate: str | None, family: str) -> None:
    cell = cell_of(norm=scheme, gate=gate, family=family)
    path, _ = save_network(cell, tmp_path)
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    assert {name: len(values) for name, values in found.items()} == {
        "importance": LAYERS, **{_series_name(n): LAYERS + 1 - n for n in range(1, LAYERS + 1)},
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
    _, recorder = measured(room, cell, path)
    found = series(recorder)
    assert found["angular_distance"][0] == pytest.approx(0, abs=1e-7)
    assert found["importance"][0] != 0


def test_a_later_attempt_continues_at_any_layer_with_the_same_bits(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="mix", gate="gpas", layout="pad")
    path, _ = save_network(cell, tmp_path)
    straight, expected = measured(room, cell, path)
    for stop_at in (0, 1, LAYERS):
        stopped, first = measured(room, cell, path, stop=stop_after(stop_at))
        assert (stopped.outcome, stopped.step) == ("interrupted", max(0, stop_at - 1))
        assert not first.of("layers")
        done, second = measured(room, cell, path, earlier=[Removal(**event) for event in first.of("removal")])
        assert [event["layer"] for event in second.of("removal")] == list(range(stop_at, LAYERS + 1))
        assert second.of("layers") == expected.of("layers")
        assert {**done.metrics, "seconds": 0} == {**straight.metrics, "seconds": 0}


def test_only_measurements_of_this_network_on_this_text_are_taken_over(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="pre", gate=None)
    path, _ = save_network(cell, tmp_path)
    _, whole = measured(room, cell, path)
    (true, *_) = [Removal(**event) for event in whole.of("removal")]
    for foreign in (replace(true, checkpoint="another"), replace(true, text="another")):
        _, recorder = measured(room, cell, path, earlier=[replace(foreign, loss=99.0)])
        assert series(recorder) == series(whole)
    _, recorder = measured(room, cell, path, earlier=[replace(true, loss=99.0)])
    assert series(recorder)["importance"] != series(whole)["importance"]


def test_the_text_is_read_once(room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(removal, "validation_batches", lambda *words: calls.append(1) or validation_batches(*words))
    cell = cell_of(norm="pre", gate="gpas")
    path, _ = save_network(cell, tmp_path)
    measured(room, cell, path)
    assert calls == [1]


@pytest.mark.long
def test_two_processes_measure_the_same(room: Path, tmp_path: Path) -> None:
    cell = cell_of(norm="post", gate="gpas", layout="pad")  # each process has other numbers of tokens
    path, _ = save_network(cell, tmp_path)
    outcome, recorder = measured(room, cell, path)
    script = Path(__file__).with_name("importance_ranks.py")
    modules = f"{script.parents[2]}{os.pathsep}{script.parents[1]}"  # the package, and `recorder`
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", str(script), str(rank), str(room), str(path), str(tmp_path / "two.json")],
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
