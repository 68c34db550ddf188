"""`gpas export --archive`: a reader unpacks it, rebuilds the database and prints the same table."""

import hashlib
import json
import os
import re
import subprocess
import tarfile
import venv
from pathlib import Path
from typing import Any

import faded_plugin
import pytest
import yaml
from cases import file_text
from face import EXPERIMENTS, START, Face, end, gpas
from scored import finish_cells
from test_cli_schema import check

from gpas_cli.errors import Exit
from gpas_cli.events import TextFacts
from gpas_cli.extensions.campaigns.companions import add_seeds, write_tuned
from gpas_cli.extensions.export import ro_crate
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
    (grid,) = gpas(folder, "status", "small", "--json").json["grids"]
    assert grid["states"] == {"done": 4, "failed": 1, "missing": 3}
    assert "gpas table small\n" in (folder / "README.md").read_text()


def test_it_holds_records_journals_and_code_and_nothing_else(finished: Face, tmp_path: Path) -> None:
    document = finished("export", "--archive", "small.tar.gz", "small", "--json").json
    check("export archive", document)
    folder = unpack(finished.folder / "small.tar.gz", tmp_path / "reader")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert document["archive"]["files"] == len(files)
    names = {Path(name).name for name in files}
    assert names == {
        "README.md", "SHA256SUMS", "archive.json", "ro-crate-metadata.json",
        "experiments.yaml", "small.md", "small.csv", ".project.json",
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
    face("export", "--archive", "scored.tar.gz", "scored")
    folder = unpack(face.folder / "scored.tar.gz", tmp_path / "reader")
    assert (folder / "plugins/mine.py").read_text() == PLUGIN


def test_papers_are_included(finished: Face, tmp_path: Path) -> None:
    grids = finished.folder / "mypaper/grids.yaml"
    grids.parent.mkdir()
    theirs = "grids: {theirs: {base: {size: quickstart, data: quickstart, norm: faded}}}"
    grids.write_text(f"version: 1\nplugins: [mine.py]\n{theirs}\n")
    (grids.parent / "mine.py").write_text(PLUGIN)
    finished.declare(EXPERIMENTS.replace("version: 1\n", "version: 1\ninclude: [./mypaper, raptr]\n"))
    finished("export", "--archive", "small.tar.gz", "small")
    folder = unpack(finished.folder / "small.tar.gz", tmp_path / "reader")
    assert (folder / "mypaper/mine.py").read_text() == PLUGIN
    assert (folder / f"runs/.code/{CODE}/gpas_cli/papers/raptr/numbers.yaml").is_file()
    assert set(json.loads((folder / "archive.json").read_text())["papers"]) == {"mypaper", "raptr"}
    assert "theirs" in gpas(folder, "status", "theirs").out
    grids.write_text("version: 1\nresources: {all: {setup: [export TOKEN=secret]}}\n")
    refused = finished("export", "--archive", "small.tar.gz", "small", expect=Exit.USAGE).err
    assert "mypaper/grids.yaml:2:27: resources.setup: is for experiments.yaml or the site's profile" in refused
    assert "secret" not in refused


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


SECRET = "S3CRETTOK"
SPELLINGS = yaml.safe_load(file_text("golden/removed_secrets.yaml"))


@pytest.mark.parametrize(("spelling", "newline"), [*((spelling, "\n") for spelling in SPELLINGS), ("lines", "\r\n")])
def test_values_that_may_be_secret_are_removed_and_all_else_of_the_file_stays(
    finished: Face, tmp_path: Path, spelling: str, newline: str
) -> None:
    before, after = (
        "# Ünï 😀\n"
        + EXPERIMENTS.replace("title: Small", f"title: &t {value}\n    resources: {{setup: [{value}]}}")
        + f"{resources}\n"
        for value, resources in zip((SECRET, "'***'"), SPELLINGS[spelling].values(), strict=True)
    )
    if spelling != "elsewhere":
        before, after = (text.replace(f"&t {value}", "Small") for text, value in ((before, SECRET), (after, "'***'")))
    (finished.folder / "experiments.yaml").write_text(before, newline=newline)
    said = finished("export", "--archive", "small.tar.gz", "small").out
    assert "removed, because they may be secrets: the values of resources.environment, setup, python, sbatch" in said
    folder = unpack(finished.folder / "small.tar.gz", tmp_path / "reader")
    with (folder / "experiments.yaml").open(newline="") as file:
        assert file.read() == after.replace("\n", newline)
    keys = {cell["key"] for cell in finished("plan", "small", "--json").json["cells"]}
    assert {cell["key"] for cell in gpas(folder, "plan", "small", "--json").json["cells"]} == keys


def test_values_that_a_cell_shares_are_refused(finished: Face) -> None:
    finished.declare(EXPERIMENTS.replace('"text/*.txt"', '&path "text/*.txt"') + "resources: {all: {setup: [*path]}}\n")
    said = finished("export", "--archive", "small.tar.gz", "small", expect=Exit.USAGE).err
    assert "experiments.yaml:6:32: these values may be secrets and cannot be removed: an alias shares one" in said
    assert not (finished.folder / "small.tar.gz").exists()


def test_records_of_earlier_versions_are_archived_without_values(finished: Face, tmp_path: Path) -> None:
    values = {"environment": "HF_TOKEN={}", "setup": "{}", "python": "{}", "sbatch": "--x={}"}

    def filled(secret: str) -> dict[str, Any]:
        made = {name: value.format(secret) for name, value in values.items()}
        return {name: value if name == "python" else [value] for name, value in made.items()} | {"account": "lab"}

    (path, *others) = finished.runs.glob("??/*/001/attempt.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "resources": record["resources"] | filled(SECRET), "later": 1}))
    shown = finished("table", "small", "--format", "csv").out
    document = finished("export", "--archive", "small.tar.gz", "small", "--json").json
    check("export archive", document)
    name = f"runs/{path.relative_to(finished.runs)}"
    assert document["archive"]["removed"] == [name]
    folder = unpack(finished.folder / "small.tar.gz", tmp_path / "reader")
    assert not [found for found in folder.rglob("*") if found.is_file() and SECRET in found.read_text()]
    public = {**record, "resources": record["resources"] | filled("***"), "later": 1}
    assert json.loads((folder / name).read_text()) == public
    assert all(
        (folder / "runs" / other.relative_to(finished.runs)).read_bytes() == other.read_bytes() for other in others
    )
    assert "5 attempts" in gpas(folder, "db", "rebuild", "--yes").out
    assert gpas(folder, "table", "small", "--format", "csv").out == shown


def test_a_record_that_cannot_be_read_is_not_archived(finished: Face) -> None:
    path = next(finished.runs.glob("??/*/001/attempt.json"))
    path.write_text(path.read_text()[:-9])
    assert f"{path}: not valid JSON" in finished("export", "--archive", "a.tar.gz", "small", expect=None).err


def test_what_cannot_be_archived_is_said(face: Face) -> None:
    assert "nothing to archive" in face("export", "--archive", "a.tar.gz", "small", expect=Exit.USAGE).err
    assert ".tar.gz" in face("export", "--archive", "a.zip", "small", expect=Exit.USAGE).err
    assert "did you mean 'small'?" in face("export", "--archive", "a.tar.gz", "smal", expect=Exit.USAGE).err
    assert "name a cell and the folder" in face("export", "small", expect=Exit.USAGE).err
    face.ended("pre-s1", "done", 5.0)
    assert "cannot be written" in face("export", "--archive", "no/a.tar.gz", "small", expect=Exit.USAGE).err


def test_code_whose_copy_is_gone_is_named(face: Face) -> None:
    made = face.ended("pre-s1", "done", 5.0)
    made.attempt_path.write_text(made.attempt_path.read_text().replace('"c0de"', f'"{CODE}"'))
    assert f"the copy of code {CODE} is gone" in face("export", "--archive", "small.tar.gz", "small").out


def graph(folder: Path) -> dict[str, dict[str, Any]]:
    return {one["@id"]: one for one in json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]}


@pytest.fixture
def crate(finished: Face, tmp_path: Path) -> Path:
    text = ("data", {"source": "stdlib", "fingerprint": "a1", "validation_fingerprint": "b2"})
    shards = ("verified", {"split": "train", "shards": {"00000": "c3" * 32}})
    finished.recorded(finished.entry("post-s2"), ("start", START), text, shards, ("outcome", end("done", metrics={})))
    finished("export", "--archive", "small.tar.gz", "small")
    return unpack(finished.folder / "small.tar.gz", tmp_path / "reader")


def test_an_archive_is_described_for_machines(crate: Path) -> None:
    found = graph(crate)
    parts = [part["@id"] for part in found["./"]["hasPart"]]
    assert all((crate / part).exists() for part in parts)
    assert {"experiments.yaml", "tables/small.csv", "SHA256SUMS", f"runs/.code/{CODE}/"} <= set(parts)
    actions = [found[one["@id"]] for one in found["./"]["mentions"]]
    assert sorted(one["actionStatus"].removeprefix("http://schema.org/") for one in actions) == [
        *["CompletedActionStatus"] * 5, "FailedActionStatus",
    ]  # fmt: skip
    (failed,) = (one for one in actions if "error" in one)
    assert failed["error"] == "no luck"
    assert all(one["startTime"] <= one["endTime"] and (crate / one["result"]["@id"]).is_dir() for one in actions)
    text = found["#text-a1"]
    assert text["license"] == "not stated; ask the authors"
    (known,) = ro_crate.texts({"source": "stdlib", "path": ""}, TextFacts(fingerprint="d4"), 0.0)
    assert known["license"] == "https://docs.python.org/3/license.html"
    assert re.search(r"Read first on \d{4}-\d\d-\d\d;", text["description"])
    assert [found[shard["@id"]]["sha256"] for shard in text["hasPart"]] == ["c3" * 32]


VALIDATION = """
import gzip, json, sys
import rdflib.plugins.shared.jsonld.context as jsonld, requests
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester
CONTEXT = gzip.open(sys.argv[2]).read()
def answer(self, url, **more):
    made = requests.Response()
    made.status_code, made._content, made.url, made.headers["Content-Type"] = 200, CONTEXT, url, "application/ld+json"
    return made
type(HttpRequester()).get = answer  # no network
jsonld.source_to_json = lambda source, *more: (json.loads(CONTEXT), None)
for profile in ("ro-crate-1.2", "workflow-run-crate-0.5"):
    asked = services.ValidationSettings(
        rocrate_uri=sys.argv[1], profile_identifier=profile, requirement_severity=models.Severity.REQUIRED
    )
    for issue in services.validate(asked).get_issues():
        print(profile, issue.check.identifier, issue.message)
    print(profile, "checked")
"""


@pytest.mark.release
def test_its_description_is_valid(crate: Path, tmp_path: Path) -> None:
    """The validator of the RO-Crate community, in an environment of its own: it asks for an older rich."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "roc-validator==0.13.0"], check=True)
    context = Path(__file__).parents[1] / "golden/ro-crate-1.2-context.jsonld.gz"
    said = subprocess.run([python, "-c", VALIDATION, crate, context], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["ro-crate-1.2 checked", "workflow-run-crate-0.5 checked"]
