"""What a plan adds to the disks: compared with what trainings, tokenisers and cards of data sets say."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end import Toy
from launching import FOUR_CORES, entry

from gpas_cli import file_systems
from gpas_cli.checkpoints import newest_first, outdated, path_of
from gpas_cli.model.llama import build
from gpas_cli.plan.costs import Storage
from gpas_cli.plan.plan import plan
from gpas_cli.project import Project
from gpas_cli.spec.cost import checkpoint_bytes
from gpas_cli.spec.run import Cadence
from gpas_cli.state.cleanup import size_of
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.precision import Precision

SIZE = {"hidden": 128, "ffn": 352, "heads": 4, "layers": 2, "vocab": 4000}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")


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
    path = checkpoint.save(tmp_path, "key", network, state, Position(step=1), kind=cell.optim.kind)
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
    (tmp_path / "quota").write_text(f"#!/bin/sh\ncat <<END\n{head}\n{rows}\nEND\nexit 1\n")
    (tmp_path / "quota").chmod(0o755)
    assert file_systems.free(tmp_path / "absent/runs") == file_systems.Free(tmp_path, 10 * 1024, quota=True)
