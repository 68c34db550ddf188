"""No command runs the plugins of another user, and the shell's completion runs none at all."""

import os
from pathlib import Path

import pytest
from cases import file_text
from face import Said, gpas
from faded_plugin import PLUGIN

EXPERIMENTS = file_text("experiments/faded.yaml")


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

    def gpas(self, *words: str, expect: int | None = 0, **variables: str) -> Said:
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.home), **variables}
        return gpas(self.folder / "below", *words, expect=expect, environment=environment)


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.mark.parametrize(
    "words", [("status",), ("plan",), ("logs", "pre-s1"), ("table",), ("run", "grid", "--yes")], ids=" ".join
)
def test_a_command_refuses_the_plugin_with_the_remedy(stranger: Stranger, words: tuple[str, ...]) -> None:
    said = stranger.gpas(*words, expect=2).err
    assert "experiments.yaml is writable by every user" in said
    assert f"then allow it with `gpas doctor --trust {stranger.folder}`" in said
    assert not stranger.trace.exists()


def test_doctor_names_it_and_does_not_run_it(stranger: Stranger) -> None:
    done = stranger.gpas("doctor", expect=None)
    assert "gpas doctor --trust" in done.out.replace("\n", " ")
    assert not stranger.trace.exists()


def test_trust_allows_it_until_it_is_taken_back(stranger: Stranger) -> None:
    stranger.gpas("doctor", "--trust", str(stranger.folder))
    assert "ok    trusted" in stranger.gpas("doctor", expect=None).out
    assert "faded-s1" in stranger.gpas("status").out
    assert stranger.trace.exists()
    (stranger.home / "gpas/trusted").write_text("")
    stranger.gpas("status", expect=2)
    stranger.gpas("status", GPAS_TRUSTED=str(stranger.folder))


def test_a_folder_that_is_not_there_is_not_trusted(stranger: Stranger) -> None:
    assert "nowhere is not a folder" in stranger.gpas("doctor", "--trust", "nowhere", expect=2).err


def test_completion_offers_its_cells_and_does_not_run_it(stranger: Stranger) -> None:
    asked = {"_GPAS_COMPLETE": "complete_bash", "COMP_WORDS": "gpas\nexplain\nfad", "COMP_CWORD": "2"}
    assert stranger.gpas(**asked).out.split() == ["faded-s1", "faded-s2"]
    assert stranger.gpas(**{**asked, "COMP_WORDS": "gpas\nplan\n"}).out.split() == ["g"]
    stranger.gpas("doctor", "--trust", str(stranger.folder))
    assert stranger.gpas(**asked).out.split() == ["faded-s1", "faded-s2"]
    assert not stranger.trace.exists()
