"""Trunks on the command line: `gpas plan` draws them, `gpas gc` keeps what a cell starts from, `gpas why` names it."""

import os
from dataclasses import replace

from attempts import attempt_at, make_attempt, write_events
from cases import file_text
from face import Face, end

from gpas_cli.checkpoints import path_of
from gpas_cli.events import event_of
from gpas_cli.grid import Entry
from gpas_cli.plan.trunks import trunk
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import current_code

LENGTHS = file_text("experiments/lengths.yaml")
TREE = file_text("experiments/lengths.txt")


def common(face: Face) -> Entry:
    """Return the first trunk of seed 1 as an entry."""
    first = face.entry("pre-steps100-s1", "lengths")
    return replace(first, cell=trunk(first.cell, 80), name=f"{first.name}.trunk80", axes={})


def finished(face: Face, code: str) -> AttemptDir:
    """Record the first trunk of seed 1, with a checkpoint."""
    done = [event_of({"kind": "outcome", **end("done", step=80, metrics={"perplexity": 9.0})})]
    made = attempt_at(face.runs, common(face), done, code=code)
    path_of(made.checkpoints, 80).mkdir(parents=True)
    return made


def test_the_plan_draws_one_tree_for_cells_that_differ_in_the_seed(face: Face) -> None:
    face.declare(LENGTHS)
    plan = face("plan").out
    hours = plan.partition("saves 360 of them, about ")[2].partition(":")[0]
    assert TREE.format(hours=hours) in plan
    assert "6 cells: 6 new; 10 jobs to start, about" in plan
    document = face("plan", "--json").json
    starts = {name: one["update"] for name, one in document["trunks"].items()}
    assert starts["lengths/pre-steps120-s1.trunk100"] == 80
    assert starts["lengths/pre-steps140-s2"] == 100


def test_a_finished_trunk_is_a_root_and_kept_while_a_cell_may_start_from_it(face: Face) -> None:
    face.declare(LENGTHS)
    made = finished(face, current_code())
    assert "lengths/pre-steps100-s1.trunk80  done\n" in face("plan").out
    face("gc", "--rule", "finished", "--delete", "--yes")
    assert path_of(made.checkpoints, 80).exists()
    for steps in (100, 120, 140):
        face.recorded(face.entry(f"pre-steps{steps}-s1", "lengths"), ("outcome", end("done", step=steps)))
    face("gc", "--rule", "finished", "--delete", "--yes")
    assert not path_of(made.checkpoints, 80).exists()


def test_a_trunk_of_other_code_is_named_and_not_used(face: Face) -> None:
    face.declare(LENGTHS)
    finished(face, "0123456789abcdef")
    plan = face("plan").out
    key = common(face).cell.key
    assert "lengths/pre-steps100-s1.trunk80 cannot be continued" in " ".join(plan.split())
    assert f"`gpas retry --done {key}` trains it again" in " ".join(plan.split())
    assert "pre-steps100-s2.trunk80" in plan


def test_status_counts_running_trunks_apart_and_why_names_where_a_cell_starts(face: Face) -> None:
    face.declare(LENGTHS)
    first = common(face)
    lock = locks.hold(alive_path(attempt_at(face.runs, first, [])))
    status = face("status").out
    os.close(lock)
    assert "trunks from which cells start: 1 running; `gpas plan` draws them" in status
    assert "no grid declares" not in status
    entry = face.entry("pre-steps120-s1", "lengths")
    facts = {"trunk": {"key": first.key, "update": 80, "name": first.id}, "stage": "pretrain"}
    made = make_attempt(face.runs, entry.key, {**facts, "cell": entry.cell.to_mapping(), "name": entry.name})
    write_events(made, [event_of({"kind": "outcome", **end("done", step=120)})])
    assert f"starts after update 80 of {first.id} ({first.key})" in face("why", "pre-steps120-s1").out
    (attempt,) = face("why", "pre-steps120-s1", "--json").json["stages"][0]["attempts"]
    assert attempt["trunk"] == {"key": first.key, "update": 80, "name": first.id}


def test_a_trunk_outlives_the_cells_that_start_from_it_until_it_is_cancelled_itself(face: Face) -> None:
    face.declare(LENGTHS)
    first, cell = common(face), face.entry("pre-steps100-s1", "lengths")
    submitter = Submitter(face.runs)
    for entry in (first, cell):
        attempt_at(face.runs, entry, [])
        write_claim(face.runs, entry.key, submitter)
    cancelled = face("cancel", "pre-steps100-s1", "--yes", expect=None).out
    assert (
        f"{first.id} continues, because other cells may start from it; `gpas cancel {first.key}` stops it" in cancelled
    )
    assert "continues" not in face("cancel", first.key, "--yes", expect=None).out
    submitter.close()
