"""`gpas cancel`: cells, whole grids and selections, and a question before many."""

import os
from collections.abc import Iterator

import pytest
from face import START, Face, step

from gpas_cli.errors import Exit
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.claim_set import ClaimSet


@pytest.fixture
def queued(face: Face) -> Iterator[Face]:
    """Yield a grid whose eight cells are claimed by a live `gpas run`; one of them is running."""
    face.runs.mkdir()
    running = face.attempt("pre-s1", ("start", START), ("step", step(1)))
    lock = locks.hold(alive_path(running))
    with ClaimSet(face.runs) as claims:
        claims.take([entry.key for entry in face.entries()])
        yield face
    os.close(lock)


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
    assert "Cancel 4 cells (4 queued)?" in " ".join(said.err.replace("│", " ").split())
    assert asked(queued) == set()
    document = queued("cancel", "--where", "norm=post", "--yes", "--json").json
    assert {cell["name"] for cell in document["cells"]} == asked(queued)
    assert len(document["cells"]) == 4


def test_cancelling_an_unreachable_cell_is_incomplete(face: Face) -> None:
    lock = locks.hold(alive_path(face.attempt("pre-s1", ("start", START), ("step", step(1)))))
    said = face("cancel", "pre-s1", expect=Exit.INCOMPLETE)
    os.close(lock)
    assert "its process cannot be reached from here" in said.out
