"""Trainings that share their first updates, on a real controller: dependencies, a kill, and the same bits."""

import os
import signal
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_toy import SlurmToy, gated, wait

LENGTHS = ("pre-gpas-steps200-s1", "pre-gpas-steps300-s1", "pre-gpas-steps400-s1")
FIRST, SECOND = "pre-gpas-steps200-s1.trunk150", "pre-gpas-steps300-s1.trunk250"


def lengths(cluster: Cluster, folder: Path, *, resources: str = "") -> SlurmToy:
    """Return a project of one cell in three lengths, whose rates decay in the last 50 updates."""
    toy = SlurmToy(folder, cluster, resources=resources, steps=400, checkpoint_every=40)
    gated(toy)
    toy.edit("data: notes}", "data: notes, optim: {schedule: wsd, decay: 50}}")
    toy.edit("      seed:", "      optim.steps: [200, 300, 400]\n      seed:")
    toy.edit("columns: size", "columns: optim.steps")
    return toy


def started_at(toy: SlurmToy) -> dict[str, list[int]]:
    """Return the updates at which the attempts of each training began, oldest first."""
    found: dict[str, list[int]] = {}
    for path, facts in zip(toy.attempts(), toy.facts(), strict=True):
        begun = [event for event in toy.events(path) if event["kind"] == "phase" and event["name"] == "training"]
        found.setdefault(facts["name"], []).extend(event["resumed_from"] for event in begun)
    return found


@pytest.mark.long
def test_branches_wait_for_their_trunk_and_survive_its_death_and_their_own(cluster: Cluster, tmp_path: Path) -> None:
    alone = lengths(cluster, tmp_path / "alone", resources="share: 'off'")
    alone("run", "grid", "--executor", "local", "--yes")
    toy = lengths(cluster, tmp_path / "toy")
    assert "which saves 400 of them" in toy("plan").out
    assert "5 jobs submitted" in toy.submit()
    assert set(toy.states()) == set(LENGTHS)
    wait(toy.training)
    (pid,) = [event["pid"] for event in toy.events() if event["kind"] == "start"]
    os.kill(pid, signal.SIGKILL)
    toy.finish()
    begun = started_at(toy)
    assert begun[FIRST][0] == 0
    assert len(begun[FIRST]) == 2
    assert {name: steps[0] for name, steps in begun.items() if name != FIRST} == {
        LENGTHS[0]: 150, SECOND: 150, LENGTHS[1]: 250, LENGTHS[2]: 250,
    }  # fmt: skip
    cells = {name: loss for name, loss in toy.losses().items() if name[0] in LENGTHS}
    assert cells == alone.losses()
    assert toy("table", "--format", "csv").out == alone("table", "--format", "csv").out
    assert "starts after update 250" in toy("why", LENGTHS[2]).out
    assert "0 jobs submitted" in toy.submit()
