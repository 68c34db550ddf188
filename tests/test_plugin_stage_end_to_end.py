"""The stage of docs/how-to/stage.md, from a user's file to the table, without editing the package."""

import json
import re
from pathlib import Path

import pytest
from end_to_end import Toy

GUIDE = (Path(__file__).parents[1] / "docs/how-to/stage.md").read_text()
CODE = re.search(r"```python\n(.*?class Outliers.*?)```", GUIDE, re.DOTALL)[1]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a completed project with the file of the guide."""
    made = Toy(tmp_path_factory.mktemp("stage"), gates="none", steps=6)
    made.folder.joinpath("my_stages.py").write_text(CODE)
    made.edit("version: 1\n", "version: 1\nplugins: [my_stages.py]\n")
    made.edit("data: notes}", "data: notes, outliers: {sigmas: 2}}")
    made.edit("columns: size,", "columns: size, value: outlier_share,")
    plan = made("plan").out
    assert "2 jobs" in plan or "2 stages" in plan, plan
    made("run", "grid", "--yes")
    return made


@pytest.mark.long
def test_a_plugin_stage_runs_after_the_training_and_appears_in_the_table(toy: Toy) -> None:
    assert toy.states() == {"pre-s1": "done"}
    stages = [json.loads((folder / "attempt.json").read_text())["stage"] for folder in toy.attempts()]
    assert sorted(stages) == ["outliers", "pretrain"]
    share = toy.status()["pre-s1"]["metrics"]["outlier_share"]
    assert 0 < share < 50
    assert f"{share:.4f}" in toy("table", "small").out


def test_its_text_is_recorded_where_it_was_needed(toy: Toy) -> None:
    for directory in toy.attempts():
        attempt = json.loads((directory / "attempt.json").read_text())
        assert attempt["stage_plugins"] == [{"name": "my_stages.py", "source": CODE}]
        assert attempt.get("title") == ("the outliers of {cell}" if attempt["stage"] == "outliers" else None)


def test_its_parameters_are_in_its_key_and_not_in_that_of_the_training(toy: Toy) -> None:
    before = toy.status()["pre-s1"]["key"]
    with toy.edited("sigmas: 2", "sigmas: 3"):
        assert toy.status()["pre-s1"]["key"] != before
        assert "the stage outliers has no result yet" in toy("plan").out


def test_an_unknown_parameter_is_one_message(toy: Toy) -> None:
    with toy.edited("sigmas: 2", "sigma: 2"):
        assert "outliers.sigma: unknown key 'sigma'; did you mean 'sigmas'?" in toy("plan", expect=2).err
