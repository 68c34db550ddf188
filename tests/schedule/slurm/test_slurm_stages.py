"""Jobs with dependencies on a real controller: text before training, later stages after it."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster, until
from slurm_toy import INSTANTS, SlurmToy, die_at, gated, wait

from gpas_cli.state.observe import observe


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
    plan = toy("plan").out
    assert "text/*.txt is tokenised first" in plan
    preview = toy.submit("--dry-run")
    assert "afterok:<job id of gpas-small-" in preview
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
    said = toy("cancel", "pre-s1", "pre-gpas-s1").out
    assert f"tokenising text/*.txt continues, because other cells may use it; `scancel {text['job']}` stops it" in said


@pytest.mark.release
def test_lost_text_is_tokenised_again(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False)
    toy.submit()
    toy.finish()
    shutil.rmtree(toy.folder / "cache")
    toy.edit("seed: [1]", "seed: [1, 2]")
    assert "tokenising text/*.txt comes first" in toy.submit()
    toy.finish()
    toy.trained_once(texts=2)


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
    toy.finish(240)
    toy.trained_once(texts=1)


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
def test_stages_of_a_plugin_wait_for_their_prerequisites(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.long
def test_run_wait_also_waits_for_tokenisation(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, tokenised=False)
    said = toy.submit("--wait")
    assert "tokenising text/*.txt comes first" in said
    assert "2 done" in said
    toy = SlurmToy(tmp_path / "lost", cluster, tokenised=False)
    (toy.folder / "text").rename(tmp_path / "away")
    said = toy.submit("--wait", expect=3)
    assert "cancelled: small/pre-s1, small/pre-gpas-s1: tokenising text/*.txt failed" in said
