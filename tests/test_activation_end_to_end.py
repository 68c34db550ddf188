"""The activation of docs/how-to/scheme.md, from a line of experiments.yaml to the table and an export."""

import re
from pathlib import Path

import pytest
from end_to_end import Toy

GUIDE = (Path(__file__).parents[1] / "docs/how-to/scheme.md").read_text()
AXIS = re.search(r"gate: (\[none, gpas, \{name: softsign.*\])", GUIDE)[1]
FORMULA = re.search(r"activation: ([^}]*)", AXIS)[1]


@pytest.fixture(scope="module")
def toy(trained: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a trained project with the axis of the guide, whose formula has not been trained."""
    made = trained.copied(tmp_path_factory.mktemp("formula") / "toy")
    made.edit("gate: [none, gpas]", f"gate: {AXIS}")
    return made


@pytest.mark.long
def test_a_formula_trains_and_has_its_row_and_its_gates_move(toy: Toy) -> None:
    toy("run", "grid", "--yes", "--jobs", "1")
    assert toy.states() == {"pre-s1": "done", "pre-gpas-s1": "done", "pre-softsign-s1": "done"}
    assert re.search(r"\+ softsign +[0-9.]+", toy("table", "small").out)
    assert f"G(x) = x - ({FORMULA}) sg(x)" in toy("explain", "pre-softsign-s1").out
    bounds = toy("explain", "pre-softsign-s1", "--bounds", "--json").json["cells"][0]["bounds"]
    assert all(row["error"] < 1e-6 for row in bounds["preserved"])
    assert bounds["preserved"][0]["predicted"] != 1


@pytest.mark.long
def test_a_changed_formula_is_another_cell_and_a_space_is_none(toy: Toy) -> None:
    key = toy.status()["pre-softsign-s1"]["key"]
    with toy.edited("1 + abs", "1+abs"):
        assert toy.status()["pre-softsign-s1"]["key"] == key
    with toy.edited("1 + abs", "2 + abs"):
        assert toy.status()["pre-softsign-s1"]["key"] != key
        assert toy.states()["pre-gpas-s1"] == "done"
    with toy.edited(FORMULA, "alpha ** 2"):
        message = toy("status", expect=2).err
    assert "gate.activation: alpha ** 2 has gradient 0 at 0, so a gate that starts there never changes" in message
