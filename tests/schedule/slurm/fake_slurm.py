"""Fake SLURM programs as small scripts on the PATH, for tests without a cluster."""

import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
from face import Face, Said

from gpas_cli.schedule.slurm import squeue

NAME = "gpas-many-0123456789ab"


def row(name: str = NAME, state: str = "PENDING", **more: str) -> str:
    """Return one line of squeue output."""
    usual = {"Name": name, "State": state, "Partition": "low", "PriorityLong": "10", "Reason": "Resources",
             "ArrayJobID": "7", "ArrayTaskID": "0", "StartTime": "N/A", "EndTime": "N/A", "exit_code": "0",
             "RestartCnt": "0"}  # fmt: skip
    words = {**usual, **more}
    return "".join(words.get(column, "").ljust(width) for column, width in squeue._COLUMNS.items()) + "\n"


TITLES = {
    "squeue": f"NAME|STATE|REASON\n{row('NAME', 'STATE', Partition='PARTITION')}",  # of both layouts that are asked for
    "sacct": "JobID|JobName|State\n",
}


@dataclass
class Programs:
    """SLURM programs on the PATH that print prepared text and count their calls."""

    folder: Path

    def put(self, program: str, says: str, *, code: int = 0) -> None:
        """Add a program that prints `says`, after the titles that it prints with each answer."""
        (self.folder / f"{program}.says").write_text(TITLES.get(program, "") + says if code == 0 else says)
        self.script(program, f"cat $0.says >&{1 if code == 0 else 2}\nexit {code}")

    def script(self, program: str, text: str) -> None:
        """Add a program that runs the shell script `text`."""
        path = self.folder / program
        path.write_text(f"#!/bin/sh\necho $@ >> $0.calls\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)

    def calls(self, program: str) -> list[str]:
        path = self.folder / f"{program}.calls"
        return path.read_text().splitlines() if path.exists() else []


def programs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Limit the PATH to programs added by the test and the few that their scripts need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "env", "sed", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))
    return Programs(folder)


@dataclass
class Site:
    """A project and a fake cluster: sbatch returns the job ids 7, 8, ... and no job ever starts."""

    gpas: Face
    programs: Programs

    def __post_init__(self) -> None:
        self.programs.put("squeue", "")
        self.programs.put("scontrol", "MaxArraySize = 1001")
        self.sbatch("echo $id")

    def sbatch(self, text: str) -> None:
        """Set what sbatch does for its $n-th job, in shell: $id is the next job id, $name the name of the job.

        The environment of each call is recorded.
        """
        count = "n=1; while [ -e $0.env.$n ]; do n=$((n + 1)); done; env > $0.env.$n; id=$((n + 6))"
        version = '[ "$1" = --version ] && echo slurm 22.05.8 && exit 0'
        name = 'for word in "$@"; do case "$word" in --job-name=*) name="${word#*=}";; esac; done'
        self.programs.script("sbatch", "\n".join((version, count, name, text)))

    def environment(self, call: int) -> dict[str, str]:
        """Return the environment of a call of sbatch, counted from 1."""
        lines = (self.programs.folder / f"sbatch.env.{call}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def submit(self, *words: str, expect: int | None = 0) -> Said:
        return self.gpas("run", "grid", "--executor", "slurm", "--yes", *words, expect=expect)

    def names(self) -> list[str]:
        """Return the names of all submissions, oldest first."""
        found = sorted(self.gpas.runs.glob(".slurm/gpas-*/submission.sh"), key=lambda path: path.stat().st_mtime_ns)
        return [path.parent.name for path in found]
