"""Checkpoints: exact round trip, checksum, rotation, a full disk; trainings of paths and of growing networks."""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import tables
from disks import full
from safetensors.torch import save as safetensors_bytes
from saving import save
from test_train_run import cell
from together import run, start, text
from torch import Tensor

from gpas_cli.checkpoints import newest_first
from gpas_cli.errors import advise
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.depth import Depth, LayerSchedule
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.spec.run import Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.depth import DepthTraining
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import Loop
from gpas_cli.train.optim import make_adam, set_learning_rate
from gpas_cli.train.parallel import ALONE

TINY = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 19}
KEY = "0123456789abcdef"
TOKENS = torch.arange(14).reshape(2, 7)


def pair(seed: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Llama, torch.optim.Optimizer]:
    network = build(parse_model({"size": TINY, "gate": "gpas"}), seed=seed, dtype=dtype)
    return network, make_adam(network, Optim(lr=0.1, warmup=0, steps=9))


def advance(network: Llama, optimizer: torch.optim.Optimizer) -> None:
    network.zero_grad()
    network(TOKENS).float().square().mean().backward()
    set_learning_rate(optimizer, 0.01)
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_resumes_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    one, adam = pair(dtype=dtype)
    advance(one, adam)
    path = save(tmp_path, KEY, one, adam, Position(step=1, tokens=12, seconds=0.5))
    other, other_adam = pair(seed=2, dtype=dtype)
    assert checkpoint.load(path, KEY, other, other_adam) == Position(step=1, tokens=12, seconds=0.5)
    for _ in range(2):
        advance(one, adam)
        advance(other, other_adam)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_what_is_written_in_the_background_is_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates go on meanwhile, and a checkpoint that is not finished is none."""
    network, adam = pair()
    advance(network, adam)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    going, usual = threading.Event(), checkpoint._write
    monkeypatch.setattr(checkpoint, "_write", lambda *args: (going.wait(60), usual(*args))[1])
    writing = checkpoint.begin(tmp_path, KEY, network, adam, Position(step=1), background=True)
    advance(network, adam)
    assert (writing.done, newest_first([tmp_path])) == (False, [])
    going.set()
    assert writing.finish() > 0
    other, other_adam = pair(seed=2)
    checkpoint.load(writing.path, KEY, other, other_adam)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    advance(other, other_adam)
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    network, adam = pair()
    for step in (1, 2, 3, 10):
        save(tmp_path, KEY, network, adam, Position(step=step))
    assert [p.name for p in newest_first([tmp_path])] == ["step-00000010", "step-00000003"]


@pytest.mark.parametrize("where", [0.5, 0.999])
def test_an_altered_or_torn_file_is_refused(tmp_path: Path, where: float) -> None:
    network, adam = pair()
    path = save(tmp_path, KEY, network, adam, Position(step=1))
    before = [tensor.clone() for tensor in network.state_dict().values()]
    for file in path.iterdir():
        data = file.read_bytes()
        altered = bytearray(data)
        altered[int(len(data) * where)] ^= 1
        for content in (bytes(altered), data[: len(data) // 2], b""):
            file.write_bytes(content)
            with pytest.raises(DamagedCheckpoint, match=r"checksum|cannot be read"):
                checkpoint.load(path, KEY, network, adam)
        file.unlink()
        with pytest.raises(DamagedCheckpoint, match="cannot be read"):
            checkpoint.load(path, KEY, network, adam)
        file.write_bytes(data)
    assert all(torch.equal(a, b) for a, b in zip(before, network.state_dict().values(), strict=True))
    assert checkpoint.load(path, KEY, network, adam) == Position(step=1)


def test_a_checkpoint_of_an_older_version_is_named_and_never_deleted(tmp_path: Path) -> None:
    network, adam = pair()
    old = tmp_path / "step-00000099.safetensors"
    old.write_bytes(b"0")
    for step in (1, 2, 3):
        save(tmp_path, KEY, network, adam, Position(step=step))
    assert newest_first([tmp_path])[0] == old
    with pytest.raises(DamagedCheckpoint, match="as older versions wrote them"):
        checkpoint.load(old, KEY, network, adam)


def test_a_shard_has_the_bytes_of_safetensors_and_the_sha256_of_what_is_on_disk(tmp_path: Path) -> None:
    tensors = {
        "z": torch.randn(3, 5), "wide": torch.arange(3.0, dtype=torch.float64), "half": torch.randn(7).bfloat16(),
        "scalar": torch.tensor(3.0), "a \"quoted\" \u00fc": torch.randn(2, 3), "empty": torch.zeros(0, 4),
    }  # fmt: skip
    path = tmp_path / "x.safetensors"
    digest = checkpoint._write(path, tensors | {"turned": torch.arange(24.0).reshape(4, 6).T})
    data = path.read_bytes()
    assert data == safetensors_bytes(tensors | {"turned": torch.arange(24.0).reshape(4, 6).T.contiguous()})
    assert digest == hashlib.sha256(data).hexdigest()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match="does not have the checksum"):
        checkpoint.verify(tmp_path, path.name, digest)


def test_another_networks_tensors_are_refused(tmp_path: Path) -> None:
    network, adam = pair()
    path = save(tmp_path, KEY, network, adam, Position(step=1))
    plain, wide = build(parse_model({"size": TINY})), build(parse_model({"size": {**TINY, "ffn": 32}, "gate": "gpas"}))
    with pytest.raises(DamagedCheckpoint, match=r"has network/.*alpha, which is not part of this network"):
        checkpoint.load(path, KEY, plain, None)
    with pytest.raises(DamagedCheckpoint, match=r"is float32 \[24, 16\], but this network needs float32 \[32, 16\]"):
        checkpoint.load(path, KEY, wide, None)
    path = save(tmp_path, KEY, plain, adam, Position(step=1))
    with pytest.raises(DamagedCheckpoint, match=r"has no network/.*alpha"):
        checkpoint.load(path, KEY, network, None)


def test_leftovers_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    network, adam = pair()
    (tmp_path / ".writing-step-00000007").mkdir()
    (tmp_path / ".writing-step-00000007/00000.safetensors").write_bytes(b"torn")
    path = save(tmp_path, KEY, network, adam, Position(step=8))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_another_stages_checkpoint_is_refused(tmp_path: Path) -> None:
    network, adam = pair()
    path = save(tmp_path, KEY, network, adam, Position(step=1))
    with pytest.raises(DamagedCheckpoint, match="belongs to stage"):
        checkpoint.load(path, "f" * 16, network, adam)


def test_a_failed_write_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, adam = pair()
    path = save(tmp_path, KEY, network, adam, Position(step=1))

    def full(file: Path, _tensors: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, KEY, network, adam, Position(step=2))
    assert newest_first([tmp_path]) == [path]


def test_a_full_disk_is_an_error_with_the_file(small_disk: Path) -> None:
    network, adam = pair()
    with full(small_disk), pytest.raises(OSError, match=r"No space left on device: .*\.safetensors") as caught:
        save(small_disk, KEY, network, adam, Position(step=2))
    assert "; free space on that file system" in advise(caught.value)


def test_gates_are_taken_from_another_cell(tmp_path: Path) -> None:
    teacher, adam = pair()
    for gate in teacher.gates():
        gate.alpha.data.fill_(0.25)
    path = save(tmp_path, KEY, teacher, adam, Position(step=1))
    fixed = {"learnable": False, "from_trained": True}
    pupil = build(parse_model({"size": TINY, "gate": fixed}), seed=1)
    checkpoint.load_gates(path, pupil)
    assert [gate.alpha.item() for gate in pupil.gates()] == [0.25, 0.25]
    with pytest.raises(DamagedCheckpoint, match="does not hold the gates"):
        checkpoint.load_gates(path, build(parse_model({"size": TINY, "gate": {"share": "sublayer"}})))


STEPS = 12
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 6, "vocab": 280}


def loop(depth: object, **optim: object) -> Loop:
    make_deterministic(1)
    made = cell(size=SIZE, depth=depth, optim=recipe(**optim))
    return assemble(made, SyntheticBatches(made, padded=False), Resources(compile="off"))


def tensors(network: Llama) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def layers_of(network: Llama) -> list[dict[str, Tensor]]:
    return [tensors(layer) for layer in network.model.layers]


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
    training = loop({"like": "raptr", "stages": "3-6", "skipped": skipped}, weight_decay=0.1)
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
    stacking = loop({"like": "stacking", "stages": "2-3-6"})
    seen = []
    for _ in range(STEPS):
        stacking.update()
        active = stacking.evaluated_layers()
        seen.append(6 if active is None else len(active.layers))
    assert seen == [2] * 4 + [3] * 4 + [6] * 4
    raptr = loop({"like": "raptr", "stages": "3-4-6"})
    raptr.update()
    assert raptr.evaluated_layers() is None


PARALLEL = tables("train/cases.yaml")["two_processes_train_the_same_paths_as_one"]


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
    training = loop({"like": "raptr", "stages": "3-6", "fixed": "none"})
    compile_layers(training.network, counter)
    graphs = []
    for _ in range(12):
        training.update()
        graphs.append(counter.frame_count)
    assert graphs[2] == graphs[5]  # of different paths
    assert graphs[6] == graphs[11] <= 3
