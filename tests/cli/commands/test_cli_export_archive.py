"""`gpas export --archive`: a reader unpacks it, rebuilds the database and prints the same table."""

import hashlib
import json
import os
import re
import tarfile
from pathlib import Path

import faded_plugin
import pytest
from attempts import write_events
from face import EXPERIMENTS, TRAINED, Face, gpas
from scored import finish_cells
from test_cli_schema import check

from gpas_cli.errors import Exit
from gpas_cli.events import Outcome, Warned
from gpas_cli.grid.companions import add_seeds, write_tuned
from gpas_cli.store.snapshot import PACKAGE, snapshot_path

CODE = "0123456789abcdef"
PLUGIN = faded_plugin.PLUGIN.format(trace=os.devnull)


@pytest.fixture
def finished(face: Face) -> Face:
    """Return a project with four results of a grid, a failed attempt, a checkpoint and a copy of the code."""
    for name, perplexity in {"pre-s1": 5.0, "pre-s2": 6.0, "pre-gpas-s1": 4.0, "pre-gpas-s2": 5.5}.items():
        made = face.ended(name, "done", perplexity)
        record = json.loads(made.attempt_path.read_text())
        made.attempt_path.write_text(json.dumps({**record, "code": CODE}))
    (made.checkpoints / "step-00000004").mkdir(parents=True)
    (made.checkpoints / "step-00000004/model.safetensors").write_bytes(b"weights")
    face.ended("post-s1", "failed", cause="no luck")
    folder = snapshot_path(face.runs, CODE) / PACKAGE
    (folder / "packaged/migrations").mkdir(parents=True)
    (folder / "loop.py").write_text("a = 1\n")
    (face.folder / ".env").write_text("TOKEN=secret\n")
    return face


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder,) = target.iterdir()
    return folder


def test_a_reader_rebuilds_the_database_and_prints_the_same_table(finished: Face, tmp_path: Path) -> None:
    forms = ("markdown", "latex", "csv", "json")
    shown = {form: finished("table", "small", "--format", form).out for form in forms}
    traced = finished("why", "small[pre+gpas]", "--json").json["numbers"]
    said = finished("export", "--archive", "small.tar.gz", "small").out
    assert "small -> small.tar.gz: 8 cells, 5 attempts" in said
    folder = unpack(finished.folder / "small.tar.gz", tmp_path / "reader")
    assert "5 attempts" in gpas(folder, "db", "rebuild", "--yes").out
    assert {form: gpas(folder, "table", "small", "--format", form).out for form in forms} == shown
    assert (folder / "tables/small.md").read_text() == shown["markdown"]
    again = gpas(folder, "why", "small[pre+gpas]", "--json").json["numbers"]
    assert again[0]["seeds"] == traced[0]["seeds"]
    assert gpas(folder, "status", "small", "--json").json["grids"][0]["states"] == {
        "done": 4,
        "failed": 1,
        "missing": 3,
    }
    assert "gpas table small\n" in (folder / "README.md").read_text()


def test_it_holds_records_journals_and_code_and_nothing_else(finished: Face, tmp_path: Path) -> None:
    document = finished("export", "--archive", "small.tar", "small", "--json").json
    check("export", document)
    folder = unpack(finished.folder / "small.tar", tmp_path / "reader")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert document["archive"]["files"] == len(files)
    names = {Path(name).name for name in files}
    assert names == {
        "README.md", "SHA256SUMS", "archive.json", "experiments.yaml", "small.md", "small.csv", ".project.json",
        "attempt.json", "journal.jsonl", "loop.py",
    }  # fmt: skip
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files - {"SHA256SUMS"}}
    archived = json.loads((folder / "archive.json").read_text())
    assert (archived["grids"], archived["code"], archived["attempts"]) == (["small"], [CODE], 5)


def test_the_same_content_gives_the_same_bytes(finished: Face) -> None:
    finished("export", "--archive", "small.tar.gz", "small", "shares")
    first = (finished.folder / "small.tar.gz").read_bytes()
    for path in finished.folder.rglob("*"):
        os.utime(path, (1.6e9, 1.6e9), follow_symlinks=False)
    finished("export", "--archive", "small.tar.gz", "small", "shares")
    assert (finished.folder / "small.tar.gz").read_bytes() == first


def test_plugins_and_files_of_tasks_are_included(face: Face, tmp_path: Path) -> None:
    finish_cells(face)
    text = (face.folder / "experiments.yaml").read_text()
    (face.folder / "plugins").mkdir()
    (face.folder / "plugins/mine.py").write_text(PLUGIN)
    # An anchor may be defined twice.
    face.declare(text.replace("version: 1\n", "version: &a 1\nplugins: &a [plugins/mine.py]\n"))
    face("export", "--archive", "scored.tgz", "scored")
    folder = unpack(face.folder / "scored.tgz", tmp_path / "reader")
    assert (folder / "plugins/mine.py").read_text() == PLUGIN


def test_added_seeds_and_tuned_settings_are_included(finished: Face, tmp_path: Path) -> None:
    config = finished.folder / "experiments.yaml"
    add_seeds(config, {"small": {"pre": [3]}})
    write_tuned(config, "small", "optim.lr", {"pre": 1e-3})  # the rate of its cells in small, which are finished
    finished("export", "--archive", "tuned.tar.gz", "small", "small-tuned")
    folder = unpack(finished.folder / "tuned.tar.gz", tmp_path / "reader")
    grids = gpas(folder, "status", "small", "small-tuned", "--json").json["grids"]
    assert [sum(grid["states"].values()) for grid in grids] == [9, 2]


