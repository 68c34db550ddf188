"""The GPUs and cores that jobs may use here, and the jobs that can never run here."""

import os
import stat
from pathlib import Path

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.plan import machine
from gpas_cli.plan.machine import GpuKind, ThisMachine
from gpas_cli.spec.run import Resources

CORES = ThisMachine(gpus=(), cores=(0, 1, 2))
CPUS = (4, 5, 6, 7)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an nvidia-smi that lists three GPUs, one of them divided in two."""
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
    assert machine._visible_gpus(environ) == seen


def test_a_broken_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._visible_gpus({}) == ()
    assert machine._visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_a_quota_of_the_container_bounds_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert machine._cpu_quota(8, tmp_path / "cpu.max") == cores


def test_impossible_jobs_are_reported_together() -> None:
    wanted = {"g/a": Resources(gpus=1), "g/b": Resources(), "g/c": Resources(gpus=4)}
    with pytest.raises(GpasError, match=r"g/a asks for 1 GPU,.*\n.*g/c asks for 4") as raised:
        machine.require(CORES, wanted)
    assert "g/b" not in str(raised.value)
    machine.require(ThisMachine(("0", "1", "2", "3"), (0,)), wanted)


def test_of_many_impossible_jobs_five_are_named() -> None:
    with pytest.raises(GpasError) as raised:
        machine.require(CORES, {f"g/s{seed}": Resources(gpus=1) for seed in range(1, 9)})
    lines = str(raised.value).splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["g/s1", "g/s2", "g/s3", "g/s4", "g/s5"]
    assert lines[5] == "and 3 more"
    assert lines[6].startswith("lower resources.gpus")


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize(
    ("mask", "quota", "expected", "slots"),
    [
        ("", 3, ThisMachine((), (4, 5, 6)), 3),
        ("2,0", 2, ThisMachine(("2", "0"), (4, 5)), 2),
        ("1", 8, ThisMachine(("1",), CPUS), 1),
    ],
)
def test_a_machine_is_its_gpus_and_as_many_cores_as_the_quota_pays_for(
    monkeypatch: pytest.MonkeyPatch, mask: str, quota: int, expected: ThisMachine, slots: int
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: CPUS)
    monkeypatch.setattr(machine, "_cpu_quota", lambda cores: min(cores, quota))
    found = machine.machine({"CUDA_VISIBLE_DEVICES": mask})
    assert found == expected
    assert found.slots == slots


def test_the_kind_of_gpu_is_that_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "NVIDIA A100-SXM4-40GB, 40960"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ThisMachine(gpus=("0", "1"), cores=()).gpu_kind() == GpuKind("NVIDIA A100-SXM4-40GB", 40960 * 2**20)
    assert ThisMachine(gpus=("MIG-b",), cores=()).gpu_kind() is None
    assert CORES.gpu_kind() is None
    program.write_text("#!/bin/sh\necho '[Unknown Error]'\n")
    assert ThisMachine(gpus=("0",), cores=()).gpu_kind() is None
