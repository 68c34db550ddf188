"""Checkpoints: exact round trip, checksum, rotation, and a full disk."""

import hashlib
import threading
from pathlib import Path

import pytest
import torch
from disks import full
from safetensors.torch import save as safetensors_bytes

from gpas_cli.checkpoints import newest_first
from gpas_cli.model.llama import Llama, build
from gpas_cli.permissions import advise
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.optim import make_adam, set_learning_rate

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
    path = checkpoint.save(tmp_path, KEY, one, adam, Position(step=1, tokens=12, seconds=0.5))
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
    assert checkpoint.finish(writing) > 0
    other, other_adam = pair(seed=2)
    checkpoint.load(writing.path, KEY, other, other_adam)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    advance(other, other_adam)
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    network, adam = pair()
    for step in (1, 2, 3, 10):
        checkpoint.save(tmp_path, KEY, network, adam, Position(step=step))
    assert [p.name for p in newest_first([tmp_path])] == ["step-00000010", "step-00000003"]


@pytest.mark.parametrize("where", [0.5, 0.999])
def test_an_altered_or_torn_file_is_refused(tmp_path: Path, where: float) -> None:
    network, adam = pair()
    path = checkpoint.save(tmp_path, KEY, network, adam, Position(step=1))
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
        checkpoint.save(tmp_path, KEY, network, adam, Position(step=step))
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
    path = checkpoint.save(tmp_path, KEY, network, adam, Position(step=1))
    plain, wide = build(parse_model({"size": TINY})), build(parse_model({"size": {**TINY, "ffn": 32}, "gate": "gpas"}))
    with pytest.raises(DamagedCheckpoint, match=r"has network/.*alpha, which is not part of this network"):
        checkpoint.load(path, KEY, plain, None)
    with pytest.raises(DamagedCheckpoint, match=r"is float32 \[24, 16\], but this network needs float32 \[32, 16\]"):
        checkpoint.load(path, KEY, wide, None)
    path = checkpoint.save(tmp_path, KEY, plain, adam, Position(step=1))
    with pytest.raises(DamagedCheckpoint, match=r"has no network/.*alpha"):
        checkpoint.load(path, KEY, network, None)


def test_leftovers_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    network, adam = pair()
    (tmp_path / ".writing-step-00000007").mkdir()
    (tmp_path / ".writing-step-00000007/00000.safetensors").write_bytes(b"torn")
    path = checkpoint.save(tmp_path, KEY, network, adam, Position(step=8))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_another_stages_checkpoint_is_refused(tmp_path: Path) -> None:
    network, adam = pair()
    path = checkpoint.save(tmp_path, KEY, network, adam, Position(step=1))
    with pytest.raises(DamagedCheckpoint, match="belongs to stage"):
        checkpoint.load(path, "f" * 16, network, adam)


def test_a_failed_write_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, adam = pair()
    path = checkpoint.save(tmp_path, KEY, network, adam, Position(step=1))

    def full(file: Path, _tensors: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, KEY, network, adam, Position(step=2))
    assert newest_first([tmp_path]) == [path]


def test_a_full_disk_is_an_error_with_the_file(small_disk: Path) -> None:
    network, adam = pair()
    with full(small_disk), pytest.raises(OSError, match=r"No space left on device: .*\.safetensors") as caught:
        checkpoint.save(small_disk, KEY, network, adam, Position(step=2))
    assert "; free space on that file system" in advise(caught.value)


def test_gates_are_taken_from_another_cell(tmp_path: Path) -> None:
    teacher, adam = pair()
    for gate in teacher.gates():
        gate.alpha.data.fill_(0.25)
    path = checkpoint.save(tmp_path, KEY, teacher, adam, Position(step=1))
    fixed = {"learnable": False, "from_trained": True}
    pupil = build(parse_model({"size": TINY, "gate": fixed}), seed=1)
    checkpoint.load_gates(path, pupil)
    assert [gate.alpha.item() for gate in pupil.gates()] == [0.25, 0.25]
    with pytest.raises(DamagedCheckpoint, match="does not hold the gates"):
        checkpoint.load_gates(path, build(parse_model({"size": TINY, "gate": {"share": "sublayer"}})))
