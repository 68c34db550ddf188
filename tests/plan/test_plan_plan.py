"""The plan: what a run would do, an estimate with its basis, what it adds to the disks, and what can never run here."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import make_attempt, write_events
from cases import cases
from end_to_end import Toy
from launching import FOUR_CORES, entry, key
from programs import program
from saving import save

from gpas_cli import file_systems
from gpas_cli.checkpoints import newest_first, outdated, path_of
from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Outcome, Started, Step
from gpas_cli.grid import Entry
from gpas_cli.model.llama import build
from gpas_cli.plan import machine
from gpas_cli.plan.costs import Storage, described
from gpas_cli.plan.estimate import _equivalent_tokens, _measured_speeds, estimate, makespan
from gpas_cli.plan.machine import Cluster, GpuKind, ThisMachine, _assumed_mfu, named_gpus
from gpas_cli.plan.plan import Plan, plan
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.processor import peak_flops
from gpas_cli.project import Project
from gpas_cli.spec.cost import checkpoint_bytes, computed_flops, flops_per_token, parameters
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.state.cleanup import size_of
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.precision import Precision


def attempt(runs: Path, cell: Entry, outcome: str = "", speed: float = 1000.0, device: str = "cpu") -> AttemptDir:
    host = os.uname().nodename
    facts = {"cell": cell.cell.to_mapping(), "submitter": {"host": host}, "created": time.time(), "devices": ["cpu-0"]}
    made = make_attempt(runs, key(cell), facts)
    seconds = cell.cell.optim.batch * cell.cell.data.length / speed
    steps = [Step(step=step, steps=3, loss=5.0, lr=0.1, seconds_per_step=seconds) for step in (1, 2)]
    write_events(made, [Started(host=host, device=device), *steps, *([Outcome(outcome, step=2)] if outcome else [])])
    return made


def made_plan(runs: Path, *entries: Entry, machine: ThisMachine = FOUR_CORES, retry: tuple[str, ...] = ()) -> Plan:
    return plan(runs, entries, machine=machine, retry=retry)


def test_every_state_has_its_action(runs: Path) -> None:
    cells = {name: entry(seed=seed) for seed, name in enumerate(("new", "done", "diverged", "failed", "cancelled"))}
    for outcome in ("done", "diverged", "failed", "cancelled"):
        attempt(runs, cells[outcome], outcome)
    cells["running"], cells["queued"], cells["interrupted"] = entry(seed=11), entry(seed=12), entry(seed=13)
    fd = locks.hold(alive_path(attempt(runs, cells["running"])))
    submitter = Submitter(runs)
    write_claim(runs, key(cells["queued"]), submitter)
    attempt(runs, cells["interrupted"])
    found = made_plan(runs, *cells.values())
    retried = made_plan(runs, *cells.values(), retry=("failed",))
    os.close(fd)
    submitter.close()
    assert [row.action for row in found.rows] == list(cells)
    assert [row.action for row in found.rows if row.will_run] == ["new", "interrupted"]
    assert [row.action for row in retried.rows if row.will_run] == ["new", "failed", "interrupted"]
    assert found.actions == dict.fromkeys(cells, 1)
    assert len(found.jobs) == 2


def test_a_shared_stage_is_counted_once(runs: Path) -> None:
    cell = entry(seed=1)
    probed = entry(seed=1, importance={"eval_tokens": 10})
    found = made_plan(runs, cell, replace(cell, grid="other"), probed)
    assert (sum(found.stages.values()), found.uses) == (2, 4)
    assert [job.kind for job in found.jobs] == ["pretrain", "importance"]
    assert found.estimate.tokens == _equivalent_tokens(found.jobs[0]) + _equivalent_tokens(found.jobs[1])


def test_a_teacher_is_planned_before_its_pupil(runs: Path) -> None:
    pupil = entry(seed=1, gate={"learnable": False, "from_trained": True})
    found = made_plan(runs, pupil)
    assert [job.name for job in found.jobs] == [f"{pupil.name}.teacher", pupil.name]
    teacher = found.jobs[0]
    assert found.jobs[1].parents == (teacher.key,)
    attempt(runs, replace(pupil, cell=teacher.cell), "diverged")
    again = made_plan(runs, pupil)
    assert (again.jobs, again.rows[0].will_run) == ((), False)
    assert again.rows[0].detail == "a prerequisite is unavailable"


def test_an_interrupted_cell_is_planned_from_its_checkpoint(runs: Path) -> None:
    cell = entry(seed=1)
    whole = made_plan(runs, cell).estimate
    made = attempt(runs, cell)
    Journal(made.journal_path).append(Checkpoint(step=2, path="x", seconds=1))
    made.checkpoints.mkdir()
    found = made_plan(runs, cell)
    assert found.rows[0].detail == "resumes at step 2 of 3"
    assert whole.tokens - found.estimate.tokens == 2 * cell.cell.optim.batch * cell.cell.data.length


def test_a_cell_this_machine_cannot_run_is_invalid(runs: Path) -> None:
    big = replace(entry(), resources=Resources(gpus=8))
    (row,) = made_plan(runs, big).rows
    assert (row.action, row.will_run) == ("invalid", False)
    assert "asks for 8 GPUs" in row.detail
    eight = ThisMachine(gpus=tuple(str(i) for i in range(8)), cores=(0,))
    assert made_plan(runs, big, machine=eight).rows[0].action == "new"


def test_a_measured_speed_replaces_the_assumed_one(runs: Path) -> None:
    cell = entry(seed=1)
    tokens = made_plan(runs, cell).estimate.tokens
    assert "assumed 20 GFLOP/s per CPU thread" in made_plan(runs, cell).estimate.basis[0]
    attempt(runs, entry(seed=2), "done", speed=50.0)
    attempt(runs, entry(seed=3), "done", speed=70.0)
    attempt(runs, entry(seed=4), "done", speed=900.0)
    attempt(runs, entry(seed=5), "done", speed=1.0, device="cuda")
    found = made_plan(runs, cell).estimate
    assert found.core_hours == pytest.approx(tokens / 70 / 3600)
    assert (found.basis, found.gpu_hours) == (("1 of 1 jobs: the measured speed of that shape",), 0)


def test_a_speed_measured_with_skipped_layers_is_that_of_all_layers(runs: Path) -> None:
    """Half of the layers in updates 1 and 2 of 3: whole updates take longer, by the ratio of the FLOPs."""
    half = entry(seed=2, depth={"like": "stacking", "stages": "6-12", "lengths": [2, 1]})
    attempt(runs, half, "done", speed=70.0)
    share = computed_flops(half.cell, 1, 2)
    assert 0.5 < share < 1
    assert list(_measured_speeds(runs).values()) == [pytest.approx(70 * share)]


def test_damaged_attempts_do_not_stop_an_estimate(runs: Path) -> None:
    attempt(runs, entry(seed=2), "done", speed=50.0)
    attempt(runs, entry(seed=3), "done").attempt_path.write_text("{")
    attempt(runs, entry(seed=4), "done").attempt_path.write_text('{"cell": []}')
    assert list(_measured_speeds(runs).values()) == [pytest.approx(50)]


def test_gpus_are_assumed_by_precision(runs: Path) -> None:
    two = ThisMachine(gpus=("0", "1"), cores=(0,))
    jobs = stage_jobs([entry(seed=1), entry(seed=2), entry(seed=3)]).values()
    found = estimate(runs, jobs, two)
    assert (found.core_hours, found.wall_hours) == (0, pytest.approx(found.gpu_hours * 2 / 3))
    assert "assumed 20 TFLOP/s per GPU" in found.basis[0]


def test_ranks_divide_the_time_but_not_the_cost(runs: Path) -> None:
    one, two = (replace(entry(seed=1), resources=Resources(cpus=cpus, ranks=cpus)) for cpus in (1, 2))
    alone, together = (estimate(runs, stage_jobs([cell]).values(), Cluster()) for cell in (one, two))
    assert together.core_hours == pytest.approx(alone.core_hours)
    assert together.longest_hours == pytest.approx(alone.longest_hours / 2)
    attempt(runs, two, "done", speed=100.0)  # on one core
    measured = estimate(runs, stage_jobs([two]).values(), Cluster())
    assert measured.longest_hours == pytest.approx(together.longest_hours)  # the speed of another shape


def test_on_a_cluster_each_job_gets_its_requested_resources(runs: Path) -> None:
    """GPUs and cores are counted apart; how long all takes is not known, the longest chain is."""
    big = replace(entry(seed=1, importance={"eval_tokens": 10}), resources=Resources(gpus=4, nodes=2, cpus=8))
    found = estimate(runs, stage_jobs([big, entry(seed=2)]).values(), Cluster())
    first, second, third = (estimate(runs, [job], Cluster()) for job in stage_jobs([big, entry(seed=2)]).values())
    assert (found.wall_hours, found.slots) == (None, 0)
    assert first.gpu_hours == pytest.approx(4 * first.longest_hours)
    assert second.gpu_hours == pytest.approx(second.longest_hours)
    assert found.gpu_hours == pytest.approx(first.gpu_hours + second.gpu_hours)
    assert found.core_hours == third.core_hours == third.longest_hours
    assert found.longest_hours == pytest.approx(max(first.longest_hours + second.longest_hours, third.longest_hours))
    assert "TFLOP/s per GPU and 20 GFLOP/s per CPU thread" in found.basis[0]


def test_absent_gpus_are_estimated_from_their_data_sheet(runs: Path) -> None:
    """What was measured here does not count, and one GPU more makes the same work no cheaper."""
    cells = [replace(entry(seed=seed, precision="bf16"), resources=Resources(gpus=2)) for seed in (1, 2)]
    attempt(runs, replace(cells[0], cell=entry(seed=9, precision="bf16").cell), "done", speed=1.0, device="cuda")
    found = made_plan(runs, *cells, machine=named_gpus("h100:2")).estimate
    mfu = _assumed_mfu(parameters(cells[0].cell))
    tokens = 2 * _equivalent_tokens(stage_jobs(cells[:1])[key(cells[0])])
    assert found.gpu_hours == pytest.approx(tokens * flops_per_token(cells[0].cell) / (mfu * 989.5e12) / 3600)
    assert found.wall_hours == pytest.approx(found.gpu_hours / 2)  # one job after the other, on two GPUs each
    assert made_plan(runs, *cells, machine=named_gpus("H100", mfu=0.2)).estimate.wall_hours is None
    (basis,) = found.basis
    assert (
        "8 % of the peak of one H100 (by size, from the 34, 44 and 52 % of 71M, 350M and 1B on one H200), 989.5"
        in basis
    )
    refused = made_plan(runs, *cells, machine=named_gpus("H100:1"))
    assert (refused.jobs, dict(refused.refused)) == ((), {"the job asks for 2 GPUs, but --gpu names 1": 2})


@pytest.mark.parametrize("words", ["H1000", "H100:0", "H100:x", "H100:", "", ":2", "H100:-1", "H100:²"])
def test_unknown_gpu_names_are_refused(words: str) -> None:
    with pytest.raises(GpasError, match="--gpu: "):
        named_gpus(words)


def test_larger_networks_are_assumed_to_use_a_gpu_better() -> None:
    shares = [_assumed_mfu(size) for size in (10**4, 10**5, 71 * 10**6, 370 * 10**6, 1_300_000_000, 10**12)]
    assert shares == [0.05, 0.05, 0.34, 0.44, 0.52, 0.52]


def test_jobs_that_need_more_gpus_than_there_are_are_estimated_on_others(runs: Path) -> None:
    big = replace(entry(seed=1, precision="bf16"), resources=Resources(gpus=16))
    small = replace(entry(seed=2, precision="bf16"), resources=Resources(gpus=1))
    here = ThisMachine(gpus=("0",), cores=(0, 1))
    found = made_plan(runs, big, small, machine=here)
    assert [job.resources.gpus for job in found.jobs] == [1]
    assert [cost.gpus for cost in found.elsewhere] == [("A100",), ("H100", "H200"), ("B200",)]
    for cost in found.elsewhere:  # one estimate stands for each kind of GPU
        assert len({(peak_flops(name, "bf16"), peak_flops(name, "fp32")) for name in cost.gpus}) == 1
    assert {(cost.number, len(cost.estimate.works)) for cost in found.elsewhere} == {(16, 1)}
    assert made_plan(runs, small, machine=here).elsewhere == ()
    assert made_plan(runs, big, machine=Cluster()).elsewhere == ()


def test_a_gpu_is_named_in_any_case_and_spacing() -> None:
    assert {named_gpus(word).name for word in ("rtx4090", "RTX 4090", "rtx-4090", "4090")} == {"RTX 4090"}


def test_a_network_that_does_not_fit_is_named(runs: Path) -> None:
    one = entry(size="7b", precision="bf16", optim={"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 8})
    (warning,) = made_plan(runs, one, machine=named_gpus("H100")).warnings
    assert re.search(
        r"1 training of size 7b would take about 1\d\d GB on each of 1 GPU, and H100 has 80\.0 GB", warning
    )
    shared = replace(one, resources=Resources(gpus=8))
    assert made_plan(runs, shared, machine=named_gpus("H100")).warnings == []
    whole = replace(one, resources=Resources(gpus=8, strategy="ddp"))
    (warning,) = made_plan(runs, whole, machine=named_gpus("H100")).warnings
    assert warning.endswith("raise resources.gpus, or leave out strategy: ddp")


@pytest.mark.parametrize(("asked", "words"), [({}, "no GPU, 1 core"), ({"gpus": 4, "cpus": 4}, "4 GPUs, 4 cores")])
def test_a_cluster_is_not_asked_for_single_cores_without_a_word(runs: Path, asked: dict[str, int], words: str) -> None:
    cells = [replace(entry(seed=seed), resources=Resources(**asked)) for seed in (1, 2)]
    (warning,) = made_plan(runs, *cells, machine=Cluster()).warnings
    assert warning.startswith(f"2 trainings of g ask for {words} and no memory; write resources: {{gpus: ")
    assert made_plan(runs, *cells).warnings == []
    enough = [replace(cell, resources=Resources(**asked, mem="2G")) for cell in cells]
    assert made_plan(runs, *enough, machine=Cluster()).warnings == []


def test_the_memory_of_each_gpu_is_that_of_the_largest_cell_of_a_size(runs: Path) -> None:
    optim = {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 512}
    norms = [entry(size="350m", norm=norm, precision="bf16", optim=optim) for norm in ("pre", "sandwich")]
    cells = [replace(cell, resources=Resources(gpus=4)) for cell in norms]
    (found,) = made_plan(runs, *cells, machine=named_gpus("H100:4")).memory
    alone = [made_plan(runs, cell, machine=named_gpus("H100:4")).memory[0].memory.total for cell in cells]
    assert (found.size, found.jobs, found.devices, found.memory.strategy) == ("350m", 2, 4, "ddp")
    assert found.memory.micro_batch == 128
    assert found.memory.total == max(alone) > min(alone)
    assert made_plan(runs, *cells, machine=Cluster()).memory == []
    assert made_plan(runs, entry(), machine=FOUR_CORES).memory == []


def test_sizes_show_what_a_cell_reads(runs: Path) -> None:
    cells = [entry(seed=1), entry(seed=2), entry(seed=3, size="9m"), entry(seed=4)]
    attempt(runs, cells[3], "done")
    small, large = made_plan(runs, *cells).sizes
    assert (small.size, small.cells, small.jobs, small.batch, small.tokens) == ("quickstart", 3, 2, 2, 3 * 2 * 64)
    assert (large.size, large.cells, large.jobs) == ("9m", 1, 1)
    assert small.core_hours + large.core_hours == pytest.approx(made_plan(runs, *cells).estimate.core_hours)


@pytest.mark.parametrize("size", ["71m", "1b"])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_parameters_are_those_of_the_network(size: str, family: str) -> None:
    cell = entry(size=size, family=family).cell
    built = sum(tensor.numel() for tensor in build(cell.model, device="meta").parameters())
    assert parameters(cell) == pytest.approx(built, rel=0.03)


@cases("plan/cases.yaml")
def test_makespan(needs: list[tuple[float, int]], slots: int, hours: float) -> None:
    assert makespan(needs, slots) == hours


@cases("plan/cases.yaml")
def test_what_a_job_asks_for_is_one_part_per_resource(resources: dict[str, Any], wanted: str) -> None:
    assert described(Resources(**resources)) == wanted


SIZE = {"hidden": 128, "ffn": 352, "heads": 4, "layers": 2, "vocab": 4000}


def added(project: Project, *cells: Any) -> Storage:
    return plan(project.runs, cells, machine=FOUR_CORES, project=project).storage


@pytest.mark.parametrize("optimizer", ["adam", "muon", "adafactor"])
@pytest.mark.parametrize("more", [{}, {"precision": "pure_bf16"}, {"family": "gpt"}])
def test_a_checkpoint_has_the_bytes_that_were_predicted(tmp_path: Path, optimizer: str, more: dict[str, Any]) -> None:
    cell = entry(
        size=SIZE, optim={"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 2, "optimizer": optimizer}, **more
    ).cell
    network = build(cell.model, seed=1, dtype=Precision(cell.precision, torch.device("cpu")).weights)
    state = make_optimizer(network, cell.optim)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.step()
    path = save(tmp_path, "key", network, state, Position(step=1), kind=cell.optim.kind)
    assert checkpoint_bytes(cell) == pytest.approx(size_of(path), rel=0.02)


@pytest.mark.parametrize("updates", [2, 6, 7, 20])
def test_as_many_checkpoints_stay_as_are_predicted(tmp_path: Path, updates: int) -> None:
    cadence, most = Cadence(checkpoint_every=3, keep=(4, 9)), 0
    for step in (step for step in range(1, updates + 1) if step == updates or cadence.checkpoint_due(step, 0)):
        path_of(tmp_path, step).mkdir()
        most = max(most, len(newest_first([tmp_path])))
        for path in outdated(tmp_path, cadence.keep):
            path.rmdir()
    assert cadence.checkpoints(updates) == (len(newest_first([tmp_path])), most)


def test_tokens_of_a_large_vocabulary_take_four_bytes(project: Project) -> None:
    found = {}
    for vocab in (2**16, 2**16 + 1, 10 * 2**16):  # so that a token stands for as many bytes
        cell = entry(size={**SIZE, "vocab": vocab}, data={"source": "stdlib", "tokenizer": "bpe"})
        (tokens,) = (use for use in added(project, cell).uses if use.what == "tokens")
        found[vocab] = tokens.bytes
    assert list(found.values()) == [found[2**16] * factor for factor in (1, 2, 2)]


def test_a_trained_toy_has_what_its_plan_said(trained: Toy, tmp_path: Path) -> None:
    elsewhere = {"GPAS_RUNS_DIR": str(tmp_path / "runs"), "GPAS_CACHE": str(tmp_path / "cache")}
    before, here = (Project.find(trained.folder / "experiments.yaml", environ) for environ in (elsewhere, {}))
    tokens, checkpoints = added(before, *trained.entries()).uses
    parts = [path.stat().st_size for path in trained.runs.glob("??/*/*/checkpoints/step-*/*.safetensors")]
    assert checkpoints.bytes == checkpoints.peak == pytest.approx(sum(parts), rel=0.2)  # two of 260 kB
    made = sum(path.stat().st_size for path in trained.folder.glob("cache/tokens/*/*/*.bin"))
    assert tokens.bytes == pytest.approx(made, rel=0.5)  # each of its few words is one token
    found = added(here, *trained.entries())
    assert (found.uses, found.texts) == ((), ())
    assert found.speed


def test_c4_is_counted_in_its_files(project: Project, tmp_path: Path) -> None:
    cell = entry(size="71m", data="c4", optim={"lr": 1e-3, "warmup": 1, "steps": 10_000, "batch": 512})
    (text,) = added(project, cell, replace(cell, cell=replace(cell.cell, seed=9))).texts
    assert text.tokens == pytest.approx(195 * (5_120_000 + 10_000_000 / 195), rel=0.05)
    assert text.download == pytest.approx(326_778_635_540 * 15 / 1025, rel=0.01)  # 15 of 1,024 files
    blob = tmp_path / "hub/hub/datasets--allenai--c4/blobs/0"
    blob.parent.mkdir(parents=True)
    with blob.open("wb") as file:
        file.truncate(300_000_000)
    assert added(project, cell).texts[0].download == text.download - 300_000_000
    wmt = {"source": "hf-pairs", "path": "wmt/wmt16:de-en/{en,de}", "tokenizer": "bpe"}
    whole = {"family": "encoder-decoder", "objective": "translation"}
    (pairs,) = added(project, entry(**whole, size=SIZE, data=wmt)).texts
    assert pairs.download == pytest.approx(827_152_589 + 1_374_358_305, rel=0.02)


def test_the_peak_depends_on_how_many_trainings_run_at_once(project: Project) -> None:
    cells = [replace(entry(seed=seed), cadence=Cadence(checkpoint_every=1)) for seed in range(9)]
    (use,) = (use for use in added(project, *cells).uses if use.what == "checkpoints")
    one = checkpoint_bytes(cells[0].cell)
    assert (use.bytes, use.peak, use.least) == (18 * one, (18 + 4) * one, int(0.8 * 9 * one))


def test_a_quota_is_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = next(str(above) for above in (tmp_path, *tmp_path.parents) if above.is_mount())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    head = "Disk quotas for user x (uid 1):\n Filesystem blocks quota limit"
    rows = f"{mount} 90* 80 100 6days 4 0 0\n/x 1 1 1"
    program(tmp_path / "quota", f"cat <<END\n{head}\n{rows}\nEND\nexit 1")
    assert file_systems.free(tmp_path / "absent/runs") == file_systems.Free(tmp_path, 10 * 1024, quota=True)


CORES = ThisMachine(gpus=(), cores=(0, 1, 2))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an nvidia-smi that lists three GPUs, one of them divided in two."""
    listing = "GPU 0: H (UUID: GPU-a)\n  MIG 1g (UUID: MIG-b)\n  MIG 1g (UUID: MIG-c)\nGPU 1: H\nGPU 2: H\n"
    program(tmp_path / "nvidia-smi", f"cat <<'.'\n{listing}.")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("smi")
