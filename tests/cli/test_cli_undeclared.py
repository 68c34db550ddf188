"""A grid was edited: its old cells stay within reach by their keys, and are listed where it is asked for."""

import json
from pathlib import Path

import pytest
from face import FOUR, Face, tiny

from gpas_cli.plan.undeclared import undeclared
from gpas_cli.spec.parse_cell import Catalogue


@pytest.fixture
def project(tmp_path: Path) -> Face:
    """Four finished cells of 40 updates; the grid now declares four of 60."""
    made = Face(tmp_path / "project", tiny(FOUR))
    made.train_all()
    made.old = {cell.name: cell.key for cell in made.cells()}
    made.edit("steps: 40", "steps: 60")
    return made


def test_a_key_draws_its_curves(project: Face) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    key = project.old["gpas-s1"]
    assert project("figure", key[:8], "--what", "loss", "--out", "curve", "--json").json["cells"] == ["tiny/gpas-s1"]
    assert (project.folder / "curve.svg").exists()


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
