"""The adapter for PBS in examples/gpas-pbs, with a fake server; `slurm/test_slurm_pbs.py` has real ones."""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_pbs
import gpas_pbs
import pytest
from cases import cases
from face import FAKE_JOB, Face
from gpas_pbs import batch, scheduler
from launching import kill, until

from gpas_cli.cli.commands import logs
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extension import installed
from gpas_cli.files import replace_file
from gpas_cli.schedule.scheduler import choose
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import claim_path
from gpas_cli.state.observe import observe
from gpas_cli.store.rundir import attempts, write_json
from gpas_cli.store.snapshot import Snapshot

HERE = Path(__file__).parent
GRID = (HERE / "seeds.yaml").read_text()
LATER = GRID.replace("batch: 2}}", "batch: 2}, downstream: {tasks: [piqa]}}")
CLAIM = "{statement: GPAS helps., grids: [toy], subject: {gate: gpas}, against: {gate: none}, expect: lower}"


@dataclass
class Pbs:
    """A project, and a server whose jobs are fakes too."""

    gpas: Face
    server: Path

    def run(self, *words: str, expect: int | None = 0) -> str:
        said = self.gpas("run", "grid", "toy", "--executor", "pbs", "--yes", *words, expect=expect)
        return said.out + said.err

    def cells(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.gpas("status", "toy", "--json").json["cells"]
        return found

    def states(self) -> list[str]:
        return [cell["state"] for cell in self.cells()]

    def acts(self, **acts: str) -> None:
        (self.gpas.folder / "acts.json").write_text(json.dumps(acts))

    def calls(self) -> list[list[str]]:
        """Return the words of each call of qsub."""
        return [json.loads(line) for line in (self.server / "calls.txt").read_text().splitlines()]

    def jobs(self) -> list[Path]:
        """Return the folders of all jobs, oldest first."""
        return sorted(self.gpas.runs.glob(".pbs/*"), key=lambda place: (place / "job.sh").stat().st_mtime_ns)

    def has_begun(self, name: str) -> bool:
        """Return whether the job of a cell has begun, and waits."""
        return any(cell["name"] == name and cell["step"] for cell in self.cells())


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
    monkeypatch.setattr(batch, "POLL_SECONDS", 0.05)
    made = Face(tmp_path / "50%j of 'a' project", GRID)
    # In place of a copy of the code: Python's own hook, by which the processes of jobs are fakes.
    hook = f"import gpas_cli.schedule.process\ngpas_cli.schedule.process.JOB = {FAKE_JOB!r}\n"
    code = made.runs / ".code/c0de"
    code.mkdir(parents=True)
    replace_file(code / "sitecustomize.py", hook)
    monkeypatch.setattr(batch, "snapshot", lambda runs, project, uses: Snapshot("c0de", code, {}))
    monkeypatch.chdir(made.folder)
    yield Pbs(made, server)
    (made.folder / "go").touch()
    (server / "stopped").unlink(missing_ok=True)
    if (server / "jobs").exists():
        until(lambda: all(json.loads(path.read_text())["state"] == "F" for path in server.glob("jobs/*.json")))


def test_a_grid_runs_on_pbs(pbs: Pbs) -> None:
    pbs.acts(s1="wait", s2="fail")
    assert "qsub -N gpas-NAME -S /bin/sh" in pbs.run("--dry-run")
    assert "submitted 0.pbsvm, 1.pbsvm to pbs\n2 jobs submitted" in pbs.run()
    until(lambda: pbs.states() == ["running", "failed"])
    assert "0 jobs submitted, 1 already queued or running, 1 failed" in pbs.run()
    until(lambda: pbs.has_begun("s1"))
    attempt = json.loads((attempts(pbs.gpas.runs, pbs.gpas.entry("s1", "toy").key)[0].attempt_path).read_text())
    assert (attempt["executor"], attempt["submitter"]["id"]) == ("pbs", pbs.jobs()[0].name)
    assert "no luck" in pbs.gpas("logs", "s2").out
    assert "its job will save and exit" in pbs.gpas("cancel", "s1", "--yes").out
    until(lambda: pbs.states() == ["cancelled", "failed"])
    (pbs.gpas.folder / "acts.json").unlink()
    assert "2 done" in pbs.gpas("retry", "--executor", "pbs", "--wait").out
    assert pbs.states() == ["done"] * 2
    assert "perplexity" in pbs.gpas("table", "toy").out


def test_a_queued_job_is_shown_and_cancelled(pbs: Pbs) -> None:
    pbs.server.mkdir()
    (pbs.server / "stopped").touch()
    pbs.run()
    cells = pbs.cells()
    assert [cell["evidence"] for cell in cells] == [f"PBS {i}.pbsvm queued (Not Running: no room)" for i in (0, 1)]
    assert "removed from the queue (PBS 0.pbsvm" in pbs.gpas("cancel", "s1", "--yes").out
    assert pbs.states() == ["cancelled", "queued"]
    (pbs.server / "stopped").unlink()
    until(lambda: pbs.states() == ["cancelled", "done"])


def test_a_killed_job_runs_again_and_so_does_one_that_pbs_has_lost(pbs: Pbs) -> None:
    pbs.acts(s1="killed", s2="wait")
    pbs.run()
    until(lambda: pbs.states()[0] == "interrupted" and pbs.has_begun("s2"))
    (job,) = (path for path in pbs.server.glob("jobs/*.json") if json.loads(path.read_text())["state"] == "R")
    kill(json.loads(job.read_text())["pid"])  # the program of the job: nobody records how its process ends
    until(lambda: json.loads(job.read_text())["state"] == "F")
    assert pbs.states() == ["interrupted", "running"]  # the process still holds its lock
    (pbs.gpas.folder / "go").touch()
    until(lambda: pbs.states() == ["interrupted", "done"])
    (pbs.server / "stopped").touch()
    pbs.acts()
    assert "1 job submitted" in pbs.run()
    (pbs.server / "jobs/2.json").unlink()
    (cell, _) = pbs.cells()
    assert (cell["state"], cell["cause"]) == (
        "interrupted", f"the queue no longer has {pbs.jobs()[-1].name}; the next `gpas run grid` submits it",
    )  # fmt: skip
    (pbs.server / "stopped").unlink()
    assert "2 done" in pbs.run("--wait")


def test_pbs_that_does_not_answer_changes_nothing(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    pbs.acts(s1="wait", s2="wait")
    pbs.server.mkdir()
    (pbs.server / "stopped").touch()
    pbs.run("--where", "seed=1")
    (pbs.server / "silent").touch()
    (cell, other) = pbs.cells()
    assert (cell["state"], other["state"]) == ("queued", "missing")
    assert "cannot connect to server pbsvm" in cell["evidence"]
    assert "cannot connect to server pbsvm" in pbs.run(expect=2)
    assert "cannot connect" in pbs.gpas("doctor", expect=None).out
    assert pbs.states() == ["queued", "missing"]
    qstat = shutil.which("qstat")
    assert qstat is not None
    (pbs.server / "silent").unlink()
    answer = Path(qstat).read_text()
    for says in ("echo maintenance until noon", "true", "sleep 5"):  # none of them is an answer
        monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 0.3)
        Path(qstat).write_text(f"#!/bin/sh\n{says}\n")
        assert pbs.states() == ["queued", "missing"]
    monkeypatch.setattr(scheduler, "_PATIENCE_SECONDS", 60.0)
    Path(qstat).write_text(answer)
    (pbs.server / "stopped").unlink()
    until(lambda: pbs.has_begun("s1"))


def test_a_job_whose_submitter_died_is_found_by_its_name(pbs: Pbs) -> None:
    pbs.server.mkdir()
    (pbs.server / "stopped").touch()
    pbs.run("--where", "seed=1")
    (place,) = pbs.jobs()
    about = json.loads((place / "job.json").read_text())
    (place / "job.json").write_text(json.dumps(about | {"id": ""}))
    assert pbs.states() == ["queued", "missing"]
    (pbs.server / "jobs/0.json").unlink()  # as if it had died before qsub
    assert pbs.states() == ["missing", "missing"]


def test_the_settings_are_checked_when_they_are_read(pbs: Pbs) -> None:
    path = pbs.gpas.folder / "pbs.yaml"
    path.write_text("gpus: ngpu\noption: [-P, thesis]\n")
    said = pbs.run(expect=Exit.USAGE)
    assert "pbs.yaml:1:7: gpus: unknown value 'ngpu'; did you mean 'ngpus'?" in said
    assert "pbs.yaml:2:1: option: unknown key 'option'; did you mean 'options'?" in said
    assert not pbs.gpas.runs.joinpath(".pbs").exists()
    path.write_text("options: [-P, thesis]\n")
    pbs.gpas.edit("    axes:", "    resources: {qos: high, nodes: 2, cpus: 2, ranks: 2}\n    axes:")
    said = pbs.run(expect=Exit.USAGE)
    assert "resources.nodes: must be 1 on PBS; resources.qos: is SLURM's; use `options` in pbs.yaml" in said
    pbs.gpas.edit("{qos: high, nodes: 2, cpus: 2, ranks: 2}", "{partition: refused}")
    assert "qsub: Unknown queue\nrefused: toy/s1" in pbs.run(expect=Exit.USAGE)
    assert pbs.states() == ["missing", "missing"]


def test_a_setup_that_fails_is_a_failure(pbs: Pbs) -> None:
    pbs.gpas.edit("    axes:", "    resources: {setup: ['echo no such module', 'false']}\n    axes:")
    pbs.run("--where", "seed=1")
    until(lambda: pbs.states() == ["failed", "missing"])
    assert pbs.cells()[0]["cause"] == "resources.setup failed: no such module"
    assert "| no such module" in pbs.gpas("logs", "s1").out


def test_a_later_stage_waits_for_its_parent(pbs: Pbs) -> None:
    pbs.gpas.declare(LATER)
    pbs.acts(s2="fail")
    pbs.server.mkdir()
    (pbs.server / "stopped").touch()
    assert "4 jobs submitted" in pbs.run()
    after = [dict(zip(words[:-1:2], words[1:-1:2], strict=True)).get("-W") for words in pbs.calls()]
    assert after == [None, "depend=afterok:0.pbsvm", None, "depend=afterok:2.pbsvm"]
    keys = [stage.key for stage in pbs.gpas.entry("s2", "toy").cell.stages]
    assert observe(pbs.gpas.runs, keys[1]).evidence == "PBS 3.pbsvm held (until the jobs before it have ended)"
    (pbs.server / "stopped").unlink()
    until(lambda: pbs.states() == ["done", "failed"])
    found = until(lambda: (now := observe(pbs.gpas.runs, keys[1])).state == "cancelled" and now)
    assert (found.cause, found.blocker) == ("its training toy/s2 is failed", keys[0])
    assert "0 jobs submitted, 2 failed or cancelled earlier" in pbs.run()
    pbs.acts()
    assert "1 done" in pbs.gpas("retry", "--executor", "pbs", "--wait").out
    assert pbs.states() == ["done", "done"]


def test_what_waits_for_a_removed_job_is_submitted_again(pbs: Pbs) -> None:
    """OpenPBS holds for ever what waits for a job that was deleted before it started."""
    pbs.gpas.declare(LATER)
    pbs.server.mkdir()
    (pbs.server / "stopped").touch()
    pbs.run()
    pbs.gpas("cancel", "s1", "--yes")
    left = [path.stem for path in pbs.server.glob("jobs/*.json") if json.loads(path.read_text())["state"] != "F"]
    assert sorted(left) == ["2", "3"]  # what waited for the job of s1 went with it
    assert fake_pbs.qdel(fake_pbs.Server(pbs.server), ["2"]) == 0  # by hand
    assert pbs.states() == ["cancelled", "missing"]
    assert "2 jobs submitted, 2 failed or cancelled" in pbs.run()
    after = [dict(zip(words[:-1:2], words[1:-1:2], strict=True)).get("-W") for words in pbs.calls()[4:]]
    assert after == [None, "depend=afterok:4.pbsvm"]
    assert json.loads((pbs.server / "jobs/3.json").read_text())["state"] == "F"
    (pbs.server / "stopped").unlink()
    assert "1 done" in pbs.gpas("retry", "--executor", "pbs", "--wait").out
    until(lambda: pbs.states() == ["done", "done"])


def test_a_scheduler_that_cannot_be_loaded_is_a_finding(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**gpas_pbs.EXTENSION.schedulers, "broken": "no_such_module:Scheduler"}
    monkeypatch.setattr(gpas_pbs, "EXTENSION", replace(gpas_pbs.EXTENSION, schedulers=known))
    installed.cache_clear()
    found = {one["what"]: one for one in pbs.gpas("doctor", "--json", expect=Exit.FAILED).json["findings"]}
    assert found["pbs"]["detail"] == "0 jobs of this project in the queue"
    assert "'broken' cannot be loaded: ModuleNotFoundError" in found["scheduler"]["detail"]
    assert found["scheduler"]["status"] == "problem"


def test_schedulers_are_chosen_by_name_and_a_claim_of_an_unknown_one_is_unknown(pbs: Pbs) -> None:
    chosen, note = choose("pbs", pbs.gpas.runs)
    assert (type(chosen), note) == (scheduler.PbsScheduler, "")
    with pytest.raises(GpasError, match="unknown executor 'pbz'; did you mean 'pbs'"):
        choose("pbz", pbs.gpas.runs)
    path = claim_path(pbs.gpas.runs, pbs.gpas.entry("s1", "toy").key)
    path.parent.mkdir(parents=True)
    write_json(path, {"submitter": "a", "host": "a", "pid": 1, "time": 1.0, "scheduler": "pbz", "submission": "x"})
    assert pbs.states() == ["unknown", "missing"]
    assert "unknown scheduler 'pbz'; did you mean 'pbs'?" in pbs.cells()[0]["evidence"]


def test_its_log_is_followed_to_the_end(pbs: Pbs, monkeypatch: pytest.MonkeyPatch) -> None:
    pbs.acts(s1="wait")
    pbs.run("--where", "seed=1")
    until(lambda: pbs.has_begun("s1"))

    def poll(seconds: float) -> None:
        (pbs.gpas.folder / "go").touch()  # once it follows
        time.sleep(seconds / 50)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=poll))
    assert "done" in pbs.gpas("logs", "s1", "-f").out


