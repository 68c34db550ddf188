"""`gpas figure convergence`, `gpas table --best` and claims about a speed-up, in a project with recorded curves."""

from pathlib import Path

import pytest
from cases import file_text
from face import FOUR, Face, tiny

from gpas_cli.report import query


@pytest.fixture
def project(tmp_path: Path) -> Face:
    """Return a project in which the gate lowers the loss from 10 to 9, and with it all of the curve."""
    made = Face(
        tmp_path / "project", tiny(FOUR).replace("steps: 40", "steps: 400") + file_text("experiments/faster.yaml")
    )
    for entry, perplexity in zip(made.cells(), (101.0, 102.0, 90.0, 90.0), strict=True):
        made.trained(entry, perplexity, stop=400)
    return made


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
