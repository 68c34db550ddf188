"""No command runs the plugins of another user, and the shell's completion runs none at all."""

import os
import subprocess
from pathlib import Path

import pytest
from faded_plugin import PLUGIN
from forks import forks

EXPERIMENTS = """\
version: 1
plugins: [mine.py]
recipes: {quickstart: {lr: 1e-3, warmup: 1, steps: 9, batch: 2}}
grids:
  g: {base: {size: quickstart, data: quickstart}, axes: {norm: [pre, faded], seed: [1, 2]}}
"""


class Stranger:
    """A project that every user can change, with a plugin that leaves a trace when it is run."""

    def __init__(self, folder: Path):
        self.home, self.trace, self.folder = folder / "home", folder / "trace", folder / "theirs"
        (self.folder / "below").mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "mine.py").write_text(PLUGIN.format(trace=str(self.trace)))
        (self.folder / "mine.py").chmod(0o644)
        (self.folder / "experiments.yaml").write_text(EXPERIMENTS)
        (self.folder / "experiments.yaml").chmod(0o666)

    def gpas(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GPAS_")}
        environment = {**clean, "XDG_CONFIG_HOME": str(self.home), **variables}
        return forks().gpas(*words, folder=self.folder / "below", environment=environment)


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.mark.parametrize(
    "words", [("status",), ("plan",), ("logs", "pre-s1"), ("table",), ("top",), ("run", "grid", "--yes")], ids=" ".join
)
def test_a_command_refuses_the_plugin_with_the_remedy(stranger: Stranger, words: tuple[str, ...]) -> None:
    done = stranger.gpas(*words)
    assert done.returncode == 2, done.stdout
    assert "experiments.yaml is writable by every user" in done.stderr
    assert f"then allow it with `gpas trust {stranger.folder}`" in done.stderr
    assert not stranger.trace.exists()


def test_doctor_names_it_and_does_not_run_it(stranger: Stranger) -> None:
    done = stranger.gpas("doctor")
    assert "gpas trust" in done.stdout.replace("\n", " ")
    assert not stranger.trace.exists()


def test_trust_allows_it_until_it_is_taken_back(stranger: Stranger) -> None:
    assert stranger.gpas("trust", str(stranger.folder)).returncode == 0
    assert stranger.gpas("trust", "--list").stdout.splitlines() == [str(stranger.folder)]
    assert "faded-s1" in stranger.gpas("status").stdout
    assert stranger.trace.exists()
    assert stranger.gpas("trust", "--remove", str(stranger.folder)).returncode == 0
    assert stranger.gpas("status").returncode == 2
    assert stranger.gpas("status", GPAS_TRUSTED=str(stranger.folder)).returncode == 0
    assert stranger.gpas("trust").returncode == 2


def test_completion_offers_its_cells_and_does_not_run_it(stranger: Stranger) -> None:
    asked = {"_GPAS_COMPLETE": "complete_bash", "COMP_WORDS": "gpas\nexplain\nfad", "COMP_CWORD": "2"}
    assert stranger.gpas(**asked).stdout.split() == ["faded-s1", "faded-s2"]
    assert stranger.gpas(**{**asked, "COMP_WORDS": "gpas\nplan\n"}).stdout.split() == ["g"]
    stranger.gpas("trust", str(stranger.folder))
    assert stranger.gpas(**asked).stdout.split() == ["faded-s1", "faded-s2"]
    assert not stranger.trace.exists()
