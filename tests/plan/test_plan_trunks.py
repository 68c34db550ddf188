"""Which trainings share their first updates, where each starts, and what that saves."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt, write_events
from launching import FOUR_CORES, entry, key

from gpas_cli.checkpoints import path_of
from gpas_cli.errors import InvalidExperiments
from gpas_cli.events import Outcome
from gpas_cli.grid import Entry
from gpas_cli.plan.plan import plan
from gpas_cli.plan.trunks import jobs_of, needed_trunks, saving, trunk_keys
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.spec.trunk import trunk
from gpas_cli.store.snapshot import current_code

NOW = current_code()


def lasting(steps: int, decay: int = 20, **more: Any) -> Entry:
    optim = {"lr": 1e-3, "warmup": 1, "steps": steps, "batch": 2, "schedule": "wsd", "decay": decay}
    return entry(f"l{steps}", optim=optim | more.pop("optim", {}), **more)


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


def test_a_trunk_is_trained_up_to_each_decay_but_the_last(tmp_path: Path) -> None:
    assert starts(tmp_path, lasting(120), lasting(100), lasting(140)) == {
        "l120-1.trunk80": "",
        "l120-1.trunk100": "g/l120-1.trunk80 80",
        "l120-1": "g/l120-1.trunk100 100",
        "l100-1": "g/l120-1.trunk80 80",
        "l140-1": "g/l120-1.trunk100 100",
    }


def test_a_few_updates_are_not_worth_a_job(tmp_path: Path) -> None:
    assert set(starts(tmp_path, lasting(100, 97), lasting(120, 117))) == {"l100-1", "l120-1"}
    assert "l100-1.trunk82" not in starts(tmp_path, lasting(100), lasting(102), lasting(120))


def test_decays_of_other_lengths_shapes_and_ends_share_as_far_as_the_first_of_them(tmp_path: Path) -> None:
    others = [lasting(120, 40), lasting(100), lasting(100, optim={"min_ratio": 0, "decay_shape": "sqrt"})]
    found = jobs_of(tmp_path, others)
    assert {job.trunk.update if job.trunk else 0 for job in found.values()} == {0, 80}
    assert len(found) == 4


def test_a_declared_constant_training_is_a_trunk_itself(tmp_path: Path) -> None:
    constant = entry("flat", optim={"lr": 1e-3, "warmup": 1, "steps": 80, "batch": 2, "schedule": "constant"})
    assert starts(tmp_path, lasting(100), constant) == {"flat-1": "", "l100-1": "g/flat-1 80"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lasting(100), lasting(120, seed=2)),
        (lasting(100), lasting(120, optim={"lr": 2e-3})),
        (lasting(100), entry(optim={"lr": 1e-3, "warmup": 1, "steps": 120, "batch": 2, "schedule": "cosine"})),
        (lasting(100, depth="layerdrop"), lasting(120, depth="layerdrop")),
        (lasting(100, data="c4", size="71m"), lasting(120, data="c4", size="71m")),
        (lasting(100), lasting(120, data={"like": "quickstart", "eval_tokens": 9})),
    ],
    ids=["seed", "rate", "cosine", "depth", "order", "evaluation"],
)
def test_what_differs_in_an_early_update_is_not_shared(tmp_path: Path, first: Entry, second: Entry) -> None:
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
    assert starts(tmp_path, *entries) == {
        "l100-1.trunk80": "",
        "l100-1": "g/l100-1.trunk80 80",
        "l120-1": "g/l100-1.trunk80 80",
    }
    assert trunk(entries[0].cell, 80).optim.rows == 240
    with pytest.raises(InvalidExperiments, match="has no effect with source: stdlib"):
        lasting(100, optim={"horizon": 120})
    with pytest.raises(InvalidExperiments, match="90 is before the last of the 100 steps"):
        lasting(100, optim={"horizon": 90}, **more)


def test_a_training_alone_and_one_that_shares_nothing_by_choice_have_no_trunk(tmp_path: Path) -> None:
    assert starts(tmp_path, lasting(100)) == {"l100-1": ""}
    apart = [replace(one, resources=Resources(share="off")) for one in (lasting(100), lasting(120))]
    assert starts(tmp_path, *apart) == {"l100-1": "", "l120-1": ""}


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
