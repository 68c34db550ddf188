"""The adapter for PBS in examples/gpas-pbs, with a fake server; `slurm/test_slurm_pbs.py` has real ones."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_pbs
import gpas_pbs
import pytest
from cases import cases, file_text
from face import FAKE_JOB, Face
from gpas_pbs import scheduler
from launching import kill, until
from sessions import Commands, agrees, play, sessions

from gpas_cli.cli.commands import logs
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extension import installed
from gpas_cli.schedule.batch import scheduler as batch
from gpas_cli.schedule.batch.submission import BatchError
from gpas_cli.schedule.scheduler import choose
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import claim_path
from gpas_cli.state.observe import observe, observe_each
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import attempts, write_json

HERE = Path(__file__).parent
GRID = file_text("schedule/seeds.yaml")
CLAIM = "{statement: GPAS helps., grids: [toy], subject: {gate: gpas}, against: {gate: none}, expect: lower}"


@dataclass
class Pbs(Commands):
    """A project, and a server whose jobs are fakes too."""

    server: Path = field(kw_only=True)

    def run(self, words: str = "", **expected: Any) -> None:
        self.gpas(f"run grid toy --executor pbs --yes {words}", **expected)

    def cells(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.face("status", "toy", "--json").json["cells"]
        return found

    def states(self, wanted: list[str]) -> None:
        assert [cell["state"] for cell in self.cells()] == wanted

    def until(self, wanted: list[str]) -> None:
        until(lambda: [cell["state"] for cell in self.cells()] == wanted)

    def begun(self, name: str) -> None:
        """Wait until the job of a cell has begun, and waits."""
        until(lambda: any(cell["name"] == name and cell["step"] for cell in self.cells()))

    def cell(self, number: int, **wanted: str) -> None:
        found = self.cells()[number]
        assert all(agrees(found[field], value) for field, value in wanted.items()), found

    def stage(self, name: str, **wanted: str) -> None:
        """Check the last stage of a cell, whose parent is the first one."""
        first, last = (stage.key for stage in self.face.entry(name, "toy").cell.stages)
        seen = partial(observe, self.face.runs, last)
        until(lambda: all(agrees(getattr(seen(), field), value) for field, value in wanted.items()))
        assert seen().blocker == ("cause" in wanted) * first

    def acts(self, acts: dict[str, str]) -> None:
        """Say what the jobs of cells do, done if nothing else is said."""
        (self.face.folder / "acts.json").write_text(json.dumps(acts))

    def later(self) -> None:
        """Declare a stage after the training."""
        self.edit("batch: 2}}", "batch: 2}, downstream: {tasks: [piqa]}}")

    def stop(self) -> None:
        (self.server / "stopped").touch()

    def start(self) -> None:
        (self.server / "stopped").unlink()

    def crash(self) -> None:
        """Kill the program of the only running job, so that nobody records how its process ends."""
        (job,) = (path for path in self.server.glob("jobs/*.json") if json.loads(path.read_text())["state"] == "R")
        kill(json.loads(job.read_text())["pid"])
        until(lambda: json.loads(job.read_text())["state"] == "F")

    def lose(self, number: int) -> None:
        (self.server / f"jobs/{number}.json").unlink()

    def qdel(self, number: str) -> None:
        assert fake_pbs.qdel(fake_pbs.Server(self.server), [number]) == 0

    def other(self, name: str, state: str, after: list[str], theirs: bool = False) -> None:
        """Add a job that is not of this project, of another user if it is `theirs`."""
        server = fake_pbs.Server(self.server)
        more = {"script": "", "pid": 0, "code": None, "theirs": theirs}
        server.change(str(len(server.all())), name=name, state=state, after=after, **more)

    def removed(self, job: str) -> None:
        scheduler.PbsScheduler(SchedulerView(self.face.runs)).remove(job, ())

    def belongs_to_another_user(self, number: int) -> None:
        fake_pbs.Server(self.server).change(str(number), theirs=True)

    def end(self, numbers: list[int]) -> None:
        for number in numbers:
            fake_pbs.Server(self.server).change(str(number), state="F")

    def in_queue(self, wanted: list[int]) -> None:
        """Check which jobs have not ended."""
        states = {path.stem: json.loads(path.read_text())["state"] for path in self.server.glob("jobs/*.json")}
        assert sorted(int(number) for number, state in states.items() if state != "F") == wanted

    def after(self, wanted: list[str | None]) -> None:
        """Check what the jobs wait for, by the words of each call of qsub."""
        calls = [json.loads(line) for line in (self.server / "calls.txt").read_text().splitlines()]
        assert [dict(zip(words[:-1:2], words[1:-1:2], strict=True)).get("-W") for words in calls] == wanted

    def places(self) -> list[Path]:
        """Return the folders of all jobs, oldest first."""
        return sorted(self.face.runs.glob(".pbs/*"), key=lambda place: (place / "submission.sh").stat().st_mtime_ns)

    def jobs(self, number: int) -> None:
        assert len(self.places()) == number

    def attempt(self, name: str) -> None:
        """Check the record of the first attempt at a cell."""
        (made,) = attempts(self.face.runs, self.face.entry(name, "toy").key)
        record = made.read_attempt()
        assert (record.executor, record.submitter.id) == ("pbs", self.places()[0].name)

    def unrecorded(self) -> None:
        """Remove the id of the only job from its record."""
        (place,) = self.places()
        write_json(place / "job.json", json.loads((place / "job.json").read_text()) | {"id": ""})

    def file(self, name: str, text: str) -> None:
        (self.face.folder / name).write_text(text)


@pytest.fixture
def pbs(gpas_pbs: None, face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pbs]:
    """Yield a project in a folder with an awkward name, and a server."""
    server, programs = tmp_path / "server", tmp_path / "bin"
    programs.mkdir()
    for name in ("qsub", "qstat", "qdel"):
        words = [sys.executable, "-S", str(HERE / "fake_pbs.py"), name, str(server)]
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(batch, "_POLL_SECONDS", 0.05)
    made = Face(tmp_path / "50%j of 'a' project", GRID)
    # Python's own hook, by which the processes of jobs are fakes.
    (tmp_path / "hook").mkdir()
    hook = f"import gpas_cli.schedule.process\ngpas_cli.schedule.process.JOB = {FAKE_JOB!r}\n"
    (tmp_path / "hook/sitecustomize.py").write_text(hook)
    monkeypatch.chdir(made.folder)
    server.mkdir()
    yield Pbs(made, server=server)
    (made.folder / "go").touch()
    (server / "stopped").unlink(missing_ok=True)
    if (server / "jobs").exists():
        until(lambda: all(json.loads(path.read_text())["state"] == "F" for path in server.glob("jobs/*.json")))


@sessions("schedule/pbs.yaml")
def test_a_session(pbs: Pbs, session: list[Any]) -> None:
    play(pbs, session)


def test_pbs_that_does_not_answer_changes_nothing(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    pbs.acts({"s1": "wait", "s2": "wait"})
    pbs.stop()
    pbs.run("--where seed=1")
    (pbs.server / "silent").touch()
    (cell, other) = pbs.cells()
    assert (cell["state"], other["state"]) == ("queued", "missing")
    assert "cannot connect to server pbsvm" in cell["evidence"]
    pbs.run(code=2, says="cannot connect to server pbsvm")
    assert "cannot connect" in pbs.face("doctor", expect=None).out
    pbs.states(["queued", "missing"])
    qstat = shutil.which("qstat")
    assert qstat is not None
    (pbs.server / "silent").unlink()
    answer = Path(qstat).read_text()
    for says in ("echo maintenance until noon", "true", "sleep 5"):  # none of them is an answer
        monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 0.3)
        Path(qstat).write_text(f"#!/bin/sh\n{says}\n")
        pbs.states(["queued", "missing"])
    monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 60.0)
    Path(qstat).write_text(answer)
    pbs.start()
    pbs.begun("s1")


def test_pbs_that_does_not_answer_is_asked_once_in_a_scan(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question may take a minute, and there may be thousands of cells."""
    pbs.acts({"s1": "wait", "s2": "wait"})
    pbs.run()
    for name in ("s1", "s2"):
        pbs.begun(name)
    for job in pbs.server.glob("jobs/*.json"):
        kill(json.loads(job.read_text())["pid"])
    pbs.until(["interrupted", "interrupted"])
    asked = list[Any]()
    ask = scheduler.PbsScheduler.ask
    monkeypatch.setattr(scheduler.PbsScheduler, "ask", lambda own, ids: asked.append(ids) or ask(own, ids))
    (pbs.server / "silent").touch()
    runs, keys = pbs.face.runs, [pbs.face.entry(name, "toy").key for name in ("s1", "s2")]
    assert all("cannot connect" in seen.evidence for seen in observe_each(runs, keys).values())
    assert len(asked) == 1
    (pbs.server / "silent").unlink()


