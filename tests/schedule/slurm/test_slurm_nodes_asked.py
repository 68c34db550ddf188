"""`gpas doctor --nodes` with fake SLURM programs: each resource profile is tried, and the queue is left empty."""

import json

import pytest
from fake_slurm import Site

from gpas_cli.schedule.slurm import findings as findings_module

ANSWER = {"host": "n7", "time": 0.0, "shared": True, "lock": "held", "scontrol": True, "python": "3.12.1",
          "torch": "2.9", "gpus": 0}  # fmt: skip
PROFILES = """\
    resources: {partition: gpu, gpus: 2, python: /opt/python9, setup: [module load cuda], environment: [A=b c],
                sbatch: [--mail-type=END, --reservation=night]}
"""


@pytest.fixture
def asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a project with two profiles; the first job that sbatch sees is that of the first profile, of small."""
    site.gpas.edit("    title: Small\n", f"    title: Small\n{PROFILES}")
    monkeypatch.setattr(findings_module, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(findings_module, "_LATE_SECONDS", 0.0)
    site.programs.put("scancel", "")
    return site


def findings(site: Site) -> dict[str, str]:
    """Return the findings about nodes by name; problems and notes are marked."""
    found = site.gpas("doctor", "--nodes", "--json", expect=None).json["findings"]
    return {
        f"{each['what']}": f"{each['status']}: {each['detail']}"
        for each in found
        if "node" in each["detail"] + each["what"]
    }


def keep(site: Site, then: str) -> None:
    """Let sbatch save a copy of the script as script.N and then run `then`, with the log's path in $log."""
    site.sbatch(
        'for path in "$@"; do :; done; cat "$path" > $0.script.$n; log="${path%.sh}.out"\n' + then + "\necho $id"
    )


def test_each_profile_is_probed_with_its_own_partition_python_and_setup(asked: Site) -> None:
    keep(asked, f"echo 'Loading cuda'  > $log; echo '{json.dumps(ANSWER)}' >> $log")
    found = findings(asked)
    first, second = ((asked.programs.folder / f"sbatch.script.{n}").read_text() for n in (1, 2))
    for line in ("#SBATCH --partition=gpu\n", "#SBATCH --reservation=night\n", "#SBATCH --gpus-per-node=1\n",
                 "#SBATCH --nodes=1\n", "\nmodule load cuda\n", "export A='b c'\n", "exec /opt/python9 "):  # fmt: skip
        assert line in first
        assert line not in second or line == "#SBATCH --nodes=1\n"
    assert "mail-type" not in first
    assert "#SBATCH --array" not in first
    assert found["GPUs on nodes"] == (
        "problem: node n7 for small/pre-s1 and 11 more: the job asked for a GPU, but torch finds none"
    )
    assert sorted(asked.programs.calls("scancel")) == sorted(
        f"--name={call.split('--job-name=')[1].split()[0]}" for call in asked.programs.calls("sbatch")
        if "--job-name" in call
    )  # fmt: skip


def test_a_missing_python_is_a_problem_with_its_message(asked: Site) -> None:
    keep(
        asked,
        "echo 'sh: 1: exec: /opt/python9: not found' > $log\n"
        "echo 'srun: error: n1: task 0: Exited with exit code 127' >> $log",
    )
    found = findings(asked)
    assert found["SLURM node for small/pre-s1 and 11 more"] == (
        "problem: its job ended without an answer: sh: 1: exec: /opt/python9: not found"
    )


def test_a_probe_that_cannot_start_is_cancelled_at_once(asked: Site) -> None:
    keep(
        asked,
        'echo "$name|PENDING|PartitionDown" >> ${0%sbatch}squeue.says',
    )
    found = findings(asked)
    assert found["SLURM node for small/pre-s1 and 11 more"] == "problem: its job cannot start: PartitionDown"
    assert len(asked.programs.calls("scancel")) == 2


def test_the_wait_for_a_node_is_bounded(asked: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module._ask, "__defaults__", (0.2,))
    keep(
        asked,
        'echo "$name|PENDING|Priority" >> ${0%sbatch}squeue.says',
    )
    assert findings(asked)["SLURM node for small/pre-s1 and 11 more"] == "problem: no node within 0 s (Priority)"
    assert len(asked.programs.calls("scancel")) == 2


def test_a_refused_profile_is_reported_with_the_reason(asked: Site) -> None:
    asked.sbatch("[ $n = 1 ] && echo 'sbatch: error: invalid partition specified: gpu' >&2 && exit 1\necho $id")
    assert "invalid partition specified: gpu" in findings(asked)["SLURM node for small/pre-s1 and 11 more"]
