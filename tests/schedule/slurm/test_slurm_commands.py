"""`gpas` commands on jobs that users, SLURM or others have handled in unusual ways, with fake SLURM programs."""

import os
import random
import time
from collections.abc import Callable

import pytest
from attempts import make_attempt, write_events
from cases import cases
from face import end
from fake_slurm import TITLES, Programs, Site, row

from gpas_cli.events import event_of
from gpas_cli.schedule.slurm import accounting, queue, squeue
from gpas_cli.schedule.slurm import scheduler as slurm_run
from gpas_cli.schedule.slurm.job import NEVER, WHOLE
from gpas_cli.store.rundir import read_json, write_json


def states_of(site: Site) -> dict[str, str]:
    return {cell["name"]: cell["state"] for cell in site.gpas("status", "small", "--json").json["cells"]}


def trainings(site: Site, state: str, **more: str) -> str:
    """Return squeue lines for the array of the eight trainings and for the job that tokenises."""
    text, array = site.names()
    lines = (row(array, state, ArrayJobID="8", ArrayTaskID=str(i), **more) for i in range(8))
    return row(text, "RUNNING") + "".join(lines)


def test_hidden_jobs_of_another_user_are_not_submitted_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.submit()
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    cells = site.gpas("status", "small", "--json").json["cells"]
    assert {cell["state"] for cell in cells} == {"unknown"}
    assert "SLURM does not show you this job" in cells[0]["evidence"]
    assert "0 jobs submitted" in site.submit("--where", "gate=none").out
    assert len(site.programs.calls("sbatch")) == 2


def test_jobs_are_queried_by_name_and_cached_per_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING"))
    # Even if a command takes long on a busy machine, the last answer counts as recent.
    monkeypatch.setattr(queue, "_within", lambda moment, seconds: moment > 0)
    site.gpas("status")
    before = len(site.programs.calls("squeue"))
    site.gpas("status")
    assert len(site.programs.calls("squeue")) == before
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert set(states_of(site).values()) == {"queued"}
    assert len(site.programs.calls("squeue")) == before + 1
    assert not any(word in ("-u", "--me") for call in site.programs.calls("squeue")[1:] for word in call.split())


def test_a_job_cancelled_while_waiting_for_another_stays_cancelled(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "CANCELLED", Reason="Dependency"))
    assert set(states_of(site).values()) == {"cancelled"}
    assert "0 jobs submitted" in site.submit().out
    site.programs.put("squeue", trainings(site, "CANCELLED", Reason="DependencyNeverSatisfied"))
    (site.gpas.runs / f".slurm/.queue-{os.getuid()}.json").unlink()
    assert set(states_of(site).values()) == {"missing"}


def without(lines: str, *indices: int) -> str:
    """Return squeue lines without those of some array elements."""
    gone = {f"8{' ' * 19}{index} " for index in indices}
    return "".join(f"{line}\n" for line in lines.splitlines() if not any(text in line for text in gone))


def test_an_element_removed_with_scancel_while_it_waits_stays_cancelled(site: Site) -> None:
    """SLURM 22.05 keeps no record of it, neither in the queue nor in accounting."""
    site.programs.put("scontrol", "MaxArraySize = 1001\nMinJobAge = 300 sec\n")
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING"))
    states_of(site)
    site.programs.put("squeue", without(trainings(site, "PENDING"), 2))
    queue_of(site, seen=time.time() - 100)
    cell = site.gpas("status", "small", "--json").json["cells"][2]
    assert (cell["state"], cell["cause"]) == ("cancelled", "cancelled in SLURM")
    assert cell["evidence"] == "SLURM 8_2 CANCELLED (removed from the queue before it started)"
    said = site.gpas("why", cell["name"], expect=2).err
    assert "has no attempt yet; it is cancelled: SLURM 8_2 CANCELLED (removed from the queue" in said
    assert "0 jobs submitted" in site.submit().out
    site.programs.put("squeue", "")  # the controller has forgotten the whole array
    queue_of(site, seen=time.time() - 100)
    assert states_of(site)[cell["name"]] == "cancelled"
    assert "jobs submitted" in site.gpas("retry", "--executor", "slurm", "--yes").out
    assert len(site.programs.calls("sbatch")) == 4