def test_a_job_that_may_have_been_submitted_is_not_called_refused(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    pbs.stop()
    start = scheduler.PbsScheduler.start

    def lost(self: scheduler.PbsScheduler, *words: Any) -> str:
        start(self, *words)
        raise BatchError("qsub: no answer", answered=False)

    with monkeypatch.context() as patched:
        patched.setattr(scheduler.PbsScheduler, "start", lost)
        pbs.run(code=2, says="unanswered: toy/s1, which asks for {no resources}; see `gpas status`")
    pbs.states(["queued", "missing"])
    pbs.run(says="1 job submitted, 1 already queued or running")
    pbs.start()


def test_a_scheduler_that_cannot_be_loaded_is_a_finding(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**gpas_pbs.EXTENSION.schedulers, "broken": "no_such_module:Scheduler"}
    monkeypatch.setattr(gpas_pbs, "EXTENSION", replace(gpas_pbs.EXTENSION, schedulers=known))
    installed.cache_clear()
    found = {one["what"]: one for one in pbs.face("doctor", "--json", expect=Exit.FAILED).json["findings"]}
    assert found["pbs"]["detail"] == "0 jobs of this project in the queue"
    assert "'broken' cannot be loaded: ModuleNotFoundError" in found["scheduler"]["detail"]
    assert found["scheduler"]["status"] == "problem"


def test_schedulers_are_chosen_by_name_and_a_claim_of_an_unknown_one_is_unknown(pbs: Pbs) -> None:
    chosen, note = choose("pbs", pbs.face.runs)
    assert (type(chosen), note) == (scheduler.PbsScheduler, "")
    with pytest.raises(GpasError, match="unknown executor 'pbz'; did you mean 'pbs'"):
        choose("pbz", pbs.face.runs)
    path = claim_path(pbs.face.runs, pbs.face.entry("s1", "toy").key)
    path.parent.mkdir(parents=True)
    write_json(path, {"submitter": "a", "host": "a", "pid": 1, "time": 1.0, "scheduler": "pbz", "submission": "x"})
    pbs.states(["unknown", "missing"])
    assert "unknown scheduler 'pbz'; did you mean 'pbs'?" in pbs.cells()[0]["evidence"]


def test_its_log_is_followed_to_the_end(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    pbs.acts({"s1": "wait"})
    pbs.run("--where seed=1")
    pbs.begun("s1")

    def poll(seconds: float) -> None:
        (pbs.face.folder / "go").touch()  # once it follows
        time.sleep(seconds / 50)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=poll))
    assert "done" in pbs.face("logs", "s1", "-f").out


