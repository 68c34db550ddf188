"""Which trainings share their first updates, where each starts, and what that saves."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events
from cases import cases
from launching import FOUR_CORES, entry, key

from gpas_cli.checkpoints import path_of
from gpas_cli.errors import InvalidExperiments
from gpas_cli.events import Outcome
from gpas_cli.grid import Entry
from gpas_cli.plan.plan import plan
from gpas_cli.plan.trunks import jobs_of, needed_trunks, saving, trunk, trunk_keys
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.store.snapshot import current_code

NOW = current_code()


def lasting(steps: int, decay: int | None = 20, share: str = "auto", **more: Any) -> Entry:
    optim = {"lr": 1e-3, "warmup": 1, "steps": steps, "batch": 2, "schedule": "wsd", "decay": decay}
    optim |= more.pop("optim", {})
    one = entry(f"l{steps}", optim={name: value for name, value in optim.items() if value is not None}, **more)
    return replace(one, resources=Resources(share=share))


def finished(runs: Path, one: Entry, *, steps: int, outcome: str = "done", code: str = NOW) -> Path:
    made = make_attempt(runs, key(one), {"stage": PRETRAIN, "cell": one.cell.to_mapping(), "grid": "old", "code": code})
    write_events(made, [Outcome(outcome, steps)])
    path = path_of(made.checkpoints, steps)
    path.mkdir(parents=True)
    return path


def starts(runs: Path, *entries: Entry) -> dict[str, str]:
    """Return where each training starts, in the order of the jobs."""
    return {
        job.name: f"{job.trunk.name} {job.trunk.update}" if job.trunk else "" for job in jobs_of(runs, entries).values()
    }


@cases("plan/cases.yaml")
def test_where_trainings_start(tmp_path: Path, trainings: list[dict[str, Any]], wanted: dict[str, str]) -> None:
    assert starts(tmp_path, *(lasting(**one) for one in trainings)) == wanted


def test_decays_of_other_lengths_shapes_and_ends_share_as_far_as_the_first_of_them(tmp_path: Path) -> None:
    others = [lasting(120, 40), lasting(100), lasting(100, optim={"min_ratio": 0, "decay_shape": "sqrt"})]
    found = jobs_of(tmp_path, others)
    assert {job.trunk.update if job.trunk else 0 for job in found.values()} == {0, 80}
    assert len(found) == 4


def test_a_declared_constant_training_is_a_trunk_itself(tmp_path: Path) -> None:
    constant = entry("flat", optim={"lr": 1e-3, "warmup": 1, "steps": 80, "batch": 2, "schedule": "constant"})
    assert starts(tmp_path, lasting(100), constant) == {"flat-1": "", "l100-1": "g/flat-1 80"}


@cases("plan/cases.yaml")
def test_what_differs_in_an_early_update_is_not_shared(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = lasting(**one), lasting(**other)
    assert set(starts(tmp_path, first, second).values()) == {""}
    assert trunk_keys([first, second]) <= {key(first), key(second)}


def test_lengths_of_an_axis_that_share_nothing_are_explained(tmp_path: Path) -> None:
    optim = {"lr": 1e-3, "warmup": 1, "batch": 2}
    entries = [replace(entry(optim={**optim, "steps": steps}), axes={"optim.steps": steps}) for steps in (100, 120)]
    (warning,) = plan(tmp_path, entries, machine=FOUR_CORES).code_warnings
    assert warning.endswith("optim.schedule: cosine depends on the length from the start; constant and wsd do not")
    apart = [replace(one, resources=Resources(share="off")) for one in entries]
    assert not plan(tmp_path, apart, machine=FOUR_CORES).code_warnings


def test_a_horizon_gives_lengths_of_a_text_that_is_read_in_part_the_same_batches(tmp_path: Path) -> None:
    more: dict[str, Any] = {"data": "c4", "size": "71m"}
    entries = [lasting(100, optim={"horizon": 120}, **more), lasting(120, **more)]
    assert [one.cell.optim.rows for one in entries] == [240, 240]
    assert trunk(entries[0].cell, 80).optim.rows == 240
    with pytest.raises(InvalidExperiments, match="has no effect with source: stdlib"):
        lasting(100, optim={"horizon": 120})
    with pytest.raises(InvalidExperiments, match="90 is before the last of the 100 steps"):
        lasting(100, optim={"horizon": 90}, **more)


def test_a_finished_constant_training_is_continued(tmp_path: Path) -> None:
    optim = {"lr": 1e-3, "warmup": 1, "batch": 2, "schedule": "constant"}
    before, now = (entry("flat", optim={**optim, "steps": steps}) for steps in (60, 90))
    checkpoint = finished(tmp_path, before, steps=60)
    assert starts(tmp_path, now) == {"flat-1": "old/c 60"}
    assert starts(tmp_path, lasting(100)) == {"l100-1": "old/c 60"}
    assert needed_trunks(tmp_path, [now]) == {key(before)}
    other = tmp_path / "other"
    finished(other, before, steps=60, code="0123456789abcdef")
    assert starts(other, now) == {"flat-1": ""}
    shutil.rmtree(checkpoint)
    assert starts(tmp_path, now) == {"flat-1": ""}
    assert needed_trunks(tmp_path, [now]) == set()


@pytest.mark.parametrize("outcome", ["done", "diverged"])
def test_a_trunk_that_cannot_be_continued_is_not_trained_again(tmp_path: Path, outcome: str) -> None:
    entries = [lasting(100), lasting(120)]
    cell = trunk(entries[0].cell, 80)
    checkpoint = finished(tmp_path, Entry(cell=cell, grid="g", name="t", axes={}), steps=80, outcome=outcome)
    shutil.rmtree(checkpoint)
    assert starts(tmp_path, *entries) == {"l100-1": "", "l120-1": ""}
    (warning,) = plan(tmp_path, entries, machine=FOUR_CORES).code_warnings
    assert warning.startswith("g/l100-1.trunk80 cannot be continued and is not used")
    assert f"`gpas retry --done {cell.key}` trains it again" in warning


def test_what_has_begun_by_itself_goes_on_by_itself(tmp_path: Path) -> None:
    begun, fresh = lasting(100), lasting(120)
    finished(tmp_path, begun, steps=40, outcome="interrupted")
    assert starts(tmp_path, begun, fresh) == {"l100-1": "", "l120-1": ""}
    assert starts(tmp_path, begun, fresh, lasting(140)).keys() == {"l120-1.trunk100", "l100-1", "l120-1", "l140-1"}


def test_the_plan_counts_what_is_saved(tmp_path: Path) -> None:
    entries = [lasting(100), lasting(120)]
    made = plan(tmp_path, entries, machine=FOUR_CORES)
    alone = plan(tmp_path, [replace(one, resources=Resources(share="off")) for one in entries], machine=FOUR_CORES)
    updates, hours = saving(made.estimate.works)
    assert (len(made.jobs), updates) == (3, 80)
    assert hours == pytest.approx(alone.estimate.core_hours - made.estimate.core_hours)
    assert made.uses == sum(made.stages.values())
    assert [row.action for row in made.rows] == ["new", "new"]
