"""gpas bench: one real measurement of a shape, in its own slot, on which later plans base their estimates."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from gpas_cli.cli.commands.bench import render
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.plan import estimate as estimate_module
from gpas_cli.plan.estimate import _measured, _MeasuredSpeed
from gpas_cli.plan.machine import ThisMachine, machine
from gpas_cli.plan.plan import plan
from gpas_cli.project import Project
from gpas_cli.schedule.local import benchmark as room
from gpas_cli.schedule.local.benchmark import bench
from gpas_cli.schedule.local.process import Slots
from gpas_cli.spec.run import Resources

GRID = """
version: 1
default: tiny
grids:
  tiny:
    base:
      size: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}
      data: {source: files, path: "*.txt", tokenizer: bpe, layout: pad, length: 64}
      optim: {lr: 1e-3, warmup: 1, steps: 30, batch: 8}
    axes: {gate: [none, gpas], seed: [1, 2]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("GPAS_CONFIG", "GPAS_RUNS_DIR", "GPAS_CACHE", "GPAS_DB"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "experiments.yaml").write_text(GRID)
    return Project.find(tmp_path / "experiments.yaml")


def chosen(here: Project) -> list[Entry]:
    return expand(load(here.config), ["tiny"])


@pytest.mark.long
def test_every_shape_is_measured_once_and_used_by_the_plan(here: Project) -> None:
    (found,) = bench(here, chosen(here), 0.1)
    facts = found.facts
    assert (found.cells, found.job.id, facts["device"]) == (4, "tiny/s1", "cpu")
    assert facts["steps"] >= 3
    # Padding counts as part of a position but not as a token.
    assert 0 < facts["tokens_per_second"] < facts["positions_per_second"]
    assert list(_measured(here.runs).values()) == [_MeasuredSpeed(facts["positions_per_second"])]
    estimate = plan(here.runs, chosen(here)).estimate
    assert estimate.basis == ("4 of 4 jobs: the measured speed of that shape",)
    assert estimate.core_hours == pytest.approx(estimate.tokens / facts["positions_per_second"] / 3600)


def test_no_measurement_beside_a_running_job(here: Project) -> None:
    cores = machine()
    lease = Slots(here.runs, cores).take(Resources(cpus=len(cores.cores)))
    assert lease is not None
    with pytest.raises(GpasError, match="every slot of this machine is busy"):
        list(bench(here, chosen(here), 0.1))
    lease.close()
    assert not _measured(here.runs)


@pytest.mark.long
@pytest.mark.skipif(len(machine().cores) < 2, reason="two processes need two cores")
def test_of_several_processes_one_is_measured(here: Project) -> None:
    here.config.write_text(GRID.replace("axes:", "resources: {ranks: 2}\n    axes:"))
    (found,) = bench(here, chosen(here), 0.1)
    facts = found.facts
    assert (facts["processes"], facts["rows"], facts["micro_batch"]) == (2, 4, 4)
    # Both processes compute 4 rows of 64 in that time.
    assert _measured(here.runs) == {
        tuple(facts["shape"]): _MeasuredSpeed(8 * 64 / facts["seconds_per_step"], processes=2)
    }  # fmt: skip
    assert facts["tokens_per_second"] < 4 * 64 / facts["seconds_per_step"]
    estimate = plan(here.runs, chosen(here)).estimate
    assert estimate.basis == (
        "4 of 4 jobs: the speed of one of their processes, measured without the others' communication",
    )
    assert estimate.core_hours == pytest.approx(2 * estimate.tokens / facts["positions_per_second"] / 3600)
    shown = Console(width=200, file=io.StringIO())
    shown.print(render([found]))
    assert "tiny/s1: one of its 2 processes, 4 of 8 rows of each update; no communication" in shown.file.getvalue()


def test_an_error_in_the_measuring_process_is_reported(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_COMMAND", (sys.executable, "-c", "raise SystemExit('no memory left')"))
    with pytest.raises(GpasError, match=r"tiny/s1 could not be measured: no memory left"):
        list(bench(here, chosen(here), 0.1))


def test_a_measurement_that_is_too_long_or_too_large_is_refused(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_COMMAND", (sys.executable, "-c", "raise SystemExit('it began')"))
    monkeypatch.setattr(room, "machine", lambda: ThisMachine(gpus=(), cores=(0, 1)))
    large = GRID.replace("size: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}", "size: 1b")
    here.config.write_text(large.replace("axes:", "resources: {gpus: 0, cpus: 1}\n    axes:"))
    slow = chosen(here)
    with pytest.raises(GpasError, match=r"tiny/s1: 1\.34B parameters, 1 row of each update, about .* and .* GB"):
        list(bench(here, slow, 0.1))
    monkeypatch.setattr(estimate_module.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**9))
    with pytest.raises(GpasError, match=r"1\.0 GB are free\n.*--force"):
        list(bench(here, slow, 10_000))
    with pytest.raises(GpasError, match="it began"):
        list(bench(here, slow, 10_000, force=True))


@pytest.mark.long
def test_the_time_of_an_update_is_extrapolated_from_some_rows(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        estimate_module, "_ASSUMED_THREAD_FLOPS", 2e6
    )  # so slow that only two of eight rows fit the time
    notices: list[str] = []
    (found,) = bench(here, chosen(here), 1, force=True, notify=notices.append)
    assert 1 <= found.facts["rows"] < 8
    assert found.facts["micro_batch"] == found.facts["rows"]
    assert notices[0].startswith("tiny/s1: 13.3k parameters")
    assert any("update 2" in line for line in notices)
    (speed,) = _measured(here.runs).values()
    assert speed == _MeasuredSpeed(found.facts["positions_per_second"])
    assert speed.tokens_per_second == 8 * 64 / found.facts["seconds_per_step"]