def test_claims_are_decided_by_jobs(pbs: Pbs) -> None:
    """`gpas run claims` waits for each round; jobs that are queued already are followed."""
    pbs.face.declare(GRID.replace("axes: {", "axes: {gate: [none, gpas], ") + f"claims: {{helps: {CLAIM}}}\n")
    effects = enumerate((-0.8, -1.0, -0.9, -1.1, -0.95, -1.05), start=1)
    numbers = {name: 9 + seed + by for seed, own in effects for name, by in ((f"s{seed}", 0), (f"gpas-s{seed}", own))}
    (pbs.face.folder / "numbers.json").write_text(json.dumps(numbers))
    pbs.run("--where seed=1")
    words = ("run", "claims", "helps", "--executor", "pbs", "--yes", "--json")
    (claim,) = pbs.face(*words).json["claims"]
    assert claim["verdict"] == "supported"
    ran = [line.split()[0] for line in (pbs.face.folder / "ran.txt").read_text().splitlines()]
    assert len(ran) == len(set(ran)) == 2 * len(claim["parts"][0]["seeds"])
    assert pbs.face(*words).json["rounds"] == 0


@cases("schedule/cases.yaml")
def test_a_job_asks_for_what_its_stage_needs(resources: dict[str, Any], wanted: str) -> None:
    asked = Resources(**{name: tuple(own) if isinstance(own, list) else own for name, own in resources.items()}).first
    settings = scheduler.Settings(options=("-P", "a b"))
    words = scheduler.arguments(settings, asked, ("7.a", "8.a"))
    fixed = ["-S", "/bin/bash", "-j", "oe", "-o", "/dev/null"]
    assert words == [*fixed, *wanted.split(), "-W", "depend=afterok:7.a:8.a", "-P", "a b"]
    with pytest.raises(GpasError, match="records do not have its values"):
        scheduler.arguments(settings, replace(asked, setup=("***",)), ())


def test_the_answer_of_a_real_server_is_read() -> None:
    """OpenPBS 23.06.06 printed it. A variable of the first job has lines that look like attributes."""
    found = scheduler.jobs_in(file_text("schedule/qstat.txt"))
    assert [f"{name} {job}" for name, job in found.items()] == file_text("schedule/qstat_read.txt").splitlines()
    assert [job.pending for job in found.values()] == [False, True, True, True]
    wrapped = "Job Id:\t12\n\tJob_Name = gpas-1\n\tJob_Owner = root@a\n\tjob_state = {}\n\tqueue = low\n\n"
    assert str(scheduler.jobs_in(wrapped.format("R"))["gpas-1"]) == "PBS 12 running"
    assert scheduler.jobs_in(wrapped.format("C")) == {}
