"""The path from nothing to a table in docs/how-to/cluster.md, with the commands and files as they stand on the page."""

import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import file_text
from cluster import Cluster
from documentation import DOCS, FENCE
from slurm_toy import SlurmToy

from gpas_cli.project import packaged

pytestmark = pytest.mark.long

# Table 2 in a few updates of a small network, on a few pages of text.
SMALL = file_text("schedule/slurm/table2.yaml")
# What `apptainer` does with a command, as far as it matters here; the image has this Python.
APPTAINER = file_text("schedule/slurm/apptainer.sh")


def blocks(title: str, language: str) -> list[str]:
    """Return the blocks in this language below a heading of the page."""
    page = (DOCS / "how-to/cluster.md").read_text("utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    return [text for _, found, text in FENCE.findall(section) if found == language]


def commands() -> list[list[str]]:
    """Return the words of each command of the path."""
    lines = "".join(blocks("Table 2 on eight A100", "bash")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture
def refusing() -> Iterator[socket.socket]:
    """Yield a listening socket that answers nobody, for use as a proxy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


class Student:
    """A checkout on the cluster, whose user follows the page; what the page names differently there is replaced."""

    def __init__(self, folder: Path, cluster: Cluster, proxy: socket.socket, patch: pytest.MonkeyPatch):
        self.toy = SlurmToy.at(folder / "checkout")
        self.toy.cluster = cluster
        self.bin, self.scratch, self._patch = folder / "bin", folder / "scratch", patch
        for path in (self.bin, self.scratch, self.toy.folder / "text", folder / "config/gpas"):
            path.mkdir(parents=True)
        self.toy.write_text()
        self.proxy = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        patch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        apptainer = APPTAINER.format(scratch=self.scratch, proxy=self.proxy, python=shlex.quote(sys.executable))
        for name, text in (("apptainer", apptainer), ("module", '#!/bin/sh\necho "$@" >> "$0.log"\n')):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def logged(self, name: str) -> list[str]:
        """Return what a program has noted of its arguments at each call."""
        return (self.bin / f"{name}.log").read_text().splitlines()

    def write_site(self, title: str) -> None:
        """Write the site's profile of the page, for jobs that reach no network."""
        (text,) = blocks(title, "yaml")
        text = text.replace("a100", "low").replace("/scratch/ann", "/scratch").replace("/scratch", str(self.scratch))
        refused = "".join(f", {name}_proxy={self.proxy}" for name in ("http", "https", "all"))
        text = text.replace("HF_HUB_OFFLINE=1", f"HF_HUB_OFFLINE=1{refused}")
        (self.scratch.parent / "config/gpas/site.yaml").write_text(text)

    def __call__(self, words: list[str]) -> str:
        """Run a command of the page, with the variables before it."""
        start = words.index("gpas")
        with self._patch.context() as patch:
            for name, value in (word.split("=") for word in words[:start]):
                patch.setenv(name, value.replace("/scratch/ann", str(self.scratch)))
            return self.toy(*words[start + 1 :]).out


def test_to_table_2(cluster: Cluster, tmp_path: Path, refusing: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs reach no network. The cells that run are small and need no GPU; those of the smoke test are the paper's."""
    student = Student(tmp_path, cluster, refusing, monkeypatch)
    venv, activate, doctor, prepare, plan, shrink, run, status, top, table = commands()
    assert (venv[:2], activate[0]) == (["make", "venv"], "source")

    student.write_site("Table 2 on eight A100")
    shipped = packaged("experiments.yaml").read_text("utf-8")
    without_gpus = f"{shipped}\nresources:\n  all: {{gpus: 0}}\n"
    student.toy.declare(SMALL)
    assert "torch on nodes" in student(doctor)
    assert "train: 50 documents of " in student(prepare)
    student.toy.declare(shipped)
    planned = student(plan)
    (shown,) = blocks("Table 2 on eight A100", "text")
    assert [line for line in shown.splitlines() if line not in planned] == []
    student.toy.declare(without_gpus)
    assert "10 done" in student(shrink)
    assert set(student.logged("module")) == {"load gcc"}

    (student.scratch / "gpas.sif").touch()
    student.write_site("An Apptainer image")
    student.toy.declare(SMALL)
    assert "2 jobs submitted" in student(run)  # none of them tokenises
    assert "2 cells" in student(status)
    student(top)
    student.toy.finish()
    assert "2 cells: 2 done" in student(status)
    assert "Pre-LN" in student(table)
    assert sorted(student.logged("apptainer")) == ["python -I -c"] * 2 + ["python -u -P"] * 2  # check the code, run it
    assert {fact["resources"]["account"] for fact in student.toy.facts()} == {"proj"}
    with pytest.raises(BlockingIOError):
        refusing.accept()
