"""A grid was edited: its old cells stay within reach by their keys, and are listed where it is asked for."""

import json
from pathlib import Path

import pytest
from face import FOUR, Face, tiny

from gpas_cli.plan.undeclared import undeclared
from gpas_cli.spec.parse_cell import Catalogue
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.store.rundir import stage_dir


@pytest.fixture
def project(tmp_path: Path) -> Face:
    """Four finished cells of 40 updates; the grid now declares four of 60."""
    made = Face(tmp_path / "project", tiny(FOUR))
    made.train_all()
    made.old = {cell.name: cell.key for cell in made.cells()}
    made.edit("steps: 40", "steps: 60")
    return made


def test_results_that_no_grid_declares_are_listed(project: Face) -> None:
    assert {cell["state"] for cell in project("status", "--all", "--json").json["cells"]} == {"missing"}
    cells = project("status", "--undeclared", "--json").json["cells"]
    assert {cell["name"]: (cell["key"], cell["state"]) for cell in cells} == {
        name: (key, "done") for name, key in project.old.items()
    }
    said = project("status", "--undeclared").out
    assert "4 cells in runs/ that no grid declares: 4 done" in said
    assert project.old["gpas-s1"][:8] in said
    hint = "4 cells that no grid declares: 4 done; `gpas status --undeclared` lists them\n"
    assert all(project(*words).out.endswith(hint) for words in (["status"], ["status", "tiny", "--where", "seed=1"]))
    project.edit("steps: 60", "steps: 40")
    assert "no grid declares" not in project("status").out
    assert "0 cells in runs/ that no grid declares" in project("status", "--undeclared").out


def test_a_key_finds_its_cell_in_every_command(project: Face) -> None:
    key = project.old["gpas-s1"]
    why = project("why", key[:8]).out
    assert f"tiny/gpas-s1  pretrain {key}" in why
    assert "perplexity 103" in why
    assert "| printed by the job" in project("logs", key[:8]).out
    assert "x <- " in project("explain", key[:8]).out
    assert "has no checkpoint of its pretrain" in project("export", key[:8], "out", expect=2).err
    assert "is done" in project("cancel", key[:8], "--yes", expect=2).err
    assert "no cell 'ffffffff'" in project("why", "ffffffff", expect=2).err
    assert "no cell 'gpas-s3'" in project("why", "gpas-s3", expect=2).err


def test_a_key_draws_its_curves(project: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    key = project.old["gpas-s1"]
    assert project("figure", key[:8], "--what", "loss", "--out", "curve", "--json").json["cells"] == ["tiny/gpas-s1"]
    assert (project.folder / "curve.svg").exists()


def test_an_undeclared_running_cell_is_shown_and_can_be_cancelled(project: Face) -> None:
    project.edit("steps: 60", "steps: 90")
    cell = project.cells()[0]
    waiting = project.waiting(cell)
    (waiting.path / "exit.json").write_text('{"code": 75, "signal": null}')
    project.edit("steps: 90", "steps: 60")
    submitter = Submitter(project.runs)
    try:
        write_claim(project.runs, cell.key, submitter)
        said = project("status").out
        hint = "5 cells that no grid declares: 4 done, 1 queued; `gpas status --undeclared` lists them, `gpas cancel"
        assert hint in said
        states = {
            c["key"]: c["state"] for c in project("status", "--undeclared", "--state", "queued", "--json").json["cells"]
        }
        assert states == {cell.key: "queued"}
        project("cancel", cell.key[:8], "--yes")
        assert (stage_dir(project.runs, cell.key) / "cancel.json").exists()
    finally:
        submitter.close()


def test_a_cell_that_cannot_be_read_is_left_out(project: Face) -> None:
    attempt = next(project.runs.glob(f"??/{project.old['gpas-s1']}/001/attempt.json"))
    attempt.write_text(attempt.read_text().replace('"scheme"', '"sceme"'))
    assert len(project("status", "--undeclared", "--json").json["cells"]) == 3


def test_resources_of_an_earlier_version_without_a_unit_are_still_read(project: Face) -> None:
    """SLURM's megabytes and minutes, which a file may no longer have."""
    attempt = next(project.runs.glob(f"??/{project.old['gpas-s1']}/001/attempt.json"))
    record = json.loads(attempt.read_text())
    record["resources"] |= {"mem": "4000", "time": "90"}
    attempt.write_text(json.dumps(record))
    (read,) = (entry for entry in undeclared(project.runs, [], Catalogue()) if entry.name == "gpas-s1")
    assert (read.resources.mem, read.resources.time) == ("4000", "90")
    assert read.resources.cpus == record["resources"]["cpus"]
