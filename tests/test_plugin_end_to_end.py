"""The scheme of docs/how-to/scheme.md, from a user's file to the table, without editing the package."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end import Toy

GUIDE = (Path(__file__).parents[1] / "docs/how-to/scheme.md").read_text()
CODE = re.search(r"```python\n(.*?class Faded.*?)```", GUIDE, re.DOTALL)[1]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a trained project with the file of the guide."""
    made = Toy(tmp_path_factory.mktemp("stranger"), norms="faded", gates="gpas", steps=6)
    made.folder.joinpath("my_schemes.py").write_text(CODE)
    made.edit("version: 1\n", "version: 1\nplugins: [my_schemes.py]\n")
    made("run", "grid", "--yes")
    return made


def test_a_plugin_scheme_trains_and_has_its_row(toy: Toy) -> None:
    assert toy.states() == {"faded-gpas-s1": "done"}
    assert re.search(r"Faded-LN \+ GPAS +[0-9.]+", toy("table", "small").out)
    assert "G(0.9 x + N(f(N(x))))" in toy("explain", "faded-gpas-s1").out
    assert "gate.activation: not set -> silu" in toy("why", "faded-gpas-s1").out


def test_its_text_is_recorded_where_it_was_needed(toy: Toy) -> None:
    for directory in toy.attempts():
        attempt = json.loads((directory / "attempt.json").read_text())
        assert attempt["plugin"] == {"name": "my_schemes.py", "source": CODE}


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
    first = toy.attempts()[0]
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