@cases("plan/cases.yaml")
def test_the_outer_mask_decides_which_gpus_there_are(mask: str | None, seen: list[str]) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert machine._visible_gpus(environ) == tuple(seen)


def test_a_broken_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "nvidia-smi", "exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._visible_gpus({}) == ()
    assert machine._visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@cases("plan/cases.yaml")
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
@cases("plan/cases.yaml")
def test_a_machine_is_its_gpus_and_as_many_cores_as_the_quota_pays_for(
    monkeypatch: pytest.MonkeyPatch, mask: str, quota: int, gpus: list[str], cores: list[int], slots: int
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: (4, 5, 6, 7))
    monkeypatch.setattr(machine, "_cpu_quota", lambda cores: min(cores, quota))
    found = machine.machine({"CUDA_VISIBLE_DEVICES": mask})
    assert (found, found.slots) == (ThisMachine((*gpus,), (*cores,)), slots)


def test_the_kind_of_gpu_is_that_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "nvidia-smi", 'echo "NVIDIA A100-SXM4-40GB, 40960"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert ThisMachine(gpus=("0", "1"), cores=()).gpu_kind() == GpuKind("NVIDIA A100-SXM4-40GB", 40960 * 2**20)
    assert ThisMachine(gpus=("MIG-b",), cores=()).gpu_kind() is None
    assert CORES.gpu_kind() is None
    program(tmp_path / "nvidia-smi", "echo '[Unknown Error]'")
    assert ThisMachine(gpus=("0",), cores=()).gpu_kind() is None
