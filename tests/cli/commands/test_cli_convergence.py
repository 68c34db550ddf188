"""`gpas table --value speedup`, `--best` and claims about a speed-up, in a project with recorded curves."""

from pathlib import Path

import pytest
from cases import file_text
from face import FOUR, Face, gpas, tiny

from gpas_cli.report import query

CLAIMS = file_text("experiments/faster.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Face:
    """Return a project in which the gate lowers the loss from 10 to 9, and with it all of the curve."""
    return of_losses(tmp_path / "project", {"gpas-s1": 90.0, "gpas-s2": 90.0})


def of_losses(folder: Path, gated: dict[str, float]) -> Face:
    """Return a project of trainings of 400 updates whose bases end with 101 and 102."""
    made = Face(folder, tiny(FOUR).replace("steps: 40", "steps: 400") + CLAIMS)
    for entry in made.cells():
        made.trained(entry, gated.get(entry.name, 100.0 + entry.axes["seed"]), stop=400)
    return made


def test_a_method_that_is_below_its_base_from_the_start_is_as_many_times_faster(project: Face) -> None:
    base, gated = project("table", "--value", "speedup", "--value", "updates_to", "--json").json["rows"]
    assert [cell["mean"] for cell in base["cells"]] == [1.0, 400.0]
    speedup, updates = gated["cells"]
    assert (speedup["mean"], updates["mean"]) == (20.0, 20.0)
    assert speedup["delta"]["n"] == 2
    said = project("table", "--value", "speedup").out
    assert "speedup: until the base's final training loss, a mean over 5 % of the updates; medians over seeds" in said


def test_the_figure_marks_where_a_method_reaches_the_final_loss_of_its_base(project: Face) -> None:
    drawn = project("figure", "convergence", "tiny", "--json").json
    (panel,), (speed,) = drawn["panels"], drawn["speeds"]
    assert panel["level"] == pytest.approx(10.15 + (4 / 390 + 4 / 400) / 2)  # 10.1 and 10.2, and 4 / update
    assert [one["title"] for one in panel["series"]] == ["Pre-LN", "Pre-LN + GPAS, speed-up 20.00"]
    assert [line["points"] for line in panel["lines"]] == [[[20.0, panel["level"]]]]
    assert (speed["method"], speed["speedups"], speed["updates"]) == ("Pre-LN + GPAS", [20.0, 20.0], [20.0, 20.0])
    back = project("figure", "convergence", "tiny", "--against", "gate=gpas", "-o", "slow.svg").out
    assert "Pre-LN: does not reach the final loss of Pre-LN + GPAS." in back
    assert (project.folder / "slow.svg").is_file()
    project.edit(", against: {gate: none}}", "}", 1)
    assert "declares no `against`; name the base" in project("figure", "convergence", "tiny", expect=2).err
    alone = project("figure", "convergence", "tiny", "--where", "gate=none", "--against", "gate=none", expect=2)
    assert "none of the 2 cells has a finished training whose base has finished too" in alone.err


def test_the_curves_of_a_claim_are_read_once(project: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    curves = query.curves
    monkeypatch.setattr(query, "curves", lambda *of: read.append(of[-1]) or curves(*of))
    part = "{subject: {gate: gpas, seed: SEED}, by: [seed]}"
    project.edit(
        "    subject: {gate: gpas}\n", f"    parts: [{part.replace('SEED', '1')}, {part.replace('SEED', '2')}]\n"
    )
    (claim,) = project("claims", "faster", "--json").json["claims"]
    # 20 times as fast: at update 20 of 400, the first after the window of the mean
    assert [(part["n"], part["effect"]) for part in claim["parts"]] == [(1, 19.0), (1, 19.0)]
    assert read == ["mean_loss"]


def test_a_run_that_never_gets_there_is_later_than_its_end(tmp_path: Path) -> None:
    """One of two never arrives: the median is unknown, and only signs count."""
    made = of_losses(tmp_path / "project", {"gpas-s1": 90.0, "gpas-s2": 110.0})
    (_, gated) = made("table", "--value", "speedup", "--value", "updates_to", "--json").json["rows"]
    assert [cell["mean"] for cell in gated["cells"]] == [0.0, "inf"]
    (part,) = made("claims", "faster", "--json").json["claims"][0]["parts"]
    assert (part["test"], part["effect"]) == ("sign", -1.0)
    assert [seed["effect"] for seed in part["seeds"]] == [19.0, "-inf"]
    said = made("claims", "faster").out
    assert "never" in said
    assert "a run diverged or never got there, so that only signs count" in said


def test_short_trainings_have_no_speed_up(tmp_path: Path) -> None:
    made = Face(tmp_path / "project", tiny(FOUR) + CLAIMS)
    for entry in made.cells():
        made.trained(entry, 90.0)
    said = made("table", "--value", "speedup", expect=2).err
    assert "the mean loss over 5 % of the 40 updates of tiny/s1 is noise" in said
    assert "speedup need trainings of 400 updates or more" in said
    assert "tiny/s1 is noise" in made("claims", "faster").out


@pytest.mark.whole
def test_what_is_derived_is_neither_declared_nor_tuned(project: Face) -> None:
    project.edit(
        "    against: {gate: none}\n    value: speedup\n    expect: higher",
        "    value: speedup\n    expect: {above: 1}",
    )
    assert "'speedup' compares a cell with its base; add `against`" in project("plan", expect=2).err
    project.declare(tiny(FOUR).replace("title: Tiny,", "title: Tiny, value: speedup,"))
    assert "is computed on request: gpas table tiny --value speedup" in project("plan", expect=2).err
    project.declare(tiny(FOUR).replace("seed: [1, 2]", "seed: [1, 2], optim.lr: [1e-3, 2e-3]"))
    said = gpas(project.folder, "table", "--best", "optim.lr", "--value", "speedup", expect=2).err
    assert "the best optim.lr is chosen by a result of the training" in said
    assert "select one: --where optim.lr=0.001" in said


def test_the_best_of_an_axis_and_its_envelope(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", tiny(FOUR).replace("seed: [1, 2]", "seed: [1, 2], optim.lr: [1e-3, 2e-3]"))
    for entry in project.cells():
        project.trained(entry, 100.0 + entry.axes["seed"] + (10.0 if entry.axes["optim.lr"] == 1e-3 else 0.0))
    base, gated = project("table", "--best", "optim.lr", "--json").json["rows"]
    assert [row["cells"][0]["mean"] for row in (base, gated)] == [101.5, 101.5]
    assert {run["name"] for run in base["cells"][0]["others"]} == {"tiny/s1-lr0.001", "tiny/s2-lr0.001"}
    drawn = project("figure", "envelope", "tiny", "--over", "optim.lr", "--json").json
    assert [line["points"] for line in drawn["lines"]] == [[[0.002, 101.5]], [[0.002, 101.5]]]
    said = project("figure", "envelope", "tiny", "--over", "optim.lr", "-o", "rates.svg").out
    assert "Pre-LN: best 101.50 at optim.lr 0.002" in said
    assert (project.folder / "rates.svg").is_file()
    assert "did you mean 'optim.lr'" in project("figure", "envelope", "tiny", "--over", "optim.rl", expect=2).err
