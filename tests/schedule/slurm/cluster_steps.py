"""The steps of sessions on a real cluster, with a project whose jobs train."""

import json
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cluster import NODES, Cluster
from sessions import Commands, agrees
from slurm_toy import LONG, SlurmToy, job_of, kill, node_of, one_cell, paused, started, wait


@dataclass
class Life(Commands):
    """Each method is a step.

    In the words of a program JOB and ARRAY stand for the first job seen, and its array; NODE and OTHERS for the node
    that it first ran on, and those beside it.
    """

    face: SlurmToy
    cluster: Cluster = field(kw_only=True)
    others: ExitStack = field(kw_only=True)  # what ends with the session
    job: str = ""
    node: str = ""

    def project(self, steps: int = 20, **more: Any) -> None:
        """Make a project of two cells."""
        self.face = SlurmToy(self.face.folder, self.cluster, steps=steps, **more)

    def one_cell(self, steps: int = LONG, **more: Any) -> None:
        """Make a project of pre-gpas-s1 alone."""
        self.face = one_cell(self.cluster, self.face.folder, steps=steps, **more)

    def started(self, **more: Any) -> None:
        """Make a project of pre-gpas-s1 alone, and wait until its job trains."""
        self.face = started(self.cluster, self.face.folder, **more)
        self.node = node_of(self.cluster)

    def submit(self, words: str = "", **expected: Any) -> None:
        self.gpas(f"run grid --executor slurm --yes {words}", **expected)

    def retry(self, words: str = "", **expected: Any) -> None:
        self.gpas(f"retry --executor slurm --yes {words}", **expected)

    def run(self, words: str) -> None:
        """Run a program of SLURM."""
        if "JOB" in words or "ARRAY" in words:
            self.job = self.job or job_of(self.face)
        array = self.job.partition("_")[0]
        others = ",".join(node for node in (f"n{i}" for i in range(1, NODES + 1)) if node != self.node)
        known = {"JOB": self.job, "ARRAY": array, "NODE": self.node, "OTHERS": others}
        for word, name in known.items():
            words = words.replace(word, name)
        self.cluster.run(*shlex.split(words))

    def states(self, every: str = "", **wanted: str) -> None:
        found = self.face.states()
        assert _are(every, wanted)(found), found

    def becomes(self, every: str = "", via: str = "", **wanted: str) -> None:
        """Wait until the cells are in these states; meanwhile each is in one of those in `via`, if it names some."""
        self.face.until(_are(every, wanted), allowed=tuple(via.split()))

    def training(self) -> None:
        wait(self.face.training)

    def finish(self, attempts: int = 0, texts: int = 0) -> None:
        """Wait until all cells are done, in so many attempts, 0 for any number; nothing is done twice."""
        self.face.finish_once(attempts, texts)

    def queue(self, states: list[str]) -> None:
        """Wait until SLURM has jobs in these states, each once."""
        wait(lambda: sorted(set(self.face.queue().values())) == states)

    def jobs(self, number: int) -> None:
        wait(lambda: len(self.face.queue()) == number)

    def said(self, text: str) -> None:
        """Wait until the output of SLURM and the supervisors has a text."""
        wait(lambda: text in self.face.said())

    def crash(self, how: str) -> None:
        """Send this signal to the process that trains."""
        kill(next(event for event in self.face.events() if event["kind"] == "start")["pid"], signal.Signals[how])

    def forget(self) -> None:
        """Remove SLURM's last answer."""
        for path in self.face.runs.glob(".slurm/.queue-*.json"):
            path.unlink()

    def forgotten(self) -> None:
        """Wait until the controller has forgotten all jobs."""
        wait(lambda: not self.cluster.run("squeue", "-h", "-t", "all"), 120)

    def pause(self) -> None:
        """Stop the process that trains, so that it cannot end before `go`."""
        self.others.enter_context(paused(self.face))

    def go(self) -> None:
        self.others.close()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def attempts(self, number: int) -> None:
        """Wait until there are so many."""
        wait(lambda: len(self.face.attempts()) == number)

    def superseded(self) -> None:
        """Wait until the first attempt has ended because of a later one."""
        path = self.face.attempts()[0] / "exit.json"
        wait(path.exists)
        assert json.loads(path.read_text())["superseded"] is True

    def down(self, daemon: str) -> None:
        self.cluster.kill(daemon.replace("NODE", self.node))

    def up(self) -> None:
        self.cluster.up()

    def power_off(self) -> None:
        """Take the power from the node of the job."""
        self.cluster.power_off(self.node)

    def nodes(self, wanted: dict[str, str]) -> None:
        """Check findings of `gpas doctor --nodes`: what it is about -> its detail."""
        found = {
            one["what"]: one["detail"] for one in self.face("doctor", "--nodes", "--json", expect=4).json["findings"]
        }
        assert all(agrees(found[what], text) for what, text in wanted.items()), found

    def lose(self, pattern: str) -> None:
        """Delete the only folder that matches."""
        (folder,) = (path for path in self.face.folder.glob(pattern) if path.is_dir())
        shutil.rmtree(folder)

    def move(self, folder: str, to: str) -> None:
        (self.face.folder / folder).rename(self.face.folder / to)

    def files(self, pattern: str, number: int) -> None:
        assert len(list(self.face.folder.glob(pattern))) == number


def _are(every: str, wanted: dict[str, str]) -> Callable[[dict[str, str]], bool]:
    """Return whether all cells are in the states of `every`, whichever has which, and those of `wanted` in theirs."""
    return lambda states: (not every or set(states.values()) == set(every.split())) and states.items() >= wanted.items()