@pytest.mark.parametrize("name", ["journal.jsonl", "attempt.json"])
def test_a_link_out_of_the_project_is_refused(finished: Face, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    path = next(finished.runs.glob(f"??/*/001/{name}"))
    path.rename(outside)
    path.symlink_to(outside)
    said = finished("export", "--archive", "small.tar.gz", "small", expect=Exit.USAGE).err
    assert f"{path} leads out of {finished.runs}, to {outside}" in said
    assert not (finished.folder / "small.tar.gz").exists()


@pytest.mark.parametrize("name", ["../mine.py", "linked.py"])
def test_a_plugin_outside_the_project_is_refused(finished: Face, tmp_path: Path, name: str) -> None:
    (finished.folder.parent / "mine.py").write_text(PLUGIN)
    (finished.folder / "linked.py").symlink_to(finished.folder.parent / "mine.py")
    finished.declare(EXPERIMENTS.replace("version: 1\n", f"version: 1\nplugins: [{name}]\n"))
    said = finished("export", "--archive", "small.tar.gz", "small", expect=Exit.USAGE).err
    assert f"leads out of {finished.folder}" in said


def test_an_anonymous_archive_names_nobody_and_prints_the_same_table(
    finished: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpas_cli.origin.archive.user_name", lambda _: "ada")
    text = (finished.folder / "experiments.yaml").read_text()
    resources = "resources: {toy: {partition: ada-lab, account: lovelace}}\n"
    finished.declare(f"# ada@login7, {finished.folder}\n{text}{resources}")
    place = {"submission": "s7", "index": 0, "job": "4711", "restart": 0, "nodes": "login7"}
    for path in finished.runs.glob("??/*/001/attempt.json"):
        record = json.loads(path.read_text())
        record["resources"] |= {"partition": "ada-lab", "account": "lovelace"}
        author = {"id": "login7-99", "host": "login7", "pid": 99}
        path.write_text(json.dumps({**record, "submitter": author, "root": str(finished.folder), "slurm": place}))
    warned = Warned(f"job 4711 on login7 of ada cannot write {finished.folder}/runs")
    failed = Outcome("failed", step=4, cause=f"{Path.home()}/x is full")
    write_events(finished.attempt("post-s2", *TRAINED), [warned, failed])
    (snapshot_path(finished.runs, CODE) / PACKAGE / "loop.py").write_text("# by ada\n")
    shown = finished("table", "small", "--format", "csv").out
    document = finished("export", "--archive", "a.tar", "small", "--anonymous", "--json").json
    check("export", document)
    assert document["archive"]["names_left"] == [f"runs/.code/{CODE}/gpas_cli/loop.py: ada"]
    folder = unpack(finished.folder / "a.tar", tmp_path / "reader")
    for path in folder.rglob("*"):
        content = path.read_text() if path.is_file() and path.name != "loop.py" else ""
        for name in ("ada", "login7", "4711", "lovelace", "aaaaaaaaaaaa", str(finished.folder), str(Path.home())):
            assert not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", content), (path, name)
    assert "# user-1@host-" in (folder / "experiments.yaml").read_text()
    assert "6 attempts" in gpas(folder, "db", "rebuild", "--yes").out
    gpas(folder, "db", "check")
    assert gpas(folder, "table", "small", "--format", "csv").out == shown
    said = gpas(folder, "why", "post-s2", "--json").json["stages"][0]["attempts"][0]
    assert said["cause"] == "/home/user/x is full"
    assert said["facts"]["host"].startswith("host-")
    assert "What was removed" in (folder / "README.md").read_text()


def test_cells_that_depend_on_a_personal_path_cannot_be_anonymous(finished: Face) -> None:
    finished.edit('"text/*.txt"', f'"{finished.folder}/text/*.txt"')
    for name in ("pre-s1", "pre-s2"):
        finished.ended(name, "done", 5.0)
    said = finished("export", "--archive", "a.tar", "small", "--anonymous", expect=Exit.USAGE).err
    assert "cells depend on a path or a name that identifies its author" in said
    assert not (finished.folder / "a.tar").exists()
    assert "is for archives" in finished("export", "pre-s1", "x", "--anonymous", expect=Exit.USAGE).err


def test_what_cannot_be_archived_is_said(face: Face) -> None:
    assert "nothing to archive" in face("export", "--archive", "a.tar.gz", "small", expect=Exit.USAGE).err
    assert ".tar.gz" in face("export", "--archive", "a.zip", "small", expect=Exit.USAGE).err
    assert "did you mean 'small'?" in face("export", "--archive", "a.tar", "smal", expect=Exit.USAGE).err
    assert "name a cell and the folder" in face("export", "small", expect=Exit.USAGE).err
    face.ended("pre-s1", "done", 5.0)
    assert "cannot be written" in face("export", "--archive", "no/a.tar", "small", expect=Exit.USAGE).err


def test_code_whose_copy_is_gone_is_named(face: Face) -> None:
    made = face.ended("pre-s1", "done", 5.0)
    made.attempt_path.write_text(made.attempt_path.read_text().replace('"c0de"', f'"{CODE}"'))
    assert f"the copy of code {CODE} is gone" in face("export", "--archive", "small.tar", "small").out
