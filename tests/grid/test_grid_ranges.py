"""Values of an axis by rule."""

import pytest
from grids import cells, complaints, grid, whole

BASE = "base: {size: quickstart, data: quickstart}\n"


@pytest.mark.parametrize(
    ("axis", "values", "found"),
    [
        ("seed", "{range: [1, 5]}", [1, 2, 3, 4, 5]),
        ("seed", "{range: [0, 10], step: 5}", [0, 5, 10]),
        ("seed", "{range: [3, 3]}", [3]),
        ("seed", "[42, {range: [1, 2]}]", [42, 1, 2]),
        ("optim.lr", "{log: [1e-4, 1e-2], n: 5}", [1e-4, 0.000316228, 0.001, 0.00316228, 1e-2]),
        ("optim.lr", "{linear: [0.1, 0.2], n: 4}", [0.1, 0.133333, 0.166667, 0.2]),
        ("optim.lr", "{linear: [0.3, 0.1], n: 3}", [0.3, 0.2, 0.1]),
        ("optim.lr", "{log: [1.23456789e-3, 1], n: 2}", [1.23456789e-3, 1.0]),
        ("optim.steps", "{linear: [100, 500], n: 5}", [100, 200, 300, 400, 500]),
        ("optim.batch", "{log: [2, 32], n: 5}", [2, 4, 8, 16, 32]),
    ],
)
def test_a_rule_expands_to_its_values(axis: str, values: str, found: list[float]) -> None:
    entries = grid(cells(**{axis: values}))
    assert [entry.axes[axis] for entry in entries] == found
    assert [type(entry.axes[axis]) for entry in entries] == [type(value) for value in found]


def test_a_rule_and_the_values_it_stands_for_give_the_same_cells() -> None:
    ruled = grid(cells(**{"optim.lr": "{log: [1e-4, 1e-2], n: 3}", "seed": "{range: [1, 2]}"}))
    listed = grid(cells(**{"optim.lr": "[1e-4, 1e-3, 1e-2]", "seed": "[1, 2]"}))
    assert [(entry.name, entry.key) for entry in ruled] == [(entry.name, entry.key) for entry in listed]
    assert ruled[2].name == "lr0.001-s1"


def test_rules_can_be_zipped_and_conditions_name_their_values() -> None:
    zipped = grid(BASE + "axes: {zip: {seed: {range: [1, 3]}, optim.lr: {log: [1, 4], n: 3}}}")
    assert [(entry.axes["seed"], entry.axes["optim.lr"]) for entry in zipped] == [(1, 1), (2, 2), (3, 4)]
    left = grid(cells(**{"optim.lr": "{log: [1e-4, 1e-2], n: 5}"}) + "\nexclude: [{optim.lr: 3.16228e-4}]")
    assert len(left) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{range: 5}", "write range: [first, last]"),
        ("{range: [1, 2, 3]}", "write range: [first, last]"),
        ("{range: [1, x]}", "write range: [first, last]"),
        ("{range: [1, 2.5]}", "takes two whole numbers"),
        ("{range: [5, 1]}", "1 is smaller than 5; write range: [1, 5]"),
        ("{range: [1, 5], step: 0}", "step: 0 is too small"),
        ("{range: [1, 5], step: x}", "step: 'x' is not a whole number"),
        ("{range: [1, 5], stp: 2}", "unknown key 'stp'; did you mean 'step'?"),
        ("{range: [1, 1e9]}", "takes two whole numbers"),
        ("{range: [1, 1000000000]}", "1,000,000,000 values; at most 10,000"),
        ("{log: [1, 2]}", "needs n, the number of values, from 2 to 10,000"),
        ("{linear: [1, 2], n: 1}", "needs n, the number of values, from 2 to 10,000"),
        ("{log: [0, 1], n: 3}", "must be greater than 0"),
        ("{log: [.nan, 1], n: 3}", "write log: [first, last]"),
        ("{linear: [1, 1], n: 3}", "the value '1' is listed twice"),
        ("range(3)", "'range(3)' is not a list; write {range: [0, 2]}, which includes both ends"),
        ("'logspace(1e-3, 1e-2, 4)'", "is not a list; write {log: [1e-3, 1e-2], n: 4}"),
        ("'np.linspace(0, 1, num=5)'", "is not a list; write {linear: [0, 1], n: 5}"),
        ("[range(3)]", "'range(3)' is not a value; write {range: [0, 2]}"),
        ('"range(1, 9, 2)"', "write {range: [1, 8], step: 2}"),
        ("{rnge: [1, 2]}", "unknown rule 'rnge'; did you mean 'range'?"),
    ],
)
def test_a_wrong_rule_is_one_message(values: str, message: str) -> None:
    found = complaints(whole(cells(seed=values)))
    assert found[0].startswith("e.yaml:6:"), found
    assert message in found[0]
    assert len(set(found)) == len(found) <= 2
