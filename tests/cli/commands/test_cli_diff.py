"""`gpas diff`: two cells, two attempts, the same cell in two projects."""

import shutil
from pathlib import Path

import pytest
from face import START, TRAINED, Face, end, step
from test_cli_schema import check

from gpas_cli.store.snapshot import PACKAGE, snapshot_path


@pytest.fixture
def trained(face: Face) -> Face:
    """Return a project in which a cell with the gate was run with other code, on another machine, than the base."""
    face.ended("pre-s1", "done", 5.0)
    start = {**START, "code": "beef", "host": "elsewhere", "environment": {"torch": "2.10", "gpu": ""}}
    other = [("start", start), *TRAINED[1:4], ("step", step(4, loss=3.5))]
    face.attempt("pre-gpas-s1", *other, ("outcome", end("done", metrics={"perplexity": 4.0})))
    for code, text in {"c0de": "a = 1\nb = 2\n", "beef": "a = 1\nb = 3\nc = 4\n"}.items():
        folder = snapshot_path(face.runs, code) / PACKAGE
        folder.mkdir(parents=True)
        (folder / "loop.py").write_text(text)
        (folder / "same.py").write_text("")
        (folder / "packaged/migrations").mkdir(parents=True)
    return face


def test_settings_numbers_curves_code_and_environment_are_compared(trained: Face) -> None:
    document = trained("diff", "pre-s1", "pre-gpas-s1", "--json").json
    check("diff", document)
    assert {"setting": "gate.activation", "a": None, "b": "silu"} in document["settings"]
    (stage,) = document["stages"]
    assert stage["metrics"]["perplexity"] == {"a": 5.0, "b": 4.0}
    loss = stage["curves"][0]
    assert (loss["name"], loss["common"], loss["first"]) == ("loss", 2, {"step": 4, "a": 4.0, "b": 3.5})
    assert {"setting": "torch", "a": "2.9", "b": "2.10"} in stage["environment"]
    assert {"setting": "host", "a": "there", "b": "elsewhere"} in stage["environment"]
    assert document["code"] == [{"a": "c0de", "b": "beef", "files": [{"path": "loop.py", "added": 2, "removed": 1}]}]


def test_the_text_says_the_same(trained: Face) -> None:
    said = trained("diff", "pre-s1", "pre-gpas-s1", "--code").out
    lines = [line.split() for line in said.splitlines()]
    assert ["perplexity", "5", "4", "-1"] in lines
    assert ["loss", "2", "4:", "4,", "3.5", "4:", "4,", "3.5", "4:", "4,", "3.5"] in lines
    assert "  loop.py  +2 -1" in said
    assert "\n-b = 2\n+b = 3\n+c = 4\n" in said
    assert [line for line in said.splitlines() if line != line.rstrip()] == []


def test_a_copy_of_the_code_that_is_gone_is_said(trained: Face) -> None:
    shutil.rmtree(snapshot_path(trained.runs, "beef"))
    assert "code c0de -> beef: a copy is gone" in trained("diff", "pre-s1", "pre-gpas-s1").out


def test_the_same_cell_of_two_projects_is_compared(trained: Face, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained.folder, copy)
    (copy / "runs/.project.json").unlink(missing_ok=True)
    (copy / "gpas.db").unlink(missing_ok=True)
    document = trained("diff", "pre-s1", "--in", str(copy), "--json").json
    assert (document["settings"], document["code"]) == ([], [])
    assert all(curve["first"] is None for curve in document["stages"][0]["curves"])
    assert trained("diff", "pre-s1", "pre-gpas-s1", "--in", str(copy), "--json").json["settings"]
    theirs = (copy / "experiments.yaml").read_text().replace("default: small", "default: shares")
    theirs = theirs.replace("    include: [{grid: small, where: {norm: pre}}]\n", "").replace("[lns]", "[pre]")
    (copy / "experiments.yaml").write_text(theirs)
    assert trained("diff", "pre-s1", "--in", str(copy), "--json").json["b"] == "small/pre-s1"
