"""Jobs with dependencies on a real controller; the supervisor of an array element at the end of its job."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import STAGE, make_attempt, submission_facts
from cases import cases
from cluster import Cluster, until
from fake_slurm import Programs
from forking import Forked
from sessions import agrees
from slurm_toy import INSTANTS, SlurmToy, die_at, gated, wait

from gpas_cli.schedule.batch import element, supervisor
from gpas_cli.schedule.batch.element import MemoryWatch
from gpas_cli.schedule.slurm.supervisor import SlurmStart, _limit
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.state.observe import observe
from gpas_cli.store.records import ElementRecord
from gpas_cli.store.rundir import attempts, read_json, write_json


def names(toy: SlurmToy) -> dict[str, str]:
    """Return kind of stage -> SLURM dependency, for each queued array."""
    found = {}
    for path in toy.runs.glob(".slurm/gpas-*/elements.jsonl"):
        kind = json.loads(path.read_text().splitlines()[0])[0]["stage"]
        text = path.with_name("submission.sh").read_text()
        found[kind] = next((line for line in text.splitlines() if "--dependency" in line), "")
    return found


def test_text_is_tokenised_by_one_job_before_the_trainings(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False)
    assert "text/*.txt is tokenised first" in toy("plan").out
    assert "afterok:<job id of gpas-small-" in toy.submit("--dry-run")
    assert not toy.runs.exists()
    rivals = [toy.start("run", "grid", "--executor", "slurm", "--yes") for _ in range(2)]
    assert [rival.wait(60) for rival in rivals] == [0, 0]
    assert len([fact for fact in toy.recorded() if fact["stage"] == "tokenise"]) == 1
    assert "afterok" in names(toy)["pretrain"]
    toy.finish()
    assert sorted(fact["stage"] for fact in toy.facts()) == ["pretrain", "pretrain", "tokenise"]
    trained = [path for path in toy.attempts() if "pretrain" in (path / "attempt.json").read_text()]
    log = toy("logs", "pre-s1").out
    assert log.index("==> tokenise ") < log.index("==> pretrain "), "the text's log comes first"
    assert not any('"detail"' in (path / "journal.jsonl").read_text() for path in trained)  # only one job tokenised
    assert "no job to start" in toy.submit()


def test_cancelling_cells_mentions_that_their_tokenisation_continues(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False)
    toy.edit("grids:", "resources:\n  tokenise: {sbatch: [--hold]}\ngrids:")
    toy.submit()
    (text,) = toy("status", "--json").json["texts"]
    assert text["job"] in cluster.run("squeue", "-h", "-r", "-o", "%i %r")
    said = toy("cancel", "pre-s1", "pre-gpas-s1", "--yes").out
    assert f"tokenising text/*.txt continues, because other cells may use it; `scancel {text['job']}` stops it" in said


@pytest.mark.long
def test_an_unavailable_text_cancels_the_jobs_that_need_it(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False)
    text = toy.folder / "text"
    text.rename(tmp_path / "away")
    assert "3 jobs submitted" in toy.submit()
    toy.until(lambda states: set(states.values()) == {"cancelled"}, 60, ("queued", "cancelled"))
    for cell in toy.status().values():
        assert cell["cause"].startswith("tokenising text/*.txt failed (")
        assert Path(cell["cause"].rpartition("; ")[2]).is_file()
    assert "tokenising text/*.txt: failed" in toy("status").out
    until(lambda: toy.queue() == {}, 30, "SLURM to remove what waits")
    assert "no job to start" in toy.submit()
    (tmp_path / "away").rename(text)
    toy("retry", "--executor", "slurm", "--yes")
    toy.finish()
    assert sorted(fact["stage"] for fact in toy.facts()) == ["pretrain", "pretrain", "tokenise", "tokenise"]


@pytest.mark.release
def test_killed_submitters_leave_one_tokenisation_job(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False, seeds="1, 2, 3, 4, 5, 6")
    for seed, instant in enumerate(INSTANTS[::2], start=1):
        die_at(instant, toy, "--where", f"seed={seed}")
        assert set(toy.states().values()) <= {"missing", "queued", "running", "done"}
    toy.submit()
    toy.finish_once(texts=1)


STAGES = """
from dataclasses import dataclass
from gpas_cli.errors import GpasError
from gpas_cli.spec.stage import StageKind

