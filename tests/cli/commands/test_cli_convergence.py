"""`gpas table --value speedup`, `--best` and claims about a speed-up, in a project with recorded curves."""

from pathlib import Path

import pytest
from face import FOUR, Face, gpas, tiny

from gpas_cli.report import query

CLAIMS = """\
claims:
  faster:
    statement: The gate reaches the base's loss sooner.
    grids: [tiny]
    subject: {gate: gpas}
    against: {gate: none}
    value: speedup
    expect: higher
"""


@pytest.fixture
def project(tmp_path: Path) -> Face:
    """Return a project in which the gate lowers the loss from 10 to 9, and with it all of the curve."""
    made = Face(tmp_path / "project", tiny(FOUR) + CLAIMS)
    for entry in made.cells():
        made.trained(entry, 90.0 if entry.axes["gate"] == "gpas" else 100.0 + entry.axes["seed"])
    return made


def test_a_method_that_is_below_its_base_from_the_start_is_as_many_times_faster(project: Face) -> None:
    base, gated = project("table", "--value", "speedup", "--value", "updates_to", "--json").json["rows"]
    assert [cell["mean"] for cell in base["cells"]] == [1.0, 40.0]
    speedup, updates = gated["cells"]
    assert (speedup["mean"], updates["mean"]) == (4.0, 10.0)
    assert speedup["delta"]["n"] == 2
    said = project("table", "--value", "speedup").out
    assert "training losses are means over 5 % of the updates; a speed-up of 0: never reached" in said


def test_the_figure_marks_where_a_method_reaches_the_final_loss_of_its_base(project: Face) -> None:
    drawn = project("figure", "convergence", "tiny", "--json").json
    (panel,), (speed,) = drawn["panels"], drawn["speeds"]
    assert panel["level"] == pytest.approx(10.15 + 0.1)  # 10.1 and 10.2 at the end, and 4 / 40
    assert [one["title"] for one in panel["series"]] == ["Pre-LN", "Pre-LN + GPAS, speed-up 4.00"]
    assert [line["points"] for line in panel["lines"]] == [[[10.0, panel["level"]]]]
    assert (speed["method"], speed["speedups"], speed["updates"]) == ("Pre-LN + GPAS", [4.0, 4.0], [10.0, 10.0])
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
    assert [part["effect"] for part in claim["parts"]] == [3.0, 3.0]
    assert read == ["loss"]


def test_a_claim_about_a_speed_up_is_judged_by_curves(project: Face) -> None:
    (claim,) = project("claims", "faster", "--json").json["claims"]
    (part,) = claim["parts"]
    assert part["n"] == 2
    assert part["effect"] == 3.0  # four times as fast: at update 10 of 40, the first after the window of the mean


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
    assert "--best optim.lr chooses by a result of the training" in said


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
