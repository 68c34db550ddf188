"""`gpas cancel`: cells, grids and selections, a question before many, and what `run` and `retry` do afterwards."""

from collections.abc import Iterator

import pytest
from face import START, Face, alive, step

from gpas_cli.errors import Exit
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.state import cancellation
from gpas_cli.state.claim_set import ClaimSet
from gpas_cli.store.rundir import stage_dir


@pytest.fixture
def queued(face: Face) -> Iterator[Face]:
    """Yield a grid whose eight cells are claimed by a live `gpas run`; one of them is running."""
    face.runs.mkdir()
    running = face.attempt("pre-s1", ("start", START), ("step", step(1)))
    with alive(running), ClaimSet(face.runs) as claims:
        claims.take([entry.key for entry in face.entries()])
        yield face


def asked(face: Face) -> set[str]:
    """Return the cells that a request cancels before they start."""
    return {e.name for e in face.entries() if (face.runs / e.key[:2] / e.key / "cancel.json").exists()}


def test_one_cell(queued: Face) -> None:
    assert "small/post-s1: " in queued("cancel", "post-s1").out
    assert asked(queued) == {"post-s1"}


def test_a_selection_of_a_grid(queued: Face) -> None:
    queued("cancel", "small", "--where", "norm=post", "--where", "seed=1")
    assert asked(queued) == {"post-s1", "post-gpas-s1"}


def test_many_are_not_cancelled_without_an_answer(queued: Face) -> None:
    said = queued("cancel", "small", "--where", "norm=post", expect=Exit.USAGE)
    assert "Cancel 4 cells (4 queued)?" in " ".join(said.err.split())
    assert asked(queued) == set()
    document = queued("cancel", "--where", "norm=post", "--yes", "--json").json
    assert {cell["name"] for cell in document["cells"]} == asked(queued)
    assert len(document["cells"]) == 4


def test_cancelling_an_unreachable_cell_is_incomplete(face: Face) -> None:
    with alive(face.attempt("pre-s1", ("start", START), ("step", step(1)))):
        assert "Cancel 1 cell (1 running)?" in face("cancel", "pre-s1", expect=Exit.USAGE).err
        said = face("cancel", "pre-s1", "--yes", expect=Exit.INCOMPLETE)
    assert "its process cannot be reached from here" in said.out


ONE = ("--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")


def test_a_cell_that_was_cancelled_in_the_queue_stays_cancelled_until_it_is_retried(face: Face) -> None:
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