@dataclass(frozen=True, kw_only=True)
class Nothing:
    pass

def run(stage):
    from gpas_cli.events import Outcome

    if (stage.root / f"fail-{stage.kind}").exists():
        raise GpasError("as asked")
    return Outcome("done", 1, metrics={"score": 0.5})

def cost(cell, cadence, resumed):
    return 1.0

STAGE_KINDS = {
    "tuning": StageKind(name="tuning", parameters=Nothing, trains=True, cost=cost, runner=run),
    "scoring": StageKind(name="scoring", parameters=Nothing, cost=cost, runner=run),
}
"""


@pytest.mark.release
def test_stages_of_a_plugin_wait_their_turn(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin file adds two kinds of stage: a training after the first one, and a stage that builds on it."""
    toy = SlurmToy(tmp_path / "toy", cluster)
    (toy.folder / "stages.py").write_text(STAGES)
    toy.edit("version: 1\n", "version: 1\nplugins: [stages.py]\n")
    toy.edit("data: notes}", "data: notes, tuning: {}, scoring: {}}")
    (toy.folder / "fail-tuning").touch()
    assert "6 jobs submitted" in toy.submit()
    assert {kind for kind, after in names(toy).items() if "after" in after} == {"tuning", "scoring"}
    toy.until(lambda states: set(states.values()) == {"failed"}, 120, ("queued", "running", "failed"))
    until(lambda: toy.queue() == {}, 30, "SLURM to remove what waits")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    for fact in [fact for fact in toy.recorded() if fact["stage"] == "scoring"]:
        # SLURM's answer is cached for some seconds.
        until(lambda key=fact["key"]: observe(toy.runs, key).state == "cancelled", 30, "a new answer of SLURM")
        seen = observe(toy.runs, fact["key"])
        assert seen.cause == f"its tuning of {fact['grid']}/{fact['name']} failed (as asked)"
    (toy.folder / "fail-tuning").unlink()
    assert "4 jobs submitted" in toy("retry", "--executor", "slurm", "--yes").out
    toy.finish()
    kinds = Counter(fact["stage"] for fact in toy.facts())
    assert kinds == {"pretrain": 2, "tuning": 4, "scoring": 2}


