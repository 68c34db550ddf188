"""The exit codes of the commands: one meaning each, the same for every command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from face import EXPERIMENTS, Face

from gpas_cli.errors import Exit

CHECKS = ("doctor", "db check", "data check")


def test_a_check_without_findings_exits_with_0(face: Face) -> None:
    face.ended("pre-s1", "done", 4.5)
    face("db", "sync")
    for command in CHECKS:
        face(*command.split(), expect=Exit.DONE)


def test_a_check_that_finds_damage_ends_with_failed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    face.ended("pre-s1", "done", 4.5)
    face("db", "sync")
    made = face.ended("pre-s2", "done", 4.5)  # which the database does not have yet
    assert "agrees" in face("db", "check").out  # it reads what jobs have added first
    shutil.rmtree(made.path)
    assert made.key in face("db", "check", expect=Exit.FAILED).out
    monkeypatch.setenv("GPAS_DB", str(face.folder / "experiments.yaml"))
    assert "problem" in face("doctor", expect=Exit.FAILED).out
    said = face("db", "check", expect=Exit.FAILED)
    assert (said.err, said.out.count("is not an SQLite database")) == ("", 1)
    monkeypatch.setenv("GPAS_DB", "foo://x")
    assert face("db", "check", expect=Exit.USAGE).err.count("\n") == 1


def test_the_meanings_are_in_the_help(face: Face) -> None:
    said = " ".join(face("--help").out.split())
    for code in Exit:
        assert f"{int(code)} {code.meaning.split(':')[0]}" in said


def test_doctor_works_outside_a_project(face: Face) -> None:
    (face.folder / "experiments.yaml").unlink()
    findings = {finding["what"]: finding for finding in face("doctor", "--json").json["findings"]}
    assert findings["experiments"]["status"] == "note"
    assert "gpas init" in findings["experiments"]["remedy"]
    assert not (face.folder / "runs").exists()


def test_a_named_file_that_is_not_there_is_a_usage_error(face: Face) -> None:
    assert "nowhere.yaml does not exist" in face("-c", "nowhere.yaml", "doctor", expect=Exit.USAGE).err


@pytest.mark.parametrize("command", [("plan",), ("run", "grid", "--dry-run"), ("run", "grid")], ids=" ".join)
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("seed: [1, 2]", "seed: [1, 2]"), Exit.DONE),
        (("batch: 2}}\n    axes:", "batch: 4000}}\n    resources: {gpus: 4000}\n    axes:"), Exit.USAGE),
        (('path: "text/*.txt"', 'path: "nowhere/*.txt"'), Exit.USAGE),
        (("data: notes, optim", "data: notes, finetune: {data: nowhere.json}, optim"), Exit.USAGE),
    ],
    ids=["possible", "no such GPUs", "no such text", "no such records"],
)
def test_plan_and_run_say_the_same(face: Face, command: tuple[str, ...], change: tuple[str, str], code: Exit) -> None:
    face.declare(EXPERIMENTS.replace(*change, 1))
    ends = Exit.DONE if command == ("plan",) else code  # a plan that was printed is a success
    said = face(*command, "small", "--where", "seed=1", "--executor", "local", expect=ends)
    if code is Exit.USAGE:
        assert not list(face.runs.glob("??/*/001"))
        assert any(word in said.out + said.err for word in ("nowhere", "4,000 GPU", "4000 GPU"))


def test_anchors_are_declared_under_a_key_of_ones_own(face: Face) -> None:
    face.declare(EXPERIMENTS + "\nx-common: &common {norm: pre}\n")
    face("plan")
    face.declare(EXPERIMENTS + "\ny-common: {norm: pre}\n")
    assert "unknown key 'y-common'" in face("plan", expect=2).err


@pytest.mark.parametrize("command", ["plan", "status --json", "init", "data status"])
def test_a_working_directory_that_was_deleted_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "gone").mkdir()
    words = f"cd gone && rmdir ../gone && {sys.executable} -m gpas_cli {command}"
    done = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, "gpas: the working directory was deleted; change to another\n")


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
@pytest.mark.parametrize(
    "command", ["status", "--help", "table gpas:2 --published-only --format markdown", "plan none"]
)
def test_output_that_is_closed_or_lacks_characters_is_no_traceback(face: Face, command: str, closed: str) -> None:
    """As of daemons and cron, and of the C locale where Python does not take UTF-8 instead."""
    words = f"{sys.executable} -m gpas_cli {command}"
    usual = subprocess.run(words, shell=True, cwd=face.folder, capture_output=True, text=True, timeout=300)
    closing = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[closed]
    done = subprocess.run(f"{words} {closing}", shell=True, cwd=face.folder, capture_output=True, timeout=300)
    assert done.returncode == usual.returncode
    assert not done.stderr or usual.returncode != 0
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(words, shell=True, cwd=face.folder, capture_output=True, env=environment, timeout=300)
    assert (plain.returncode, b"Traceback" in plain.stderr) == (usual.returncode, False)
    assert (plain.stdout + plain.stderr).isascii()


@pytest.mark.parametrize("command", ["status", "status --json", "--help", "table gpas:2 --format csv"])
def test_a_closed_pipe_ends_a_command_without_a_message(face: Face, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does after its lines
    words = [sys.executable, "-m", "gpas_cli", *command.split()]
    try:
        done = subprocess.run(words, cwd=face.folder, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
