"""`--shrink`: a smoke test of a grid in a place of its own, with a reason for each cell that fails."""

import json

from face import Face

from gpas_cli.cli.views.plan import _shown
from gpas_cli.errors import Exit

ONE = ("--where", "norm=pre")


def test_a_smoke_test_leaves_the_results_of_the_project_alone(face: Face) -> None:
    face.ended("pre-s1", "done", 4.0)
    before = sorted(str(path) for path in face.runs.rglob("*"))
    said = face("run", "small", "--shrink", *ONE).out
    assert "optim.steps" in said
    assert "notes" not in said
    assert "2 cells with further seeds left out" in said
    assert "2 done" in said
    assert sorted(str(path) for path in face.runs.rglob("*")) == before
    assert not (face.folder / "cache").exists()
    (folder,) = (face.folder / ".gpas" / "shrunk").iterdir()
    assert len(list(folder.glob("runs/??/*/001"))) == 2
    assert str(folder) in said
    again = face("run", "small", "--shrink", *ONE).out
    assert "2 done" in again
    assert len(list(folder.glob("runs/??/*/0*"))) == 2  # results of this version of the code are not obtained again


def test_each_failing_cell_is_named_with_its_reason(face: Face) -> None:
    (face.folder / "acts.json").write_text(json.dumps({"pre-gpas-s1": "fail"}))
    said = face("run", "small", "--shrink", *ONE, expect=Exit.FAILED).out
    assert "failed: small/pre-gpas-s1: no luck" in said
    assert "small/pre-gpas-s1: log in " in said
    assert "1 done, 1 failed" in said
    (face.folder / "acts.json").unlink()
    assert "2 done" in face("run", "small", "--shrink", *ONE).out  # a failed cell is tried again


def test_seeds_that_are_asked_for_all_run(face: Face) -> None:
    document = face("run", "small", "--shrink", *ONE, "--where", "seed=1,2", "--json").json
    assert len(document["cells"]) == 4
    assert document["shrunk"]["left_out"] == 0


def test_the_plan_of_a_smoke_test_changes_nothing(face: Face) -> None:
    planned = face("plan", "small", "--shrink").out
    assert "4 cells: 4 new; 4 jobs to start" in planned
    assert "optim.steps" in planned
    document = face("run", "small", "--shrink", "--dry-run", "--json").json
    steps = next(one for one in document["shrunk"]["settings"] if one["setting"] == "optim.steps")
    assert (steps["before"], steps["after"]) == ([4], [2])
    assert not (face.folder / ".gpas").exists()


def test_options_without_a_meaning_for_a_smoke_test_are_refused(face: Face) -> None:
    assert "leave out --gpu" in face("plan", "--gpu", "H100", "--shrink", expect=Exit.USAGE).err
    assert "unknown executor 'slrm'" in face("run", "small", "--shrink", "--executor", "slrm", expect=Exit.USAGE).err


def test_changes_of_every_grid_can_be_shown() -> None:
    """Lists of numbers, such as the learning rates of a sweep, are spelled like single ones."""
    values = [[1e-5, 2e-5, 3e-5, 5e-5], [1000, 7], True, ""]
    assert _shown(values) == "[1e-05, 2e-05 and 2 more], [1,000, 7], True, ''"
