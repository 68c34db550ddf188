"""A grid was edited: its old cells stay within reach by their keys, and are listed where it is asked for."""

import shutil
from pathlib import Path

import pytest
from finished import Finished

from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.store.rundir import stage_dir


@pytest.fixture
def project(tmp_path: Path) -> Finished:
    """Four finished cells of 30 updates; the grid now declares four of 60."""
    made = Finished(tmp_path / "project")
    made.finish_all()
    made.old = {cell.name: cell.key for cell in made.cells()}
    made.declare(steps=60)
    return made


def test_results_that_no_grid_declares_are_listed(project: Finished) -> None:
    assert {cell["state"] for cell in project.json("status", "--all")["cells"]} == {"missing"}
    cells = project.json("status", "--undeclared")["cells"]
    assert {cell["name"]: (cell["key"], cell["state"]) for cell in cells} == {
        name: (key, "done") for name, key in project.old.items()
    }
    said = project.gpas("status", "--undeclared").stdout
    assert "4 cells in runs/ that no grid declares: 4 done" in said
    assert project.old["gpas-s1"][:8] in said
    assert "no grid declares" not in project.gpas("status").stdout  # nothing of it is under way
    project.declare()
    assert "0 cells in runs/ that no grid declares" in project.gpas("status", "--undeclared").stdout


def test_a_key_finds_its_cell_in_every_command(project: Finished) -> None:
    key = project.old["gpas-s1"]
    why = project.gpas("why", key[:8]).stdout
    assert f"tiny/gpas-s1  pretrain {key}" in why
    assert "perplexity 103" in why
    assert "gate" in why
    assert "| printed by the job" in project.gpas("logs", key[:8]).stdout
    assert "x <- " in project.gpas("explain", key[:8]).stdout
    assert "has no checkpoint of its pretrain" in project.gpas("export", key[:8], "out", expect=2).stderr
    assert "is done" in project.gpas("cancel", key[:8], expect=2).stderr
    assert "no cell 'ffffffff'" in project.gpas("why", "ffffffff", expect=2).stderr
    assert "no cell 'gpas-s3'" in project.gpas("why", "gpas-s3", expect=2).stderr


def test_a_key_draws_its_curves(project: Finished) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    key = project.old["gpas-s1"]
    assert project.json("figure", key[:8], "--what", "loss", "--out", "curve")["cells"] == ["tiny/gpas-s1"]
    assert (project.folder / "curve.svg").exists()


def test_a_key_that_only_the_database_has_is_explained(project: Finished) -> None:
    project.gpas("sync")
    key = project.old["gpas-s1"]
    shutil.rmtree(stage_dir(project.runs, key))
    why = project.gpas("why", key[:8]).stdout
    assert "perplexity 103" in why
    assert "its run directory is gone" in why


def test_an_undeclared_running_cell_is_shown_and_can_be_cancelled(project: Finished) -> None:
    project.declare(steps=90)
    cell = project.cells()[0]
    waiting = project.attempt(cell)
    (waiting.path / "exit.json").write_text('{"code": 75, "signal": null}')
    project.declare(steps=60)
    submitter = Submitter(project.runs)
    try:
        write_claim(project.runs, cell.key, submitter)
        said = project.gpas("status").stdout
        assert "1 cell that no grid declares any more: 1 queued; `gpas status --undeclared` lists them" in said
        states = {c["key"]: c["state"] for c in project.json("status", "--undeclared", "--state", "queued")["cells"]}
        assert states == {cell.key: "queued"}
        project.gpas("cancel", cell.key[:8])
        assert (stage_dir(project.runs, cell.key) / "cancel.json").exists()
    finally:
        submitter.close()


def test_a_cell_that_cannot_be_read_is_left_out(project: Finished) -> None:
    attempt = next(project.runs.glob(f"??/{project.old['gpas-s1']}/001/attempt.json"))
    attempt.write_text(attempt.read_text().replace('"scheme"', '"sceme"'))
    assert len(project.json("status", "--undeclared")["cells"]) == 3
