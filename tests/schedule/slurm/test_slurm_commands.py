"""`gpas` commands on jobs that users, SLURM or others have handled in unusual ways, with fake SLURM programs."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from cases import cases
from fake_slurm import TITLES, Programs, Site, row
from sessions import play, sessions
from slurm_steps import Steps, trainings

from gpas_cli.schedule.batch import scheduler as slurm_run
from gpas_cli.schedule.batch.view import WHOLE
from gpas_cli.schedule.slurm import accounting, queue, squeue


@sessions("schedule/slurm/sessions.yaml")
def test_a_session(steps: Steps, session: list[Any]) -> None:
    play(steps, session)


def test_jobs_are_queried_by_name_and_cached_per_user(
    site: Site, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit()
    steps.squeue("PENDING")
    # Even if a command takes long on a busy machine, the last answer counts as recent.
    monkeypatch.setattr(queue, "_within", lambda moment, seconds: moment > 0)
    site.gpas("status")
    before = len(site.programs.calls("squeue"))
    site.gpas("status")
    assert len(site.programs.calls("squeue")) == before
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    steps.states("queued")
    assert len(site.programs.calls("squeue")) == before + 1
    assert not any(word in ("-u", "--me") for call in site.programs.calls("squeue")[1:] for word in call.split())


@cases("schedule/slurm/cases.yaml")
def test_accounting_distinguishes_cancelled_jobs_from_jobs_that_can_never_start(
    programs: Programs, says: str, ended: dict[str, list[Any]]
) -> None:
    """`ended`: index in the array and reason, by the id of the job."""
    programs.put("sacct", says)
    found = accounting.sacct({"a": 1.0})
    assert {job.id: [index, job.reason] for _, index, job in found} == {"8": [WHOLE, ""], **ended}
    assert "-a " in programs.calls("sacct")[0]


def test_an_array_that_someone_renames_is_still_in_the_queue(site: Site, steps: Steps) -> None:
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
    steps.states("queued")
    steps.seen(1e9)
    (site.programs.folder / "renamed").write_text((site.programs.folder / "renamed").read_text().replace(name, "other"))
    steps.states("missing")


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
def test_a_squeue_that_gives_no_answer_is_no_evidence(site: Site, steps: Steps, how: str) -> None:
    site.submit()
    listed = trainings(site, "PENDING")
    site.programs.put("squeue", listed)
    answer = (TITLES["squeue"] + listed).encode()
    steps.states("queued")
    steps.seen(1e9)
    (site.programs.folder / "squeue.says").write_bytes(ODD[how](answer))
    cells = site.gpas("status", "small", "--json").json["cells"]
    assert {cell["state"] for cell in cells} == {"queued"}, cells
    assert "which is not the answer asked for" in cells[0]["evidence"]
    assert "nothing was submitted" in site.submit(expect=2).err
    assert len(site.programs.calls("sbatch")) == 2
    assert "nothing was cancelled" not in site.gpas("cancel", "small", "--yes").out
    steps.states("cancelled")  # requested, and a job that starts reads the request


@cases("schedule/slurm/cases.yaml")
def test_a_name_that_the_queue_no_longer_has_is_asked_for_by_id(
    site: Site, steps: Steps, by_id: str, wanted: str
) -> None:
    site.submit()
    steps.squeue("PENDING")
    steps.states("queued")
    steps.seen(1e9)
    site.programs.put("squeue", "")
    site.programs.script("squeue", f'case "$*" in *--jobs=*) {by_id};; *) cat $0.says;; esac')
    steps.states(wanted)
    queries = [call for call in site.programs.calls("squeue") if "--jobs=" in call]
    assert 1 <= len(queries) <= 2  # for both arrays; once more after the submitter is known to have ended


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
