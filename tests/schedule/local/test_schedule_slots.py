"""Slots: what the machine offers, how jobs take it, and that masks compose."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.plan import machine
from gpas_cli.plan.machine import Machine
from gpas_cli.schedule.local.slots import Slots
from gpas_cli.spec.run import Resources

CORES = Machine(gpus=(), cores=(0, 1, 2))
GPUS = Machine(gpus=("0", "1", "2"), cores=(0, 1, 2, 3))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that lists three GPUs, one cut in two."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    listing = "GPU 0: H (UUID: GPU-a)\n  MIG 1g (UUID: MIG-b)\n  MIG 1g (UUID: MIG-c)\nGPU 1: H\nGPU 2: H\n"
    program.write_text(f"#!/bin/sh\ncat <<'.'\n{listing}.\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("-1", ()),
        ("2, 0", ("2", "0")),
        ("1,1", ("1",)),
        ("0,7,1", ("0",)),
        ("MIG-b,GPU-x", ("MIG-b", "GPU-x")),
    ],
)
def test_the_outer_mask_decides_which_gpus_there_are(mask: str | None, seen: tuple[str, ...]) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert machine.visible_gpus(environ) == seen


def test_a_broken_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.visible_gpus({}) == ()
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_a_quota_of_the_container_bounds_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert machine.cpu_quota(8, tmp_path / "cpu.max") == cores


def test_cores_are_taken_once(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    one, two = pool.take(Resources()), pool.take(Resources(cpus=2))
    assert one is not None
    assert two is not None
    assert set(one.devices).isdisjoint(two.devices)
    assert (one.threads, two.threads) == (1, 2)
    assert two.variables["OMP_NUM_THREADS"] == "2"
    assert two.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert Slots(tmp_path, CORES).take(Resources()) is None
    assert pool.free() == 0
    two.close()
    assert pool.free() == 2


def test_what_is_not_enough_is_left_for_others(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    held = pool.take(Resources())
    assert held is not None
    assert pool.take(Resources(cpus=3)) is None
    assert pool.free() == 2
    held.close()
    assert pool.take(Resources(cpus=99)) is not None  # as many threads as there are cores


def test_gpus_are_taken_by_name_whatever_the_mask(tmp_path: Path) -> None:
    narrow, wide = Slots(tmp_path, Machine(("1",), (0,))), Slots(tmp_path, GPUS)
    first = narrow.take(Resources())
    second = wide.take(Resources(gpus=2, cpus=2))
    assert first is not None
    assert second is not None
    assert first.variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert second.variables["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert second.threads == 2
    assert wide.take(Resources()) is None


def test_impossible_jobs_are_told_of_together() -> None:
    wanted = {"g/a": Resources(gpus=1), "g/b": Resources(), "g/c": Resources(gpus=4)}
    with pytest.raises(GpasError, match=r"g/a asks for 1 GPU,.*\n.*g/c asks for 4") as raised:
        machine.require(CORES, wanted)
    assert "g/b" not in str(raised.value)
    machine.require(Machine(("0", "1", "2", "3"), (0,)), wanted)


def test_this_machine_has_somewhere_to_run() -> None:
    assert machine.machine().slots >= 1
