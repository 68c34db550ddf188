"""Finetuning in this process and in two: events, bit-exact resumption, which layers train, and what is refused."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import finetuning
import pytest
import torch
from cases import cases, tables
from finetuning import RECORDS, UPDATES, cell, pretrain, run, write_texts
from safetensors.torch import load_file
from together import start
from torch import Tensor

from gpas_cli.checkpoints import newest_first, path_of
from gpas_cli.data.loader import Batch
from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Evaluation, Event, Outcome, Phase, Step, TextFacts
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.assemble import load_trained
from gpas_cli.train.depth import LayerSelection, _drawn_layers, freeze_gates
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import Loop
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.parallel import World
from gpas_cli.train.precision import Precision


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, records and a pretrained network."""
    root = tmp_path_factory.mktemp("finetune")
    write_texts(root)
    make_deterministic(1)
    pretrain(root, cell())
    return root


@pytest.fixture(scope="module")
def straight(room: Path) -> tuple[Outcome, list[Event]]:
    """Return the outcome and the events of one whole finetuning, in the folder `straight` of the room."""
    return run(room, "straight", cell(), pretrained(room))


def pretrained(room: Path) -> Path:
    return newest_first([room / "pretrained"])[0]


def of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def tensors(folder: Path, step: int = UPDATES) -> dict[str, Tensor]:
    """Return everything in a checkpoint of one process: weights, moments and step counts."""
    (shard,) = path_of(folder, step).glob("*.safetensors")
    return load_file(shard)


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finetuning_reports_its_events_and_metrics(straight: tuple[Outcome, list[Event]]) -> None:
    outcome, events = straight
    assert (outcome.outcome, outcome.step) == ("done", UPDATES)
    assert outcome.metrics.keys() == {
        "finetuned_perplexity", "finetuned_loss", "answer_loss", "finetune_seconds", "finetune_tokens",
    }  # fmt: skip
    steps = of(events, Step)
    assert [event.step for event in steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.lr for event in steps[:2]] == pytest.approx([0.01, 0.01 * 7 / 8])
    assert {event.steps for event in steps} == {UPDATES}
    assert [event.step for event in of(events, Checkpoint)] == [4, 8]
    evaluations = of(events, Evaluation)
    assert [event.step for event in evaluations] == [3, 6, 8]
    assert outcome.metrics["finetuned_perplexity"] == pytest.approx(math.exp(evaluations[-1].loss))
    assert outcome.metrics["answer_loss"] == evaluations[-1].answer_loss
    (facts,) = of(events, TextFacts)
    assert (facts.source, facts.train_documents, facts.epochs) == ("records.json", RECORDS, 2)
    (phase,) = [event for event in of(events, Phase) if event.name == "training"]
    assert (phase.resumed_from, phase.strategy) == (0, "none")


def test_the_loss_on_answers_falls(room: Path) -> None:
    cadence = Cadence(log_every=100, eval_every=4, checkpoint_every=100)
    _, events = run(room, "longer", cell({"epochs": 8, "lisa_layers": 4}), pretrained(room), cadence=cadence)
    losses = [event.answer_loss for event in of(events, Evaluation)]
    assert losses[-1] < losses[0] - 0.05


def test_only_tokens_of_answers_are_counted(room: Path) -> None:
    counts = {}
    for loss_on in ("output", "all"):
        outcome, _ = run(room, f"on-{loss_on}", cell({"loss_on": loss_on}), pretrained(room), updates=1)
        counts[loss_on] = outcome.metrics["finetune_tokens"]
    assert 0 < counts["output"] < counts["all"]


@pytest.mark.usefixtures("straight")
def test_the_network_starts_from_the_pretrained_one_with_frozen_gates(room: Path) -> None:
    before, after = tensors(room / "pretrained", finetuning.PRETRAINED_UPDATES), tensors(room / "straight")
    gates = [name for name in before if name.startswith("network/") and name.endswith("alpha")]
    assert len(gates) == finetuning.LAYERS
    assert all(torch.equal(before[name], after[name]) and before[name] != 0 for name in gates)
    assert not [name for name in after if name.startswith("adam/") and name.endswith("alpha")]
    assert not torch.equal(before["network/lm_head.weight"], after["network/lm_head.weight"])