def test_claims_are_decided_by_jobs(pbs: Pbs) -> None:
    """`gpas run claims` waits for each round; jobs that are queued already are followed."""
    pbs.gpas.declare(GRID.replace("axes: {", "axes: {gate: [none, gpas], ") + f"claims: {{helps: {CLAIM}}}\n")
    effects = enumerate((-0.8, -1.0, -0.9, -1.1, -0.95, -1.05), start=1)
    numbers = {name: 9 + seed + by for seed, own in effects for name, by in ((f"s{seed}", 0), (f"gpas-s{seed}", own))}
    (pbs.gpas.folder / "numbers.json").write_text(json.dumps(numbers))
    pbs.run("--where", "seed=1")
    words = ("run", "claims", "helps", "--executor", "pbs", "--yes", "--json")
    (claim,) = pbs.gpas(*words).json["claims"]
    assert claim["verdict"] == "supported"
    ran = [line.split()[0] for line in (pbs.gpas.folder / "ran.txt").read_text().splitlines()]
    assert len(ran) == len(set(ran)) == 2 * len(claim["parts"][0]["seeds"])
    assert pbs.gpas(*words).json["rounds"] == 0


@cases("schedule/cases.yaml")
def test_a_job_asks_for_what_its_stage_needs(resources: dict[str, Any], wanted: str) -> None:
    asked = Resources(**{name: tuple(own) if isinstance(own, list) else own for name, own in resources.items()}).first
    settings = scheduler.Settings(options=("-P", "a b"))
    words = scheduler.arguments(settings, asked, "gpas-1", ("7.a", "8.a"))
    fixed = ["-N", "gpas-1", "-S", "/bin/sh", "-j", "oe", "-o", "/dev/null"]
    assert words == [*fixed, *wanted.split(), "-W", "depend=afterok:7.a:8.a", "-P", "a b"]
    with pytest.raises(GpasError, match="records do not have its values"):
        scheduler.arguments(settings, replace(asked, setup=("***",)), "gpas-1", ())


def test_the_answer_of_a_real_server_is_read() -> None:
    """OpenPBS 23.06.06 printed it. A variable of the first job has lines that look like attributes."""
    found = scheduler.jobs_in((HERE / "qstat.txt").read_text())
    assert {name: str(job) for name, job in found.items()} == {
        "gpas-0123456789": "PBS 4.pbsvm running (Job run at Sun Nov 29 at 09:18 on (pbsvm:ncpus=1:mem=102400kb))",
        "gpas-aaaaaaaaaa": "PBS 5.pbsvm held (until the jobs before it have ended)",
        "gpas-bbbbbbbbbb": "PBS 6.pbsvm held (`qrls 6.pbsvm` releases it)",
        "gpas-cccccccccc": "PBS 7.pbsvm queued (Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4)",
    }
    assert [job.pending for job in found.values()] == [False, True, True, True]
    wrapped = "Job Id:\t12\n\tJob_Name = gpas-1\n\tJob_Owner = root@a\n\tjob_state = {}\n\tqueue = low\n\n"
    assert str(scheduler.jobs_in(wrapped.format("R"))["gpas-1"]) == "PBS 12 running"
    assert scheduler.jobs_in(wrapped.format("C")) == {}
