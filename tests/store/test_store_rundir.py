"""Run directories: the files of an attempt, the copy of the code, and a reader written from the documentation."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import run_reader
from attempts import make_attempt
from documentation import DOCS
from end_to_end import Toy, jobs_run_here
from face import Face, alive

import gpas_cli
from gpas_cli import trust
from gpas_cli.errors import GpasError, StoreError
from gpas_cli.schedule.batch.script import _VERIFY
from gpas_cli.store import rundir
from gpas_cli.store.rundir import all_attempts, attempts, read_json, stage_dir, write_json
from gpas_cli.store.snapshot import (
    _BYTE_CODE,
    _read_files,
    copy_snapshot,
    git_facts,
    snapshot,
    snapshot_files,
    snapshot_path,
)

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_attempts_are_numbered_from_one_and_keep_their_record(tmp_path: Path) -> None:
    first = make_attempt(tmp_path, KEY, {"schema": 1, "stage": "pretrain", "number": 99})
    second = make_attempt(tmp_path, KEY, {"schema": 1, "stage": "pretrain"})
    assert first.path == tmp_path / "01" / KEY / "001"
    asked = first.read_attempt()
    assert (asked.schema, asked.stage, asked.key, asked.number) == (1, "pretrain", KEY, 1)
    assert (second.number, second.key, second.relative) == (2, KEY, f"01/{KEY}/002")
    assert attempts(tmp_path, KEY) == [first, second]


def test_numbers_sort_as_numbers_and_are_not_used_again(tmp_path: Path) -> None:
    for number in (2, 999, 1000):
        (stage_dir(tmp_path, KEY) / f"{number:03d}").mkdir(parents=True)
    assert [attempt.number for attempt in attempts(tmp_path, KEY)] == [2, 999, 1000]
    assert make_attempt(tmp_path, KEY, {}).number == 1001


def test_other_directories_are_ignored(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, KEY, {})
    for stray in ("README", "01/notes/001", f"02/{KEY}/001", f"01/{KEY}/.new-x", f"01/{KEY}/1", f"01/{KEY}/claim"):
        (tmp_path / stray).mkdir(parents=True)
    (stage_dir(tmp_path, KEY) / "002").write_text("a file")
    assert list(all_attempts(tmp_path)) == [attempt]


def test_attempts_are_listed_by_key_and_number(tmp_path: Path) -> None:
    made = [make_attempt(tmp_path, key, {}) for key in (OTHER, KEY, OTHER)]
    assert list(all_attempts(tmp_path)) == [made[1], made[0], made[2]]
    assert list(all_attempts(tmp_path / "nowhere")) == []
    assert attempts(tmp_path, "0" * 16) == []


@pytest.mark.parametrize("key", ["", "../../etc", "0123456789abcdeF", "0123456789abcdef0"])
def test_a_key_is_sixteen_hex_digits(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a content key"):
        stage_dir(tmp_path, key)


def test_concurrent_attempts_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: make_attempt(tmp_path, KEY, {"asked": n}), range(40)))
    assert sorted(attempt.number for attempt in made) == list(range(1, 41))
    assert sorted(read_json(attempt.attempt_path)["asked"] for attempt in made) == list(range(40))
    assert len(list(stage_dir(tmp_path, KEY).iterdir())) == 40


def test_an_attempt_whose_making_fails_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        make_attempt(tmp_path, KEY, {"cell": {"size": object()}})
    assert list(stage_dir(tmp_path, KEY).iterdir()) == []


def test_json_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    write_json(path, {"code": 0})
    with pytest.raises(TypeError):
        write_json(path, {"code": object()})
    assert read_json(path) == {"code": 0}
    assert [file.name for file in tmp_path.iterdir()] == ["exit.json"]


def test_invalid_json_is_reported_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    with pytest.raises(FileNotFoundError):
        read_json(path)
    for content in (b"", b'{"half": ', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"attempt\.json: not valid JSON"):
            read_json(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(StoreError, match="expected a JSON object, found list"):
        read_json(path)


def test_a_rename_that_fails_for_another_reason_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rundir._rename(tmp_path / "nothing", tmp_path / "001")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package in a checkout, with other files beside it."""
    folder = tmp_path / "checkout" / "gpas_cli"
    (folder / "spec").mkdir(parents=True)
    (folder / "__init__.py").write_text("answer = 1\n")
    (folder / "spec" / "norm.yaml").write_text("a: 1\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"1")
    (folder.parent / "migrations").mkdir()
    (folder.parent / "migrations" / "env.py").write_text("pass\n")
    (folder.parent / "experiments.yaml").write_text("grids: {}\n")
    return folder


def test_the_copy_is_named_after_its_content(tmp_path: Path, package: Path) -> None:
    first = snapshot(tmp_path / "runs", package)
    assert _read_files(first.path / "gpas_cli") == _read_files(package)
    assert (first.path / "gpas_cli" / "packaged" / "migrations" / "env.py").exists()
    assert not (first.path / "gpas_cli" / "__pycache__").is_dir()
    (package.parent / "experiments.yaml").write_text("grids: {a: {}}\n")
    (package / "__pycache__" / "x.pyc").write_bytes(b"2")
    assert snapshot(tmp_path / "runs", package).code == first.code
    (package / "__init__.py").write_text("answer = 2\n")
    second = snapshot(tmp_path / "runs", package)
    assert second.code != first.code
    assert (first.path / "gpas_cli" / "__init__.py").read_text() == "answer = 1\n"
    assert sorted(path.name for path in (tmp_path / "runs" / ".code").iterdir()) == sorted([first.code, second.code])


def test_a_copy_travels_to_other_run_directories_once(tmp_path: Path, package: Path) -> None:
    first = snapshot(tmp_path / "there", package)
    for _ in range(2):
        copy_snapshot(tmp_path / "there", tmp_path / "here", first.code)
    copied = snapshot_path(tmp_path / "here", first.code)
    assert _read_files(copied / "gpas_cli") == _read_files(first.path / "gpas_cli")
    assert [path.name for path in copied.parent.iterdir()] == [first.code]
    shutil.copytree(first.path, first.path.parent / "fedcba9876543210")
    for unknown in ("", "0123456789abcdef", "fedcba9876543210", f"../.code/{first.code}"):
        copy_snapshot(tmp_path / "there", tmp_path / "elsewhere", unknown)
    assert not (tmp_path / "elsewhere").exists()


def test_a_renamed_file_is_another_version(tmp_path: Path, package: Path) -> None:
    first = snapshot(tmp_path / "runs", package)
    (package / "spec" / "norm.yaml").rename(package / "spec" / "gate.yaml")
    assert snapshot(tmp_path / "runs", package).code != first.code


def test_the_packs_of_papers_are_no_code(tmp_path: Path, package: Path) -> None:
    before = snapshot(tmp_path, package)
    (package / "papers/mine").mkdir(parents=True)
    (package / "papers/mine/grids.yaml").write_text("version: 1\n")
    assert snapshot(tmp_path, package) == before
    assert not (before.path / "gpas_cli/papers").exists()


def test_a_changed_copy_is_refused(tmp_path: Path, package: Path) -> None:
    path = snapshot(tmp_path / "runs", package).path / "gpas_cli" / "__init__.py"
    assert path.stat().st_mode & 0o222 == 0
    path.chmod(0o644)
    path.write_text("answer = 3\n")
    with pytest.raises(GpasError, match=f"{path} has been changed .* delete {path.parents[1]}"):
        snapshot(tmp_path / "runs", package)


@pytest.mark.parametrize(
    "name", ["sitecustomize.py", "gpas_cli/spec/norm.cpython-311.pyc", "torch", "gpas_cli/.hidden.py", "gpas_cli/link"]
)
def test_a_copy_with_more_than_was_copied_is_refused(tmp_path: Path, package: Path, name: str) -> None:
    path = snapshot(tmp_path / "runs", package).path / name
    if name == "torch":
        path.mkdir()
    elif "link" in name:
        path.symlink_to("__init__.py")
    else:
        path.write_text("import os\n")
    with pytest.raises(GpasError, match=f"{path} is not part of the code .* delete it"):
        snapshot(tmp_path / "runs", package)


@pytest.mark.parametrize("name", ["gpas_cli/__init__.py", "gpas_cli/spec", "gpas_cli/__pycache__", ""])
def test_a_copy_whose_files_are_links_or_folders_is_refused(tmp_path: Path, package: Path, name: str) -> None:
    copy = snapshot(tmp_path / "runs", package).path
    path = copy / name
    path.rename(tmp_path / "aside")
    if name.endswith(_BYTE_CODE):
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "aside")
    with pytest.raises(GpasError, match=f"{path} has been changed"):
        snapshot(tmp_path / "runs", package)


