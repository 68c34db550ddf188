"""The parts of submission that need no cluster: sbatch scripts, arrays, SLURM output, and the resulting states."""

import inspect
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import make_attempt, submission_facts
from cases import cases
from fake_slurm import TITLES

from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.batch import submission, supervisor
from gpas_cli.schedule.batch.scheduler import arrays, levels
from gpas_cli.schedule.batch.script import _CHECKED
from gpas_cli.schedule.batch.submission import Array, ArrayIndex
from gpas_cli.schedule.slurm import client, queue
from gpas_cli.schedule.slurm.job import _AT_WORK, _WAITING, INTERRUPTED, Job, exit_words
from gpas_cli.schedule.slurm.queue import Queue
from gpas_cli.schedule.slurm.scheduler import SlurmScheduler
from gpas_cli.schedule.slurm.script import dependency, parameters, spec, text
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.journal import Journal
from gpas_cli.store.rundir import read_json
from gpas_cli.store.snapshot import Snapshot, snapshot
from gpas_cli.worker.ranks import record_failure

CELL = cell_from(
    {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 8}}
)
KEY = "0123456789abcdef"


def job(key: int, *parents: int, kind: str = "pretrain", **resources: Any) -> StageJob:
    return StageJob(
        kind=kind, key=f"{key:016x}", parents=tuple(f"{p:016x}" for p in parents), cell=CELL, grid="g", name=f"c{key}",
        axes={}, cadence=Cadence(), watch=Monitoring(), resources=Resources(**resources),
    )  # fmt: skip


def sbatch_text(tmp_path: Path, **resources: Any) -> str:
    project = Project(tmp_path / "a b/experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite:///x.db")
    code = Snapshot("c0de", tmp_path / "code", {})
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in resources.items()}
    return text(project, Resources(**lists), tmp_path / "runs/.slurm/gpas-g-1", code, "0-3%2")


@cases("schedule/slurm/cases.yaml", folder="", lacks=[], in_order=[])
def test_a_profile_becomes_sbatch_text(
    tmp_path: Path, folder: str, resources: dict[str, Any], has: list[str], lacks: list[str], in_order: list[str]
) -> None:
    made = sbatch_text(tmp_path / folder, **resources).replace(str(tmp_path), "/TMP")
    assert [text for text in has if text not in made] == [text for text in lacks if text in made] == []
    places = [made.index(text) for text in in_order]
    assert places == sorted(places)


