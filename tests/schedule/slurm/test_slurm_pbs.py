"""The adapter for PBS in examples/gpas-pbs with real programs: SLURM's for users of PBS, and OpenPBS where it runs."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster
from end_to_end import Toy
from launching import kill, until
from slurm_toy import RESOURCES, SlurmToy


def _through_its_life(toy: Toy) -> None:
    """Run two cells to their end; cancel one that trains, kill the program of another's job, and run both again."""
    run = ("run", "grid", "--executor", "pbs", "--yes")
    assert "2 jobs submitted" in toy(*run).out
    assert "0 jobs submitted, 2 already queued or running" in toy(*run).out
    until(lambda: [toy.has_stepped(path) for path in toy.attempts()] == [True, True], 400)
    first, second = toy.status()
    toy("cancel", first, "--yes")
    facts = [json.loads((path / "attempt.json").read_text()) for path in toy.attempts()]
    kill(next(fact["submitter"]["pid"] for fact in facts if fact["name"] == second))
    until(lambda: toy.states() == {first: "cancelled", second: "interrupted"}, 400)
    toy.edit("resources: {", "resources: {setup: [echo ready], ")
    assert "2 done" in toy("retry", "--executor", "pbs", "--wait", expect=None).out + toy(*run, "--wait").out
    assert "perplexity" in toy("table").out
    assert sum(path.read_text().startswith("ready\n") for path in toy.runs.glob(".pbs/*/*_log.out")) == 2


@pytest.mark.long
def test_cells_run_on_slurm_by_its_programs_for_users_of_pbs(gpas_pbs: None, cluster: Cluster, tmp_path: Path) -> None:
    qsub = shutil.which("qsub")
    if qsub is None or "slurm" not in Path(qsub).read_bytes().decode(errors="replace").lower():
        pytest.skip("needs qsub of SLURM: apt-get install slurm-wlm-torque")
    _through_its_life(SlurmToy(tmp_path / "50%j of 'a' project", cluster, steps=1500))


@pytest.mark.long
def test_cells_run_on_openpbs(gpas_pbs: None, tmp_path: Path) -> None:
    qstat = shutil.which("qstat")
    if (
        qstat is None
        or "pbs_version" not in (done := subprocess.run([qstat, "-B", "-f"], capture_output=True, text=True)).stdout
    ):
        pytest.skip("needs a server of OpenPBS" if qstat is None else f"qstat: {done.stderr.strip()[:80]}")
    toy = Toy(tmp_path / "50%j of 'a' project", steps=1500)
    toy.edit("    table:", f"    resources: {RESOURCES.format(more='')}\n    table:")
    _through_its_life(toy)
