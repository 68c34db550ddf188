"""The steps of sessions with the `gpas` command and fake SLURM programs."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from attempts import make_attempt, write_events
from fake_slurm import TITLES, Site, row
from sessions import Commands, agrees

from gpas_cli.events import Event, Outcome, Phase
from gpas_cli.schedule.slurm import findings
from gpas_cli.store.records import ExitRecord
from gpas_cli.store.rundir import read_json, write_json, write_record

PROFILE = """\
    resources: {partition: gpu, gpus: 2, python: /opt/python9, setup: [module load cuda], environment: [A=b c],
                sbatch: [--mail-type=END, --reservation=night]}
"""
CELL = "small --where norm=pre --where gate=none --where seed=1"


def trainings(site: Site, state: str, without: Sequence[int] = (), **more: str) -> str:
    """Return squeue lines for the job that tokenises and for the array of the trainings, without some elements."""
    text, array = site.names()[:2]
    lines = (row(array, state, ArrayJobID="8", ArrayTaskID=str(i), **more) for i in range(8) if i not in without)
    return row(text, "RUNNING") + "".join(lines)


@dataclass
class Steps(Commands):
    """Each method is a step. The cells are those of the grid `small`."""

    site: Site = field(kw_only=True)
    patch: pytest.MonkeyPatch = field(kw_only=True)

    @property
    def last(self) -> str:
        """The name of the last submission."""
        return self.site.names()[-1]

    def submit(self, words: str = "", **expected: Any) -> None:
        self.gpas(f"run grid --executor slurm --yes {words}", **expected)

    def retry(self, words: str = "", **expected: Any) -> None:
        self.gpas(f"retry --executor slurm --yes {words}", **expected)

    def states(self, *wanted: str) -> None:
        """Check the states of all cells, whichever has which."""
        cells = self.face("status", "small", "--json").json["cells"]
        assert {cell["state"] for cell in cells} == {word for one in wanted for word in one.split()}, cells

    def cell(self, name: str, **wanted: object) -> None:
        """Check fields of a cell in `gpas status --json`."""
        cells = self.face("status", "small", "--json").json["cells"]
        (found,) = (cell for cell in cells if cell["name"] == name)
        assert all(agrees(found[field], value) for field, value in wanted.items()), found

    def calls(self, program: str, number: int | None = None, are: object = None, lacks: str = "\0") -> None:
        found = self.site.programs.calls(program)
        assert number is None or len(found) == number, found
        assert are is None or found == are
        assert not [call for call in found if lacks in call]

    def squeue(self, state: str = "", before: str = "", after: str = "", **more: Any) -> None:
        """Let squeue list the trainings in this state, or nothing; lines of the site may surround its answer."""
        listed = trainings(self.site, state, **more) if state else ""
        self.put("squeue", "")
        (self.site.programs.folder / "squeue.says").write_text(before + TITLES["squeue"] + listed + after)

    def listed(self, state: str, of: int = -1, **more: str) -> None:
        """Let squeue list the first element of a submission alone."""
        self.put("squeue", row(self.site.names()[of], state, **more))

    def put(self, program: str, says: str = "", code: int = 0) -> None:
        self.site.programs.put(program, says.replace("ARRAY", self.last if "ARRAY" in says else ""), code=code)

    def script(self, program: str, text: str) -> None:
        self.site.programs.script(program, text)

    def sbatch(self, text: str) -> None:
        self.site.sbatch(text)

    def user(self, number: int) -> None:
        """Be another user to SLURM."""
        self.patch.setattr(os, "getuid", lambda: number)

    def seen(self, ago: float) -> None:
        """Make SLURM's last answer so many seconds old."""
        path = self.face.runs / f".slurm/.queue-{os.getuid()}.json"
        write_json(path, {**read_json(path), "time": time.time() - ago})

    def forget(self) -> None:
        """Remove SLURM's last answer."""
        (self.face.runs / f".slurm/.queue-{os.getuid()}.json").unlink()

    def resources(self, declared: str) -> None:
        """Declare resources of the grid."""
        self.edit("    title: Small\n", f"    title: Small\n    resources: {{{declared}}}\n")

    def tokenised(self) -> None:
        """Make the job that tokenises the text end well."""
        text = read_json(self.face.runs / ".slurm" / self.site.names()[0] / "submission.json")["keys"][0][0]
        write_events(make_attempt(self.face.runs, text, {"stage": "tokenise"}), [Outcome("done")])

    def ended(self, after: float) -> None:
        """Let accounting have the end of another element, so many seconds after the submission."""
        made = read_json(self.face.runs / ".slurm" / self.last / "submission.json")["time"]
        self.put("sacct", f"8_0|ARRAY|COMPLETED|0:0|n1|{made:.0f}|{made + after:.0f}\n")

    def log(self, text: str = "", element: int = 0) -> None:
        """Write the log of an element of the last array."""
        (self.face.runs / ".slurm" / self.last / f"8_{element}_0_log.out").write_text(text)

    def attempt(self, how: str, job: str = "8_0", seconds: float = 1.0) -> None:
        """Make an attempt of the last submission at pre-s1 that took so long: killed for its memory, or an outcome."""
        events: list[Event] = [Phase("training", micro_batch=8)] if how == "killed" else [Outcome(how, step=4)]
        made = self.face.attempt("pre-s1")
        write_events(made, events)
        place = {"submission": self.last, "index": 0, "job": job, "restart": 0, "nodes": "n1"}
        facts = {**read_json(made.attempt_path), "slurm": place, "created": time.time() - seconds}
        write_json(made.attempt_path, {**facts, "resources": self._element()["resources"]})
        if how == "killed":
            error = "out of memory: it used 190 MiB"
            write_record(made.exit_path, ExitRecord(code=None, signal=9, t=time.time(), error=error))

    def two_profiles(self) -> None:
        """Declare resources of `small`, whose job sbatch sees first; jobs that ask about nodes are looked at often."""
        self.edit("    title: Small\n", f"    title: Small\n{PROFILE}")
        self.patch.setattr(findings, "_POLL_SECONDS", 0.05)
        self.patch.setattr(findings, "_LATE_SECONDS", 0.0)
        self.put("scancel")

    def patience(self, seconds: float) -> None:
        """Wait so long for a node."""
        self.patch.setattr(findings._ask, "__defaults__", (seconds,))

    def keep(self, then: str) -> None:
        """Let sbatch save a copy of the script as script.N and then run `then`, with the log's path in $log."""
        self.sbatch(
            f'for path in "$@"; do :; done; cat "$path" > $0.script.$n; log="${{path%.sh}}.out"\n{then}\necho $id'
        )

    def nodes(self, wanted: dict[str, str]) -> None:
        """Check findings of `gpas doctor --nodes`: what it is about -> its status and detail."""
        answer = self.face("doctor", "--nodes", "--json", expect=None).json["findings"]
        found = {one["what"]: f"{one['status']}: {one['detail']}" for one in answer}
        assert all(agrees(found[what], text) for what, text in wanted.items()), found

    def usage(self, wanted: dict[str, object]) -> None:
        """Check the only profile in `gpas status --usage`."""
        assert self.face("status", "small", "--usage", "--json").json["profiles"] == [wanted]

    def failed(self, name: str, how: str = "failed", cause: str = "") -> None:
        """Make an attempt at a cell on this machine that ended so."""
        self.face.ended(name, how, cause=cause)

    def submissions(self, number: int) -> None:
        assert len(self.site.names()) == number

    def alone(self, words: str = "", asks: Sequence[str] = ()) -> None:
        """Submit one cell anew, and check lines of its script."""
        before = self.site.names()
        self.submit(f"{CELL} {words}")
        assert self.last not in before
        self.asks(asks)

    def asks(self, lines: Sequence[str], lacks: Sequence[str] = ()) -> None:
        """Check texts in the last script."""
        text = (self.face.runs / ".slurm" / self.last / "submission.sh").read_text()
        assert [line for line in lines if line not in text] == [line for line in lacks if line in text] == [], text

    def element(self, resources: dict[str, object] | None = None, lacks: Sequence[str] = (), **wanted: object) -> None:
        """Check fields and resources of the last recorded job."""
        found: Any = self._element()
        assert not set(lacks) & set(found), found
        assert all(found["resources"][name] == value for name, value in (resources or {}).items()), found
        assert all(agrees(found.get(name), value) for name, value in wanted.items()), found

    def _element(self) -> Any:
        path = self.face.runs / ".slurm" / self.last / "elements.jsonl"
        return json.loads(path.read_text().splitlines()[0])[0]