@pytest.mark.release
def test_a_network_trained_on_two_nodes_is_evaluated_by_one_process(cluster: Cluster, tmp_path: Path) -> None:
    # The names of this cluster's nodes do not resolve.
    two = SlurmToy(
        tmp_path / "two", cluster, resources="ranks: 2, nodes: 2, cpus: 2, environment: [MASTER_ADDR=127.0.0.1]"
    )
    one = SlurmToy(tmp_path / "one", cluster)
    for toy in (two, one):
        toy.edit("data: notes}", "data: notes, importance: {eval_tokens: 200}}")
    assert one.start("run", "grid", "--executor", "local", "--yes").wait(120) == 0
    two.submit()
    two.finish()
    found = {toy: {cell: facts["metrics"] for cell, facts in toy.status().items()} for toy in (one, two)}
    for cell, metrics in found[one].items():
        assert found[two][cell]["mean_importance"] == pytest.approx(metrics["mean_importance"], abs=1e-5)
        assert found[two][cell]["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    started = {event["stage"]: event["processes"] for event in two.events() if event["kind"] == "start"}
    assert started == {"pretrain": 2, "importance": 1}


@pytest.mark.long
def test_dependents_keep_waiting_for_a_requeued_job(cluster: Cluster, tmp_path: Path) -> None:
    """A parent that is warned, saves and is requeued has not failed: its child stays queued, and is submitted once."""
    toy = SlurmToy(tmp_path / "toy", cluster, steps=800, checkpoint_every=10**6)
    gated(toy)
    toy.edit("data: notes}", "data: notes, importance: {eval_tokens: 200}}")
    toy.submit()
    wait(toy.training)
    parent = next(job for job, state in toy.queue().items() if state == "RUNNING")
    cluster.run("scancel", "--signal=USR2", parent)
    wait(lambda: len(toy.attempts()) == 2)
    assert "PENDING" in toy.queue().values()
    assert "0 jobs submitted, 2 already queued or running" in toy.submit()
    toy.finish()
    assert [fact["stage"] for fact in toy.facts()].count("pretrain") == 2
    assert [fact["stage"] for fact in toy.facts()].count("importance") == 1


KEY, NAME = "0123456789abcdef", "gpas-g-0123456789ab"
JOB = Path(__file__).with_name("supervised_job.py")
SUPERVISOR = """
import sys
from pathlib import Path
from gpas_cli.schedule.batch import element, supervisor
from gpas_cli.schedule.slurm.supervisor import SlurmStart
supervisor.JOB = (sys.executable, "-S", sys.argv[2])
supervisor._POLL_SECONDS = 0.02
if len(sys.argv) > 3:  # the kernel's count of kills goes up each time that it is read
    counts = iter(range(1000))
    element._kernel_kills = lambda: next(counts)
sys.exit(supervisor.main(Path(sys.argv[1]), SlurmStart))
"""


def supervise(tmp_path: Path, act: str, *more: str, **resources: Any) -> tuple[int, str]:
    """Run the only element of a submission on node n1, as SLURM would; return its exit code and its output."""
    runs = tmp_path / "runs"
    place = runs / ".slurm" / NAME
    place.mkdir(parents=True)
    project = {"config": str(tmp_path / "experiments.yaml"), "cache": str(tmp_path), "database": ""}
    about = submission_facts(time=time.time(), code="c", git={}, project=project, keys=[[KEY]])
    write_json(place / "submission.json", about)
    larger, reduce = resources.pop("larger", ()), resources.pop("reduce", False)
    job = {**STAGE, "key": KEY, "axes": {"act": act}, "threads": 1, "resources": plain(Resources(**resources))}
    job |= {"larger": larger, "reduce": reduce}
    (place / "elements.jsonl").write_text(json.dumps([job]) + "\n")
    submitter = Submitter(runs)
    write_claim(runs, KEY, submitter, "slurm", submission=NAME, index=0)
    submitter.close()
    slurm = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    root = str(Path(__file__).parents[3])
    env = {**os.environ, **slurm, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    process = Forked(SUPERVISOR, str(place), str(JOB), *more, output=tmp_path / "supervisor.txt", environment=env)
    try:
        return process.wait(60), process.output.read_text()
    finally:
        process.end()


def facts(tmp_path: Path) -> list[dict[str, Any]]:
    return [read_json(attempt.attempt_path) for attempt in attempts(tmp_path / "runs", KEY)]


def test_a_requeued_job_is_not_reduced_again_for_the_memory_of_an_earlier_one(tmp_path: Path) -> None:
    made = make_attempt(tmp_path / "runs", KEY, {"resources": {"micro_batch": 8}})
    supervise(tmp_path, "done", reduce=True)
    place = tmp_path / "runs/.slurm" / NAME
    start = SlurmStart(place, {"SLURM_ARRAY_TASK_ID": "0"})
    assert made.number == 1
    assert facts(tmp_path)[1]["resources"]["micro_batch"] == 4
    assert facts(tmp_path)[1]["retry"]["why"] == "out of memory; now 4 rows at a time"
    (job,) = start.jobs
    assert (job.reduce, job.again) == (False, "")


@cases("schedule/slurm/cases.yaml", oom=False, code=0, why="", error="", says="")
def test_how_a_killed_job_goes_on(
    tmp_path: Path, asked: dict[str, Any], oom: bool, code: int, rows: list[int], why: str, error: str, says: str
) -> None:
    """`oom`: the kernel's out-of-memory killer has killed it. `rows`: at a time, of each attempt."""
    found, said = supervise(tmp_path, asked.pop("act", "killed"), *["kernel"] * oom, micro_batch=8, **asked)
    assert (found, says in said) == (code, True), said
    first, *others = facts(tmp_path)
    assert [fact["resources"]["micro_batch"] for fact in (first, *others)] == rows
    assert "retry" not in first
    assert all(fact["retry"]["of"] == 1 and agrees(fact["retry"]["why"], why) for fact in others)
    ended = attempts(tmp_path / "runs", KEY)[0].read_exit()
    assert (ended.signal, agrees(ended.error, error)) == (9, True)


def test_a_job_leaves_a_node_without_the_requested_gpus(tmp_path: Path, programs: Programs) -> None:
    shown = "JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState=PENDING ExcNodeList=n[5-6],n9 Partition=low"
    programs.put("scontrol", f"{shown}\n")
    code, said = supervise(tmp_path, "no-gpus", gpus=1)
    assert code == 75, said
    assert [call for call in programs.calls("scontrol") if "show" not in call] == [
        "requeue 7_0", "update JobId=7 ExcNodeList=n1,n9,n[5-6]",
    ]  # fmt: skip
    assert observe(tmp_path / "runs", KEY).attempt == 1
    assert read_json(attempts(tmp_path / "runs", KEY)[0].exit_path)["node"] == "n1"


def test_faulty_nodes_are_avoided_only_for_a_while(tmp_path: Path, programs: Programs) -> None:
    programs.put("scontrol", "")
    supervise(tmp_path, "no-gpus", gpus=1, retries=1)
    assert programs.calls("scontrol") == []
    programs.put("squeue", "")
    seen = observe(tmp_path / "runs", KEY)
    assert seen.state == "failed"
    assert seen.cause == "1 attempts in a row made no progress; the job asked for 1 GPU, but none is visible on n1"


@cases("schedule/slurm/cases.yaml")
def test_the_memory_of_a_job_on_its_node(environ: dict[str, str], wanted: int) -> None:
    assert _limit(environ) == wanted


def test_nearly_exhausted_memory_is_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = MemoryWatch(100 << 20)
    monkeypatch.setattr(element, "_resident", {1: 30 << 20, 2: 62 << 20, 3: 0}.__getitem__)
    watch.measure([1])
    assert watch.evidence() == ""
    watch.measure([1, 2])
    watch.measure([3])  # both jobs have ended
    assert watch.evidence() == "the 2 cells of its job used 92 MiB of 100 MiB"
    watch.reset()
    assert watch.evidence() == ""


@cases("schedule/slurm/cases.yaml")
def test_kills_are_counted_by_the_kernel(tmp_path: Path, groups: str, file: str, text: str) -> None:
    (tmp_path / "groups").write_text(groups)
    place = tmp_path / "mount" / file
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert element._kernel_kills(tmp_path / "groups", tmp_path / "mount") == 2
    place.unlink()
    assert element._kernel_kills(tmp_path / "groups", tmp_path / "mount") == 0


def watching(runs: Path, ends: str, tasks: int) -> Any:
    """Return the supervisor of a job that has ended as a shell command ends."""
    attempt = make_attempt(runs, KEY)
    process = subprocess.Popen(["sh", "-c", ends])
    process.wait()
    start = SimpleNamespace(memory=0, tasks=tasks, jobs=[None], runs=runs)
    watch = supervisor._RankZeroSupervisor(start)  # type: ignore[arg-type]
    job = ElementRecord.of(attempt.read_attempt(), threads=1)
    watch.children = [supervisor._Child(attempt, job, process, time.monotonic())]  # type: ignore[arg-type]
    return watch


def test_a_warning_before_a_report_starts_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that saved exits with 75, as one does whose peer was killed: only the warning tells them apart."""
    watch = watching(tmp_path, "exit 75", tasks=2)
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(supervisor._Child, "kill_if_peer_ended", lambda _: watch._on_warning(signal.SIGTERM, None))
    monkeypatch.setattr(watch, "_start_attempts", lambda jobs: pytest.fail(f"started {list(jobs)}"))
    monkeypatch.setattr(supervisor, "_REPORT_SECONDS", 0.1)
    assert not watch._retry_jobs()


def test_a_job_that_is_killed_again_at_once_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(tmp_path, "kill -9 $$", tasks=1)
    (child,) = watch.children
    monkeypatch.setattr(watch, "_start_attempts", lambda jobs: watch.children.extend(child for _ in jobs))
    assert watch._continues()
    assert watch.children == [child]
