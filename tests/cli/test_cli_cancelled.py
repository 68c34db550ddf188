"""A cell that was cancelled in the queue of a run which has ended since: status, run, retry."""

from face import Face

from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.state import cancellation
from gpas_cli.store.rundir import stage_dir

ONE = ("--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")


def test_it_stays_cancelled_until_it_is_retried(face: Face) -> None:
    (key,) = stage_jobs([face.entry("pre-s1")])
    stage_dir(face.runs, key).mkdir(parents=True)
    cancellation.request(stage_dir(face.runs, key))
    cells = {cell["name"]: cell for cell in face("status", "--json", "small").json["cells"]}
    assert (cells["pre-s1"]["state"], cells["pre-s2"]["state"]) == ("cancelled", "missing")
    assert cells["pre-s1"]["evidence"] == "cancelled before it started"
    said = face("run", "grid", "small", *ONE, "--executor", "local", expect=3).out
    assert "cancelled: small/pre-s1: already cancelled: cancelled before it started" in said
    assert said.endswith("`gpas retry` runs cancelled cells again.\n")
    assert not (face.folder / "ran.txt").exists()
    face("retry", "small/pre-s1", "--executor", "local")
    assert (face.folder / "ran.txt").read_text().startswith("pre-s1 1 pretrain")
    assert face("status", "--json", "small").json["cells"][0]["state"] == "done"
    face("run", "grid", "small", *ONE, "--executor", "local")


def test_retry_takes_grids_and_conditions(face: Face) -> None:
    for name in ("pre-s1", "pre-s2"):
        face.ended(name, "failed", cause="no luck")
    planned = face("retry", "small", "--where", "seed=2", "--dry-run", "--executor", "local").out
    assert "small/pre-s2" in planned
    assert "small/pre-s1" not in planned
    assert "no cell has seed '2'" in face("retry", "pre-s1", "--where", "seed=2", "--dry-run", expect=2).err