@cases("schedule/slurm/cases.yaml")
def test_a_vanished_element_is_cancelled_only_on_evidence(site: Site, evidence: str, wanted: str) -> None:
    """Nobody looked while it waited: without accounting it may have started, ended and been forgotten."""
    site.submit()
    tokenised(site)
    array = site.names()[1]
    lines = without(trainings(site, "PENDING"), 2)
    made = read_json(site.gpas.runs / ".slurm" / array / "submission.json")["time"]
    if evidence == "accounting":
        site.programs.put("sacct", "")
    if evidence == "log":
        (site.gpas.runs / ".slurm" / array / "8_2_0_log.out").write_text("")
    if evidence == "whole array":
        lines = ""
    if evidence.startswith("ended"):
        end = made + (3600 if "late" in evidence else 5)
        site.programs.put("sacct", f"8_0|{array}|COMPLETED|0:0|n1|{made:.0f}|{end:.0f}\n")
        lines = ""
    site.programs.put("squeue", lines)
    cell = site.gpas("status", "small", "--json").json["cells"][2]
    assert cell["state"] == wanted, cell
    if wanted == "unknown":
        assert "`gpas retry` runs it" in cell["cause"]


def queue_of(site: Site, *, seen: float) -> None:
    """Make SLURM's last answer be from the time `seen`."""
    path = site.gpas.runs / f".slurm/.queue-{os.getuid()}.json"
    write_json(path, {**read_json(path), "time": seen})


def tokenised(site: Site) -> None:
    """Make the job that tokenises the text end well."""
    text = read_json(site.gpas.runs / ".slurm" / site.names()[0] / "submission.json")["keys"][0][0]
    attempt = make_attempt(site.gpas.runs, text, {"stage": "tokenise"})
    write_events(attempt, [event_of({"kind": "outcome", **end("done")})])


def test_a_requeued_cell_is_shown_with_its_place_and_the_command_that_releases_it(site: Site) -> None:
    site.submit()
    attempt = site.gpas.attempt("pre-s1", ("outcome", end("interrupted")))
    made = {"submission": site.names()[1], "index": 0, "job": "8_0", "restart": 0, "nodes": "n1"}
    write_json(attempt.attempt_path, {**read_json(attempt.attempt_path), "slurm": made})
    site.programs.put("squeue", trainings(site, "PENDING", Reason="Priority"))
    said = " ".join(site.gpas("status", "small").out.split())
    assert "SLURM 8_0 PENDING (Priority, 1st of 8 in low), after attempt 1 (interrupted)" in said
    site.programs.put("squeue", trainings(site, "PENDING", Reason="job requeued in held state"))
    queue_of(site, seen=1.0)
    said = " ".join(site.gpas("status", "small").out.split())
    assert "8_0 PENDING (held: job requeued in held state; `scontrol release 8_0` releases it), after attempt 1" in said


def test_accounting_distinguishes_cancelled_jobs_from_jobs_that_can_never_start(programs: Programs) -> None:
    programs.put(
        "sacct",
        "7_0|a|CANCELLED by 1000|0:0|None assigned|None|200\n7_1|a|CANCELLED|0:0|None assigned|None|200\n"
        "7_2|a|CANCELLED|0:0|n1|100|200\n8|b|CANCELLED by 1000|0:0|None assigned|200|200\n"
        "7_[4,6-7%2]|a|CANCELLED by 1000|0:0|None assigned|200|200\n7_[9]|a|FAILED|1:0|n1|100|200\n",
    )
    ended = {job.id: (index, job.reason) for _, index, job in accounting.sacct({"a": 1.0})}
    assert ended == {
        "7_0": (0, ""), "7_1": (1, NEVER), "7_2": (2, ""), "8": (WHOLE, ""),
        **{f"7_{i}": (i, "") for i in (4, 6, 7, 9)},
    }  # fmt: skip
    assert "-a " in programs.calls("sacct")[0]


