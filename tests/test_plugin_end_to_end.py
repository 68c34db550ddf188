"""The scheme and the stage of docs/how-to/, from a user's files to the table, without editing the package."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end import Toy, jobs_run_here

GUIDES = Path(__file__).parents[1] / "docs/how-to"
CODE = re.search(r"```python\n(.*?class Faded.*?)```", (GUIDES / "scheme.md").read_text(), re.DOTALL)[1]
STAGE = re.search(r"```python\n(.*?class Outliers.*?)```", (GUIDES / "stage.md").read_text(), re.DOTALL)[1]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a completed project with the files of the guides."""
    made = Toy(tmp_path_factory.mktemp("stranger"), norms="faded", gates="gpas", steps=6)
    made.folder.joinpath("my_schemes.py").write_text(CODE)
    made.folder.joinpath("my_stages.py").write_text(STAGE)
    made.edit("version: 1\n", "version: 1\nplugins: [my_schemes.py, my_stages.py]\n")
    made.edit("data: notes}", "data: notes, outliers: {sigmas: 2}}")
    made.edit("columns: size,", "columns: size, value: outlier_share,")
    with jobs_run_here():
        made("run", "grid", "--yes")
    return made


def test_a_plugin_scheme_trains_and_a_plugin_stage_follows_it_in_the_table(toy: Toy) -> None:
    assert toy.states() == {"faded-gpas-s1": "done"}
    share = toy.status()["faded-gpas-s1"]["metrics"]["outlier_share"]
    assert 0 < share < 50
    assert re.search(rf"Faded-LN \+ GPAS +{share:.4f}", toy("table", "small").out)
    assert "G(0.9 x + N(f(N(x))))" in toy("explain", "faded-gpas-s1").out


def test_their_texts_are_recorded_where_they_were_needed(toy: Toy) -> None:
    attempts = [json.loads((directory / "attempt.json").read_text()) for directory in toy.attempts()]
    assert sorted(attempt["stage"] for attempt in attempts) == ["outliers", "pretrain"]
    for attempt in attempts:
        assert attempt["plugin"] == {"name": "my_schemes.py", "source": CODE}
        assert attempt["stage_plugins"] == [{"name": "my_stages.py", "source": STAGE}]
        assert attempt.get("title") == ("the outliers of {cell}" if attempt["stage"] == "outliers" else None)


def test_the_parameters_of_a_stage_are_in_its_key_and_not_in_that_of_the_training(toy: Toy) -> None:
    before = toy.status()["faded-gpas-s1"]["key"]
    with toy.edited("sigmas: 2", "sigmas: 3"):
        assert toy.status()["faded-gpas-s1"]["key"] != before
        assert "the stage outliers has no result yet" in toy("plan").out
    with toy.edited("sigmas: 2", "sigma: 2"):
        assert "outliers.sigma: unknown key 'sigma'; did you mean 'sigmas'?" in toy("plan", expect=2).err


def test_the_key_depends_on_what_a_plugin_computes_and_not_on_its_text(toy: Toy) -> None:
    file = toy.folder / "my_schemes.py"
    keys = {name: cell["key"] for name, cell in toy.status().items()}
    file.write_text(f"# A remark.\n{CODE}")
    assert {name: cell["key"] for name, cell in toy.status().items()} == keys
    file.write_text(CODE.replace("0.9", "0.8"))
    assert set(toy.states().values()) == {"missing"}
    file.write_text(CODE)


def job(toy: Toy, number: int, **changed: object) -> tuple[int, str]:
    """Run one more attempt at the first cell, as recorded except for `changed`; return its exit code and journal."""
    first = next(path for path in toy.attempts() if '"stage": "pretrain"' in (path / "attempt.json").read_text())
    directory = first.with_name(f"{number:03d}")
    directory.mkdir()
    attempt = {**json.loads((first / "attempt.json").read_text()), "number": number, **changed}
    (directory / "attempt.json").write_text(json.dumps(attempt))
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(directory)]
    done = subprocess.run(command, cwd=toy.folder, env=toy.environment(), stdout=subprocess.DEVNULL, timeout=240)
    return done.returncode, (directory / "journal.jsonl").read_text()


@pytest.mark.long
def test_a_job_runs_the_recorded_text_and_not_the_file(toy: Toy) -> None:
    toy.folder.joinpath("my_schemes.py").write_text("raise RuntimeError\n")
    assert job(toy, 2)[0] == 0
    code, journal = job(toy, 3, plugin={"name": "my_schemes.py", "source": CODE.replace("self.fade)", "2)")})
    assert code == 1
    assert "the wiring of 'faded' has changed since this cell was recorded" in journal
    message = toy("status", expect=2).err
    assert "experiments.yaml:2:11: plugins: my_schemes.py:1: RuntimeError" in message