@cases("schedule/slurm/cases.yaml")
def test_no_job_imports_from_its_working_directory(tmp_path: Path, before: str | None, after: str) -> None:
    lines = [line for line in sbatch_text(tmp_path).splitlines() if "PYTHONPATH" in line]
    script = "\n".join(["set -u", *lines, 'echo "$PYTHONSAFEPATH $PYTHONPATH"']).replace(str(tmp_path), "")
    here = {"PATH": os.environ["PATH"], **({} if before is None else {"PYTHONPATH": before})}
    done = subprocess.run(["sh", "-c", script], env=here, capture_output=True, text=True, check=True)
    assert done.stdout == f"1 {after}\n"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Return a copy of the code whose files no test changes in place."""
    return snapshot(tmp_path_factory.mktemp("code"))


def _changed(path: Path) -> None:
    text = path.read_text()
    path.unlink()
    path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        (lambda copy: None, True),
        (lambda copy: _changed(copy / "gpas_cli/words.py"), False),
        (lambda copy: (copy / "torch.py").write_text(""), False),
        (lambda copy: (copy / "torch").symlink_to("/tmp"), False),
        (lambda copy: os.mkfifo(copy / "gpas_cli/more.py"), False),
        (lambda copy: _changed(copy / "gpas_cli/__pycache__"), False),
        (lambda copy: (copy / "gpas_cli/words.py").unlink(), False),
    ],
)
def test_a_job_starts_only_with_the_code_that_was_submitted(
    tmp_path: Path, copied: Snapshot, change: Callable[[Path], object], starts: bool
) -> None:
    code = replace(copied, path=tmp_path / "code")
    shutil.copytree(copied.path, code.path, copy_function=os.link)
    change(code.path)
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "sqlite:///x.db")
    script = text(project, Resources(), tmp_path / "runs/.slurm/gpas-g-1", code, "0")
    before = "\n".join(line for line in script.splitlines() if not line.startswith("srun "))
    done = subprocess.run(["bash"], input=f"{before}\necho started", capture_output=True, text=True)
    assert ("started" in done.stdout) is starts
    assert starts or f"{code.path} has been changed since the job was submitted" in done.stderr


def test_an_invalid_profile_is_refused_before_submission(tmp_path: Path) -> None:
    """As in a file, where `test_grid_problems.py` has every mistake."""
    with pytest.raises(GpasError, match=r"resources\.at_once"):
        sbatch_text(tmp_path, sbatch=("--array=0-3",))


def test_one_array_per_profile_within_the_limit() -> None:
    jobs = [job(i, gpus=i % 2, cpus=4) for i in range(1, 12)]
    made = arrays(jobs, {}, 4, parameters)
    assert sorted(len(array.elements) for array in made) == [1, 2, 4, 4]
    assert all(len({stage.resources.gpus for stage in array.jobs}) == 1 for array in made)
    assert all(array.indices == list(range(len(array.elements))) for array in made)
    packed = arrays([job(i, pack=3) for i in range(1, 9)], {}, 100, parameters)
    assert [len(element) for element in packed[0].elements] == [3, 3, 2]


def test_children_wait_for_their_parents_in_slurm() -> None:
    parents, children = [job(i) for i in (1, 2, 3)], [job(10 + i, i, kind="importance") for i in (1, 3)]
    assert [[j.key for j in level] for level in levels([*parents, *children])] == [
        [j.key for j in parents], [j.key for j in children],
    ]  # fmt: skip
    placed = {parent.key: ArrayIndex("7", i) for i, parent in enumerate(parents)}
    (array,) = arrays(children, placed, 100, parameters)
    assert dependency(array) == "aftercorr:7"
    assert spec(array, 0) == "0,2"
    pupils = [job(20, 1), job(21, 1)]
    (shared,) = arrays(pupils, placed, 100, parameters)
    assert (dependency(shared), spec(shared, 1)) == ("afterok:7_0", "0-1%1")


def test_trainings_depend_on_their_text_and_pupils_on_their_teachers() -> None:
    text = job(1, kind="tokenise")
    teachers = [replace(job(i, pack=2), text=text.key) for i in (2, 3, 4)]
    pupil = job(5, 2)
    assert [[j.key for j in level] for level in levels([text, *teachers, pupil])] == [
        [text.key], [j.key for j in teachers], [pupil.key],
    ]  # fmt: skip
    (array,) = arrays(teachers, {text.key: ArrayIndex("7", 0)}, 100, parameters)
    assert dependency(array) == "afterok:7_0"
    assert [len(element) for element in array.elements] == [2, 1]


def test_a_halved_array_keeps_its_dependency() -> None:
    elements = tuple((job(i),) if i != 3 else () for i in range(1, 7))
    first, second = Array(elements, (ArrayIndex("7", 0),)).halves()
    assert (spec(first, 0), spec(second, 0), dependency(second)) == ("0-1", "0-2", "afterok:7_0")
    first, second = Array(elements, beside="7").halves()
    assert {i: first.elements[i] for i in first.indices} | {i: second.elements[i] for i in second.indices} == {
        i: element for i, element in enumerate(elements) if element
    }


def test_index_lists_have_the_form_of_sbatch() -> None:
    some, none = (job(1),), ()
    assert spec(Array((some, some, none, some, none, some, some)), 2) == "0-1,3,5-6%2"
    assert spec(Array((some,)), 4) == "0"


@cases("schedule/slurm/cases.yaml")
def test_a_failing_line_of_the_setup_is_numbered(tmp_path: Path, setup: list[str], wanted: str) -> None:
    (tmp_path / "sourced").write_text("false\ntrue\n")
    lines = [line.format(sourced=tmp_path / "sourced") for line in setup] if "source" in setup[0] else setup
    whole = "\n".join([_CHECKED, *lines, "trap - ERR", "false", "echo reached"])
    (tmp_path / "script").write_text(whole)
    done = subprocess.run(["bash", str(tmp_path / "script")], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == (wanted or "reached")
    assert done.returncode == bool(wanted)


@pytest.mark.parametrize(("code", "wanted"), [("0:9", (0, 9)), ("137:0", (0, 9)), ("75:0", (75, 0)), ("x", (0, 0))])
def test_exit_codes_of_slurm_and_of_a_shell(code: str, wanted: tuple[int, int]) -> None:
    assert exit_words(code) == wanted


def test_a_lost_answer_is_not_a_refusal() -> None:
    assert client._failure("sbatch", "sbatch: error: Invalid partition name specified").answered
    for said in ("", "sbatch: error: Socket timed out on send/recv operation", "Unable to contact slurm controller"):
        assert not client._failure("sbatch", said).answered


class Asked(SlurmScheduler):
    """A scheduler with one fixed answer, and a dead submitter."""

    def __init__(self, scan: SchedulerView, answer: Queue):
        super().__init__(scan)
        self.answer = answer

    def current(self, max_age_seconds: float | None = None) -> Queue:
        return self.answer

    def queue_after(self, claim: Claim) -> Queue:
        return self.answer


def judged(
    tmp_path: Path, last: StageStatus, found: Job | None, after: tuple[str, ...] = (), **more: Any
) -> StageStatus:
    place = tmp_path / ".slurm/gpas-g-1"
    place.mkdir(parents=True, exist_ok=True)
    (place / "submission.json").write_text(json.dumps(submission_facts(time=time.time() - 60, keys=[[KEY]])))
    answer = Queue(time=time.time(), jobs={"gpas-g-1": {0: found}} if found else {}, **more)
    claim = Claim(
        submitter="host-1-abc", host="host", pid=1, time=time.time() - 60, submission="gpas-g-1", after=after,
        scheduler="slurm",
    )  # fmt: skip
    return Asked(SchedulerView(tmp_path), answer).state_of(KEY, last, claim)


def test_stages_after_a_failed_parent_are_cancelled_with_the_reason(tmp_path: Path) -> None:
    parent = make_attempt(tmp_path, "f" * 16, {"stage": "pretrain", "grid": "g", "name": "c"})
    journal = Journal(parent.journal_path)
    removed = Job("8_0", "CANCELLED", "DependencyNeverSatisfied")
    for outcome, wanted, cause in (
        ("failed", "cancelled", "its training g/c failed (no luck)"),
        ("diverged", "cancelled", "its training g/c diverged (no luck)"),
        ("cancelled", "cancelled", "its training g/c was cancelled (no luck)"),
        ("interrupted", "missing", "removed from the queue: a job that it depends on did not succeed"),
        ("done", "missing", "removed from the queue: a job that it depends on did not succeed"),
    ):
        journal.append(Outcome(outcome=outcome, step=0, cause="no luck", metrics={}))
        found = judged(tmp_path, MISSING, removed, after=("f" * 16,))
        assert (found.state, found.cause) == (wanted, cause)
        assert bool(found.blocker) == (wanted == "cancelled")
        assert judged(tmp_path, MISSING, None, after=("f" * 16,)).state == wanted
        waiting = judged(tmp_path, MISSING, Job("8_0", "PENDING", "Dependency"), after=("f" * 16,))
        assert waiting.state == "queued"


MISSING = StageStatus(state="missing", evidence="no attempt")
OWN = StageStatus(state="interrupted", evidence="its lock is free", source="lock", attempt=1, submission="gpas-g-1")


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        *((state, "queued") for state in sorted(_WAITING)),
        *((state, "running") for state in sorted(_AT_WORK)),
        *((state, "interrupted") for state in sorted(INTERRUPTED)),
        ("OUT_OF_MEMORY", "interrupted"), ("CANCELLED", "cancelled"), ("FAILED", "failed"), ("DEADLINE", "failed"),
        ("A_STATE_OF_TOMORROW", "running"),
    ],
)  # fmt: skip
def test_every_slurm_state_is_mapped(tmp_path: Path, state: str, wanted: str) -> None:
    found = Job("7_0", state, nodes="n1", end=time.time() - 1000, exit="1:0")
    assert judged(tmp_path, OWN, found).state == wanted
    without = judged(tmp_path, MISSING, found).state
    assert without == ("missing" if wanted == "interrupted" else wanted)


# What the attempts of a stage show.
SHOWN = {
    "missing": MISSING,
    "own": OWN,
    "failed": replace(OWN, state="failed", outcome="failed", source="outcome"),
    "saved": replace(OWN, outcome="interrupted", source="outcome"),
    "failed earlier": replace(OWN, state="failed", outcome="failed", source="outcome", submission="gpas-g-0"),
}


@cases("schedule/slurm/cases.yaml", ended=0.0, error="", evidence="")
def test_a_job_and_the_attempts_of_its_stage_decide_the_state(
    tmp_path: Path, shown: str, job: list[str] | None, ended: float, error: str, state: str, evidence: str
) -> None:
    """`job`: id, state, reason, node, exit code. `ended`: seconds ago. `error`: of a queue that does not answer."""
    end = time.time() - ended if ended else 0.0
    found = Job(*job[:3], nodes=job[3], end=end, exit=job[4]) if job else None
    seen = judged(tmp_path, SHOWN[shown], found, error=error)
    assert (seen.state, evidence in seen.evidence) == (state, True)


def test_a_process_failed_for_the_cause_that_it_recorded(tmp_path: Path) -> None:
    """Its log may end with warnings that torch prints as the process exits."""
    made = make_attempt(tmp_path, KEY, {})
    (made.path / "log-rank1.txt").write_text("Traceback\nWarning: destroy_process_group() was not called\n")
    process = subprocess.Popen(["false"])
    watch = supervisor._PeerSupervisor(SimpleNamespace(rank=1, memory=0))  # type: ignore[arg-type]
    child = supervisor._Child(made, None, process, 0.0)  # type: ignore[arg-type]
    watch._report(child)
    report = made.path / "rank1.json"
    assert read_json(report)["error"] == "rank 1: Warning: destroy_process_group() was not called"
    report.unlink()
    record_failure(made, 1, "out of memory: 4 rows at once do not fit the device")
    watch._report(child)
    assert read_json(report)["error"] == "process 1: out of memory: 4 rows at once do not fit the device"


def test_causes_are_compared_without_numbers_and_paths(tmp_path: Path) -> None:
    causes = [f"no file /data/{i}/x.txt for key {i:016x}" for i in range(3)]
    assert len({submission._same(cause) for cause in causes}) == 1
    for failures, name in ((3, "three"), (1, "one")):
        folder = tmp_path / name
        folder.mkdir()
        record = SimpleNamespace(failures=failures)
        made = submission.Submission(folder, record)  # type: ignore[arg-type]
        held = [bool(submission.count_failure(made, i, cause)) for i, cause in enumerate(causes)]
        assert held == [number == failures for number in (1, 2, 3)]
    assert "3 cells of three failed for the same reason" in submission.breaker(tmp_path / "three")
    assert "1 cell of one failed: no file" in submission.breaker(tmp_path / "one")


def test_answers_are_shared_and_failing_queries_back_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".slurm").mkdir()
    asked: list[str] = []

    def down(*words: str, **_more: object) -> str:
        asked.append(words[0])
        raise client.SlurmError("down", answered=False)

    monkeypatch.setattr(client, "run", down)
    monkeypatch.setattr(shutil, "which", lambda name: name)  # even if SLURM is not installed
    assert queue.current(tmp_path).error == "down"
    assert queue.current(tmp_path).error == "down"
    assert asked == ["squeue"]
    monkeypatch.setattr(queue, "_BACK_OFF_SECONDS", 0.0)
    monkeypatch.setattr(client, "run", lambda *words, **_more: asked.append(words[0]) or TITLES["squeue"])
    assert queue.current(tmp_path).error == ""
    assert queue.current(tmp_path).error == ""
    assert asked == ["squeue", "squeue"]


def test_the_newest_submitit_renders_our_script(tmp_path: Path) -> None:
    """Pin the one non-public method of submitit that is used, and the expected output."""
    from submitit.slurm.slurm import SlurmExecutor

    signature = inspect.signature(SlurmExecutor._make_submission_file_text)
    assert list(signature.parameters) == ["self", "command", "uid"]
    lines = sbatch_text(tmp_path).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "gpas_cli.schedule.slurm.supervisor" in next(line for line in lines if line.startswith("srun "))
