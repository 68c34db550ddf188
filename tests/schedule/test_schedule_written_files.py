"""The files exchanged by jobs and schedulers have the fields of version 1."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import entry, run

from gpas_cli.errors import GpasError
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.project import Project
from gpas_cli.schedule.local import run as local
from gpas_cli.schedule.process import record_exit
from gpas_cli.schedule.slurm import submission
from gpas_cli.schedule.slurm.allocation import ElementStart
from gpas_cli.state import cancellation, rerun
from gpas_cli.state.claims import Submitter, claim_path, write_claim
from gpas_cli.store.records import SubmissionRecord
from gpas_cli.store.rundir import attempts, read_json, read_record, stage_dir
from gpas_cli.store.snapshot import Snapshot

OLD = Path(__file__).parents[1] / "store/data/version_1/runs"
LOCAL, KILLED = "f9c77c5bd118ffff", "ce77848a75c2b536"
CELL = entry()
(JOB,) = stage_jobs([CELL]).values()


def keys(value: Any) -> Any:
    """Return an object's field names, including nested ones. The settings of a cell are a separate format."""
    if isinstance(value, list):
        return [keys(item) for item in value[:1]]
    if not isinstance(value, dict):
        return None
    return {name: keys(item) for name, item in value.items() if name not in ("axes", "cell")}


def same_fields(new: Path, old: Path) -> bool:
    return bool(keys(json.loads(new.read_text())) == keys(json.loads(old.read_text())))


def test_an_attempt_on_this_machine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a checkout: an installed package has no commit to record.
    copied, git = local.snapshot, {"commit": "a" * 40, "dirty": False}
    monkeypatch.setattr(local, "snapshot", lambda *given, **named: replace(copied(*given, **named), git=git))
    run(project, CELL)
    (made,) = attempts(project.runs, JOB.key)
    old = attempts(OLD, LOCAL)[0]
    assert same_fields(made.attempt_path, old.attempt_path)
    assert same_fields(made.path / "process.json", old.path / "process.json")
    assert same_fields(made.exit_path, old.exit_path)


def test_an_attempt_of_an_array_element(project: Project) -> None:
    code = Snapshot("c0de", project.runs / ".code/c0de", {"commit": "a" * 40, "dirty": False})
    submitter = Submitter(project.runs)
    old = OLD / ".slurm/gpas-toy-0123456789ab"
    made = submission.record(project, "gpas-g-0", [[JOB]], code, submitter, {JOB.key})
    made.submitted("7")
    for name in ("submission.json", "job.json", "elements.jsonl"):
        assert same_fields(made.folder / name, old / name)
    write_claim(project.runs, JOB.key, submitter, "slurm", submission=made.name, index=0, after=[])
    claim = read_json(claim_path(project.runs, JOB.key))
    assert claim.pop("scheduler") == "slurm"  # version 1 did not write it
    assert list(claim) == list(read_json(claim_path(OLD, KILLED)))
    start = ElementStart(made.folder, {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7"})
    (job,) = start.jobs
    first = start.create_attempt(job)
    assert first is not None
    record_exit(first, None, 9)
    old_first, _ = attempts(OLD, KILLED)
    assert same_fields(first.attempt_path, old_first.attempt_path)
    assert same_fields(first.exit_path, old_first.exit_path)
    submitter.close()


@pytest.mark.parametrize("damage", [b"{", b"[" * 200_000, b"\xff\xfe[", b"5", b"[5]"])
def test_a_damaged_array_element_is_one_message(tmp_path: Path, damage: bytes) -> None:
    recorded = read_record(SubmissionRecord, OLD / ".slurm/gpas-toy-0123456789ab/submission.json")
    made = submission.Submission(tmp_path, recorded)
    (tmp_path / "elements.jsonl").write_bytes(damage + b"\n")
    with pytest.raises(GpasError, match=r"elements\.jsonl, line 1"):
        made.element(0)
    with pytest.raises(GpasError, match="has no element 1"):
        made.element(1)


def test_requests(project: Project) -> None:
    old = attempts(OLD, "8cadd676e2b2ad58")[1]
    stage_dir(project.runs, JOB.key).mkdir(parents=True)
    rerun.request(project.runs, JOB.key)
    assert same_fields(stage_dir(project.runs, JOB.key) / "rerun.json", old.path.parent / "rerun.json")
    cancellation.request(project.runs, signalled=True)
    assert same_fields(cancellation.request_path(project.runs), cancellation.request_path(old.path))