def test_an_array_that_someone_renames_is_still_in_the_queue(site: Site) -> None:
    site.submit()
    name = site.names()[1]
    assert (site.gpas.runs / ".slurm" / name / "job.json").exists()
    width = squeue._COLUMNS["Name"]
    lines = trainings(site, "PENDING").splitlines()
    script = site.gpas.runs / ".slurm" / name / "submission.sh"
    (site.programs.folder / "renamed").write_text(
        "".join(f"{'mine'.ljust(width)}{line[width:]}{script}\n" for line in lines if line.startswith(name))
    )
    site.programs.script("squeue", 'cat $0.says; case "$*" in *--jobs=*) cat ${0%squeue}renamed;; esac')
    assert set(states_of(site).values()) == {"queued"}
    queue_of(site, seen=1.0)
    (site.programs.folder / "renamed").write_text((site.programs.folder / "renamed").read_text().replace(name, "other"))
    assert set(states_of(site).values()) == {"missing"}


def test_held_jobs_are_named_with_the_command_that_releases_them(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING", Reason="launch_failed_requeued_held"))
    said = site.submit().out
    assert (
        "small/pre-s1: SLURM 8_0 PENDING (held: launch_failed_requeued_held; `scontrol release 8_0` releases it)"
        in said
    )
    assert "and 3 more jobs are held" in said
    assert "scontrol release 8_0" in site.gpas("status", "small").out


def test_run_wait_names_held_jobs_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_run, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(queue, "FRESH_SECONDS", 0.0)
    width = squeue._COLUMNS["Name"]
    line = row(state="PENDING", ArrayJobID="@", Reason="JobHeldUser")[width:].rstrip("\n").replace("@", "$id")
    site.sbatch(f"echo $id; printf '%-{width}s%s\\n' $name \"{line}\" >> ${{0%sbatch}}squeue.says")
    site.programs.put("squeue", "")
    site.programs.script(
        "squeue",
        'echo >> $0.asked\nif [ "$(sed -n \'$=\' $0.asked)" -gt 2 ]; then sed "s/PENDING  /CANCELLED/" $0.says; '
        "else cat $0.says; fi",
    )
    site.gpas.edit("seed: [1, 2]", "seed: [1]")
    said = site.submit("--wait", "--where", "norm=pre", "--where", "gate=none", expect=None).out
    assert said.count("small/pre-s1: SLURM 8_0 PENDING (held; `scontrol release 8_0` releases it)") == 1


def test_an_undeclared_cell_is_cancelled_by_its_key(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING"))
    site.programs.put("scancel", "")
    key = site.gpas.entry("post-gpas-s2").key
    site.gpas.edit("      norm: [pre, post]", "      norm: [pre]")
    assert "no cell 'post-gpas-s2'" in site.gpas("cancel", "post-gpas-s2", "--yes", expect=2).err
    said = site.gpas("cancel", key[:8], "--yes").out
    assert "small/post-gpas-s2: removed from the queue (SLURM 8_7)" in said
    assert site.programs.calls("scancel") == ["8_7"]
    assert "no cell 'ffff'" in site.gpas("cancel", "ffff", "--yes", expect=2).err


def test_cancelling_a_grid_takes_one_call_of_scancel_for_each_array(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", without(trainings(site, "PENDING"), 3))
    site.programs.put("scancel", "")
    said = site.gpas("cancel", "small", "--yes").out
    assert "small/pre-s1: removed from the queue (SLURM 8_0)" in said
    assert site.programs.calls("scancel") == ["8_[0-2,4-7]"]
    assert set(states_of(site).values()) == {"cancelled", "missing"}


def test_cells_are_cancelled_although_scancel_fails(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING"))
    site.programs.put("scancel", "scancel: error: Access/permission denied", code=1)
    said = site.gpas("cancel", "small", "--yes").out
    assert "small/pre-s1: its job will exit when it starts (scancel: Access/permission denied)" in said
    assert set(states_of(site).values()) == {"cancelled"}


NOISE = """\
srun: error: n1: task 0: Exited with exit code 127
srun: launch/slurm: _step_signal: Terminating StepId=8.0
slurmstepd-n1: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***
"""


@pytest.mark.parametrize(
    "cause", ["sh: 1: exec: python9: not found", "srun: error: Unable to create step for job 8: Memory required"]
)
def test_a_failure_before_the_first_attempt_shows_its_cause(site: Site, cause: str) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "FAILED", Reason="NonZeroExitCode", exit_code=str(127 << 8)))
    log = site.gpas.runs / ".slurm" / site.names()[1] / "8_0_0_log.out"
    log.write_text(f"{cause}\n{NOISE}")
    cell = next(cell for cell in site.gpas("status", "small", "--json").json["cells"] if cell["name"] == "pre-s1")
    assert (cell["state"], cell["cause"]) == ("failed", f"failed with exit 127:0: {cause} ({log})")
    for words in ((), ("-f",)):
        said = site.gpas("logs", "pre-s1", *words).out
        assert "small/pre-s1 has no attempt; it is failed" in said
        assert f"==> its job: {log}\n| {cause}\n" in said
    assert "==>" not in site.gpas("logs", "pre-s1", "--events").out


def test_logs_of_a_queued_cell_say_what_it_waits_for(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING", Reason="Priority"))
    assert "it is queued (SLURM 8_0 PENDING (Priority))" in site.gpas("logs", "pre-s1").out


def test_an_answer_from_before_the_end_of_an_attempt_is_renewed(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "RUNNING", NodeList="n1"))
    assert set(states_of(site).values()) == {"running"}
    attempt = site.gpas.attempt("pre-s1", ("outcome", end("interrupted")))
    made = {"submission": site.names()[1], "index": 0, "job": "7_0", "restart": 0, "nodes": "n1"}
    write_json(attempt.attempt_path, {**read_json(attempt.attempt_path), "slurm": made})
    site.programs.put("squeue", trainings(site, "PENDING"))
    assert states_of(site)["pre-s1"] == "queued"


def test_stages_after_a_divergence_keep_their_reason_after_a_retry(site: Site) -> None:
    text = (site.gpas.folder / "experiments.yaml").read_text()
    fixed = "{name: fixed, like: gpas, learnable: false, from_trained: true}"
    site.gpas.declare(
        text.replace("gate: [none, gpas]", f"gate: [none, gpas, {fixed}]").replace("seed: [1, 2]", "seed: [1]")
    )
    site.submit("--where", "norm=pre")
    site.gpas.ended("pre-gpas-s1", "diverged", cause="loss is nan")
    pupils = site.names()[2]
    site.programs.put("squeue", row(pupils, "CANCELLED", ArrayJobID="9", Reason="DependencyNeverSatisfied"))

    def reason() -> tuple[str, str]:
        cells = site.gpas("status", "small", "--json").json["cells"]
        return next((cell["state"], cell["cause"]) for cell in cells if cell["name"] == "pre-fixed-s1")

    before = reason()
    assert before == ("cancelled", "its training small/pre-gpas-s1 diverged (loss is nan)")
    said = site.gpas("retry", "--where", "norm=pre", "--executor", "slurm", "--yes", expect=None)
    assert "1 job submitted" not in said.out
    assert reason() == before


NAMED = b"gpas-"
ODD: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda queue: b"",
    "rubbish": lambda queue: random.Random(1).randbytes(5000),
    "a line": lambda queue: b"Scheduled maintenance on Monday\n",
    "no titles": lambda queue: queue[queue.index(NAMED) :],
    "cut at the end of a line": lambda queue: queue[: queue.rindex(b"\n", 0, -1)],
    "cut in a name": lambda queue: queue[: queue.rindex(NAMED) + 9],
    "another layout": lambda queue: b"             JOBID PARTITION     NAME     USER ST\n 8_0 low gpas-sma root PD\n",
}


@pytest.mark.parametrize("how", ODD)
def test_a_squeue_that_gives_no_answer_is_no_evidence(site: Site, how: str) -> None:
    site.submit()
    listed = trainings(site, "PENDING")
    site.programs.put("squeue", listed)
    answer = (TITLES["squeue"] + listed).encode()
    assert set(states_of(site).values()) == {"queued"}
    queue_of(site, seen=1.0)
    (site.programs.folder / "squeue.says").write_bytes(ODD[how](answer))
    cells = site.gpas("status", "small", "--json").json["cells"]
    assert {cell["state"] for cell in cells} == {"queued"}, cells
    assert "which is not the answer asked for" in cells[0]["evidence"]
    assert "nothing was submitted" in site.submit(expect=2).err
    assert len(site.programs.calls("sbatch")) == 2
    assert "nothing was cancelled" not in site.gpas("cancel", "small", "--yes").out
    assert set(states_of(site).values()) == {"cancelled"}  # requested, and a job that starts reads the request


def test_lines_of_a_site_around_an_answer_are_ignored(site: Site) -> None:
    site.submit()
    answer = TITLES["squeue"] + trainings(site, "PENDING")
    (site.programs.folder / "squeue.says").write_text(f"Maintenance on Monday\n\n{answer}CLUSTER: other\n")
    assert set(states_of(site).values()) == {"queued"}


@cases("schedule/slurm/cases.yaml")
def test_a_name_that_the_queue_no_longer_has_is_asked_for_by_id(site: Site, by_id: str, wanted: str) -> None:
    site.submit()
    site.programs.put("squeue", trainings(site, "PENDING"))
    assert set(states_of(site).values()) == {"queued"}
    queue_of(site, seen=1.0)
    site.programs.put("squeue", "")
    site.programs.script("squeue", f'case "$*" in *--jobs=*) {by_id};; *) cat $0.says;; esac')
    assert set(states_of(site).values()) == {wanted}
    queries = [call for call in site.programs.calls("squeue") if "--jobs=" in call]
    assert 1 <= len(queries) <= 2  # for both arrays; once more after the submitter is known to have ended


def test_an_accounting_that_gives_no_answer_is_no_evidence_of_a_cancellation(site: Site) -> None:
    site.submit()
    tokenised(site)
    site.programs.put("squeue", without(trainings(site, "PENDING"), 2))
    site.programs.script("sacct", "true")
    assert site.gpas("status", "small", "--json").json["cells"][2]["state"] == "unknown"


def test_a_scontrol_that_gives_no_answer_does_not_replace_a_refused_squeue(site: Site) -> None:
    site.submit()
    site.programs.put("squeue", "squeue: error: Access/permission denied", code=1)
    site.programs.script("scontrol", "true")
    assert set(states_of(site).values()) == {"queued"}
    site.programs.script("scontrol", "echo No jobs in the system")
    queue_of(site, seen=1.0)
    (site.gpas.runs / f".slurm/.queue-{os.getuid()}.json").unlink()
    assert set(states_of(site).values()) == {"missing"}


def test_an_array_that_sbatch_submits_before_it_fails_is_found(site: Site) -> None:
    """A site's plugin may fail when SLURM has accepted the array."""
    width = squeue._COLUMNS["Name"]
    line = row("", ArrayJobID="@")[width:].rstrip("\n").replace("@", "$id")
    site.sbatch(f"printf '%-{width}s%s\\n' $name \"{line}\" >> ${{0%sbatch}}squeue.says; echo failed >&2; exit 1")
    words = ("--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")
    said = site.submit(*words).out
    assert "as SLURM job 7:" in said
    assert "as SLURM job 8:" in said
    assert "0 jobs submitted" in site.submit(*words).out