def test_python_neither_writes_nor_reads_byte_code_of_a_copy(tmp_path: Path, package: Path) -> None:
    copy = snapshot(tmp_path / "runs", package).path
    for path in copy.rglob(_BYTE_CODE):
        path.unlink()  # as in an archive
    assert snapshot(tmp_path / "runs", package).path == copy
    for _ in range(2):
        command = [sys.executable, "-P", "-c", "import gpas_cli; print(gpas_cli.answer)"]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("1\n", "")
        assert snapshot(tmp_path / "runs", package).path == copy


@pytest.mark.parametrize("part", ["", "runs", "runs/.code", "the copy", "gpas_cli/spec", "gpas_cli/__init__.py"])
def test_a_copy_that_others_can_change_is_refused(
    tmp_path: Path, package: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    copy = snapshot(project / "runs", package).path
    path = copy if part == "the copy" else copy / part if "gpas" in part else project / part
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(GpasError, match=f"^{path} is writable by every user, .* `gpas doctor --trust {project}`"):
        snapshot(project / "runs", package, project)
    trust.trust(project)
    assert snapshot(project / "runs", package, project).path == copy


def test_run_directories_elsewhere_are_checked_without_the_project(tmp_path: Path, package: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    project.chmod(0o777)
    assert snapshot(tmp_path / "runs", package, project)
    (tmp_path / "runs").chmod(0o777)
    with pytest.raises(GpasError, match=f"`gpas doctor --trust {tmp_path / 'runs'}`"):
        snapshot(tmp_path / "runs", package, project)


def test_python_imports_the_snapshot_and_not_the_original(tmp_path: Path) -> None:
    copy = snapshot(tmp_path / "runs")
    environ = {**os.environ, "PYTHONPATH": str(copy.path)}
    checkout = Path(gpas_cli.__file__).parents[1]
    code = "import gpas_cli.store.journal as it; print(it.__file__)"
    command = [sys.executable, "-P", "-c", code]
    found = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()) == copy.path / "gpas_cli" / "store" / "journal.py"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_facts_of_a_checkout(package: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(package.parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert git_facts(package) == {}  # a repository that does not track the package says nothing of it
    git("add", "gpas_cli/__init__.py", "gpas_cli/spec")
    git("commit", "-qm", "one")
    (package / ".gitignore").write_text("__pycache__\n.gitignore\n")
    assert git_facts(package) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (package / "__init__.py").write_text("answer = 9\n")
    assert git_facts(package)["dirty"] is True


def test_a_snapshot_without_git_has_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_facts(package) == {}


def test_a_version_has_the_extensions_that_are_used(tmp_path: Path, package: Path) -> None:
    for name in ("glue", "quantised"):
        (package / "extensions" / name).mkdir(parents=True)
        (package / "extensions" / name / "__init__.py").write_text(f"# {name}\n")
    alone, rounded = snapshot(tmp_path / "runs", package), snapshot(tmp_path / "runs", package, uses=("quantised",))
    assert alone.code != rounded.code
    assert [path.name for path in (rounded.path / "gpas_cli/extensions").iterdir() if path.is_dir()] == ["quantised"]
    assert set(snapshot_files(tmp_path / "runs", rounded.code) or ()) >= {"extensions/quantised/__init__.py"}
    (package / "extensions/glue/__init__.py").write_text("# changed\n")
    assert snapshot(tmp_path / "runs", package) == alone
    assert snapshot(tmp_path / "runs", package, uses=("quantised",)) == rounded
    (package / "extensions/quantised/__init__.py").write_text("# changed\n")
    assert snapshot(tmp_path / "runs", package) == alone
    assert snapshot(tmp_path / "runs", package, uses=("quantised",)).code != rounded.code


def test_a_copy_has_the_extensions_of_other_packages(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "site/theirs"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("VERSION = 1\n")
    monkeypatch.setattr("gpas_cli.store.snapshot.folder_of", lambda name: theirs)
    before = snapshot(tmp_path / "runs", package, uses=("theirs 1.0",))
    assert (before.path / "theirs/__init__.py").read_text() == "VERSION = 1\n"
    assert snapshot_files(tmp_path / "runs", before.code) == _read_files(package, ("theirs 1.0",))
    verify = [sys.executable, "-I", "-c", _VERIFY, str(before.path), before.code]
    assert subprocess.run(verify, check=False).returncode == 0
    (theirs / "__init__.py").write_text("VERSION = 2\n")
    assert snapshot(tmp_path / "runs", package, uses=("theirs 1.0",)).code != before.code
    assert snapshot(tmp_path / "runs", package).code != before.code


def read_as_shown(project: Face) -> dict[str, dict]:
    """Read all trainings, compare them with `gpas status` and `gpas table`, and return them by name."""
    read = {stage["name"]: stage for stage in map(run_reader.read_stage, project.runs.glob("[0-9a-f][0-9a-f]/*"))}
    cells = {cell["name"]: cell for cell in project("status", "small", "--json").json["cells"]}
    rows = project("table", "small", "--json", expect=None).json["rows"]
    values = {run["name"]: run["value"] for row in rows for cell in row["cells"] for run in cell["runs"]}
    for name, stage in read.items():
        assert (stage["state"], stage["attempt"]) == (cells[name]["state"], cells[name]["attempt"])
        assert cells[name]["step"] in (max(stage["curve"], default=None), None)  # None: no update since the last start
        ends = [end["metrics"]["perplexity"] for _, _, end in stage["results"]]
        assert values[f"small/{name}"] == (ends[-1] if ends else None)
    return read


def test_a_reader_finds_the_results_of_whole_torn_and_resumed_trainings(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    whole = read_as_shown(toy)
    for journal in toy.runs.glob("*/*/001/journal.jsonl"):
        journal.write_bytes(journal.read_bytes()[:-9])  # in the middle of its outcome
    assert {stage["state"] for stage in read_as_shown(toy).values()} == {"interrupted"}
    with jobs_run_here():
        toy("run", "grid", "--where", "gate=gpas")
    resumed = read_as_shown(toy)
    assert {name: one["attempt"] for name, one in resumed.items() if one["state"] == "done"} == {"pre-gpas-s1": 2}
    assert [resumed[name]["curve"] for name in whole] == [one["curve"] for one in whole.values()]


def test_a_reader_finds_the_states(tmp_path: Path) -> None:
    face = Face(tmp_path / "project")
    names = [entry.name for entry in face.entries()]
    face.ended(names[0], "done", 9.0).path.with_name("rerun.json").write_text('{"t": 1.0, "after": 1}')
    for code, name in zip((1, 130, 0), names[1:], strict=False):
        attempt = face.attempt(name)
        (attempt.path / "exit.json").write_text(json.dumps({"code": code, "signal": None}))
    with alive(attempt):
        states = {one["state"] for one in read_as_shown(face).values()}
    assert states == {"cancelled", "failed", "missing", "running"}


def test_the_line_on_the_page_is_one() -> None:
    text = (DOCS / "reference/run-directory.md").read_bytes()
    assert [event["loss"] for event in run_reader.events(text)] == [4.5]