@pytest.mark.parametrize(("stop_at", "state"), [(1, "keep"), (5, "keep"), (5, "reset")])
def test_a_resumed_finetuning_ends_in_the_same_bits(
    room: Path, straight: tuple[Outcome, list[Event]], tmp_path: Path, stop_at: int, state: str
) -> None:
    """Both are in the middle of an interval, and after 5 updates there are frozen layers with state."""
    declared = cell({"lisa_state": state})
    whole = "straight" if state == "keep" else f"straight-{state}"
    outcome, events = straight if state == "keep" else run(room, whole, declared, pretrained(room))
    names = [f"{tmp_path.name}-{number}" for number in range(2)]
    left, first = run(room, names[0], declared, pretrained(room), updates=stop_at)
    assert (left.outcome, left.step) == ("interrupted", stop_at)
    resumed, second = run(room, names[1], declared, pretrained(room), earlier=[names[0]])
    assert [event.resumed_from for event in of(second, Phase) if event.name == "training"] == [stop_at]
    assert resumed.metrics["answer_loss"] == outcome.metrics["answer_loss"]
    assert_same(tensors(room / names[1]), tensors(room / whole))
    losses = [event.loss for event in (*of(first, Step), *of(second, Step))]
    assert losses == [event.loss for event in of(events, Step)]


@pytest.mark.usefixtures("straight")
def test_checkpoints_hold_the_state_of_layers_that_are_frozen(room: Path) -> None:
    names = tensors(room / "straight").keys()
    with_state = {int(name.split(".")[2]) for name in names if name.startswith("adam/exp_avg/model.layers.")}
    selection = LayerSelection.of(cell().parameters("finetune"), finetuning.LAYERS)
    assert with_state == {layer for step in range(UPDATES) for layer in selection.at(step)} > selection.at(UPDATES - 1)


def test_a_trained_network_of_another_precision_is_converted(room: Path, tmp_path: Path) -> None:
    declared = cell({"precision": "pure_bf16", "epochs": 1})
    outcome, _ = run(room, tmp_path.name, declared, pretrained(room))
    assert outcome.outcome == "done"
    found = load_trained(declared, newest_first([room / tmp_path.name])[0])
    assert (found.precision.name, found.position.step, found.position.steps) == ("pure_bf16", 4, 4)
    assert found.network.lm_head.weight.dtype == torch.bfloat16


@pytest.mark.usefixtures("straight")
def test_the_cell_opens_the_network_of_its_last_training(room: Path) -> None:
    found = load_trained(cell(), newest_first([room / "straight"])[0])
    assert torch.equal(found.network.lm_head.weight.cpu(), tensors(room / "straight")["network/lm_head.weight"])
    with pytest.raises(checkpoint.DamagedCheckpoint, match="belongs to stage"):
        load_trained(cell(), pretrained(room))


def test_changed_records_are_not_resumed(room: Path, tmp_path: Path) -> None:
    root = tmp_path / "room"
    shutil.copytree(room, root)
    run(root, "first", cell(), pretrained(room), updates=3)
    several = json.loads((root / "records.json").read_text())
    (root / "records.json").write_text(json.dumps(several[1:]))
    with pytest.raises(GpasError, match="step-00000003 was trained on another text"):
        run(root, "second", cell(), pretrained(room), earlier=["first"])


@cases("train/cases.yaml", section={}, how={}, processes=1, strategy="auto")
def test_what_cannot_be_finetuned_is_refused_before_anything_starts(
    room: Path, section: dict[str, Any], how: dict[str, Any], processes: int, strategy: str, message: str
) -> None:
    world, resources = (World(0, processes, 0), Resources(strategy=strategy))  # not connected
    with pytest.raises(GpasError, match=message):
        run(room, "unused", cell(section), pretrained(room), world=world, resources=resources, **how)


# Two processes

CASES = tables("train/cases.yaml")["two_processes_compute_what_one_does"]


@pytest.fixture(scope="module")
def together(room: Path) -> Path:
    """Run every case with one process and with two, and one that two processes continue after five updates."""
    for name, (section, _) in CASES.items():
        run(room, f"one-{name}", cell(section), pretrained(room))
    run(room, "half", cell(), pretrained(room), updates=5)
    cases = [[f"two-{name}", section, resources, [], 10**6] for name, (section, resources) in CASES.items()]
    start(room, 2, [*cases, ["continued", {}, CASES["ddp"][1], ["half"], 10**6]], script=finetuning.__file__)
    return room


def final_weights(room: Path, name: str, section: dict[str, Any]) -> dict[str, Tensor]:
    """Return the network of a finished run, which may have been written by two processes."""
    declared = cell(section)
    network = build(declared.model)
    assert checkpoint.load(newest_first([room / name])[0], declared.trained.key, network, None).step == UPDATES
    return network.state_dict()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_two_processes_compute_what_one_does(together: Path, name: str) -> None:
    section = CASES[name][0]
    ours, theirs = (final_weights(together, f"{who}-{name}", section) for who in ("two", "one"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    found = json.loads((together / f"two-{name}.json").read_text())
    phases = [fields for kind, fields in found["events"] if kind == "phase" and fields["name"] == "training"]
    assert [(phase["processes"], phase["strategy"]) for phase in phases] == [(2, "fsdp" if name == "fsdp" else "ddp")]


@pytest.mark.long
def test_two_processes_continue_what_one_began(together: Path) -> None:
    ours, theirs = (final_weights(together, name, {}) for name in ("continued", "one-ddp"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


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
