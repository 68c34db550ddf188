"""The parts of a chaos run: processes, clocks, files, and lasting faults."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_kit.faults import Field
from chaos_kit.processes import Census, jobs_of, of_folder
from chaos_kit.project import KIT, Project
from chaos_kit.witness import Witness

pytestmark = pytest.mark.long
KEY = "a" * 16


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "text").mkdir()
    return Project(tmp_path / "project", tmp_path / "text", tmp_path / "logs", steps=20)


@pytest.fixture
def job(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that looks like the job of an attempt in the project."""
    words = ["gpas_cli.worker.job", str(project.runs / KEY[:2] / KEY / "002")]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
    yield process
    process.kill()
    process.wait()


def wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_job_is_seen_for_as_long_as_it_lives(project: Project, job: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: jobs_of(project.folder))
    census = Census(project.folder)
    census.sample()
    (life,) = census.lives.values()
    assert (life.process.pid, life.key, life.attempt) == (job.pid, KEY, 2)
    assert [process.pid for process in of_folder(project.folder)] == [job.pid]
    census.sample()
    assert life.last > life.first
    assert life.process.kill()
    wait_for(lambda: not life.process.lives())  # even before its parent has waited for it
    last = life.last
    census.sample()
    assert (life.last, len(census.times)) == (last, 3)
    assert not life.process.kill()
    assert not jobs_of(project.folder)


def test_jobs_of_another_folder_are_left_alone(job: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert not jobs_of(tmp_path / "proj")
    assert not of_folder(tmp_path / "proj")


def test_the_clock_of_one_process_is_wrong(project: Project) -> None:
    read = "import time, os; print(time.time(), time.time_ns(), os.environ.get('CHAOS_SHIFT'))"
    environment = {**project.environment(), "CHAOS_SHIFT": "3600"}
    assert str(KIT / "shifted") in environment["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", read], env=environment, capture_output=True, text=True, check=True)
    seconds, nanoseconds, inherited = done.stdout.split()
    assert float(seconds) - time.time() == pytest.approx(3600, abs=60)
    assert int(nanoseconds) / 1e9 - time.time() == pytest.approx(3600, abs=60)
    assert inherited == "None"


def test_a_grown_journal_is_accepted_and_a_rewritten_one_is_not(project: Project) -> None:
    witness = Witness(project, "seed")
    folder = project.runs / KEY[:2] / KEY / "001"
    folder.mkdir(parents=True)
    journal, attempt = folder / "journal.jsonl", folder / "attempt.json"
    journal.write_text("one\n")
    attempt.write_text("{}")
    witness._look()
    journal.write_text("one\ntwo\n")
    assert witness.now() == witness.seen()
    witness._look()
    journal.write_text("One\ntwo\nthree\n")
    assert {path for path, seen in witness.seen().items() if witness.now()[path] != seen} == {str(journal)}
    attempt.unlink()
    assert str(attempt) not in witness.now()


def test_lasting_faults_are_undone_in_time_and_before_the_calm(project: Project) -> None:
    field = Field(project, {})
    undone = list[str]()
    field.lasting(0.0, "short").callback(undone.append, "short")
    field.lasting(60.0, "long").callback(undone.append, "long")
    field.tick()
    assert undone == ["short"]
    assert (field.lasts("short"), field.lasts("long")) == (False, True)
    field.calm()
    assert undone == ["short", "long"]
