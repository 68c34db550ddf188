"""Variants of declared cells from the command line."""

from functools import cache

import pytest
from grids import HEAD, cells, read, whole
from shipped import excerpt

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import Expansion, expand
from gpas_cli.grid.select import find
from gpas_cli.grid.variant import vary

EXPERIMENTS = read(excerpt("quickstart", "quickstart-ablations", "quickstart-lr", "table2", "table4-activation"))


@cache
def everything() -> list[Entry]:
    return expand(EXPERIMENTS, list(EXPERIMENTS.grids))


def varied(name: str, *words: str) -> Entry:
    (entry,) = vary(EXPERIMENTS, [find(everything(), name)], words)
    return entry


def complaints(name: str, *words: str) -> list[str]:
    with pytest.raises(InvalidExperiments) as caught:
        varied(name, *words)
    return str(caught.value).splitlines()


def test_a_setting_makes_a_cell_with_its_own_key_and_name() -> None:
    plain = find(everything(), "quickstart/pre-gpas-s1")
    other = varied("quickstart/pre-gpas-s1", "optim.lr=4e-3", "gate.activation=tanh", "gate.stop_gradient=false")
    assert other.id == "quickstart/pre-gpas-s1+lr0.004+activation-tanh+no-stop-gradient"
    assert other.key not in {entry.key for entry in everything()}
    assert (other.cell.optim.lr, other.cell.model.gate.activation) == (0.004, "tanh")
    assert (other.axes["optim.lr"], other.axes["seed"], other.axes["norm"]) == (0.004, 1, "pre")
    assert (other.cadence, other.resources) == (plain.cadence, plain.resources)
    assert other.notes == ("optim.lr=0.004, gate.activation=tanh, gate.stop_gradient=false on the command line",)


def test_a_variant_that_equals_a_declared_cell_is_that_cell() -> None:
    assert varied("quickstart/pre-s1", "seed=2").id == "quickstart/pre-s2"
    assert varied("quickstart/pre-s1", "optim.lr=1.5e-3").id == "quickstart/pre-s1"
    assert varied("quickstart/pre-s1", "optim.lr=0.001").id == "quickstart-lr/pre-lr0.001-s1"
    assert varied("quickstart/pre-s1", "gate={like: gpas, activation: tanh}").id == "quickstart-ablations/pre-tanh-s1"


def test_the_grids_are_expanded_once_for_many_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    varied("quickstart/pre-s1", "optim.lr=5e-3")
    monkeypatch.setattr(Expansion, "own_cells", None)
    assert varied("quickstart/pre-s1", "optim.lr=6e-3").name == "pre-s1+lr0.006"


def test_defaults_that_depend_on_the_size_follow_it() -> None:
    small = varied("table2/350m-pre", "size=71m", "norm=peri")
    assert (small.cell.optim.steps, small.resources.gpus) == (10_000, 1)
    assert small.name == "350m-pre+71m+peri"
    included = varied("table4-activation/350m-pre", "seed=7")
    assert included.id == "table4-activation/350m-pre+s7"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sede=2", "sede=2: unknown setting 'sede'; did you mean 'seed'?"),
        ("optim.lrr=2", "optim.lrr=2: unknown key 'lrr'; did you mean 'lr'?"),
        ("optim.lr=fast", "optim.lr=fast: 'fast' is not a number"),
        ("optim.lr=", "optim.lr=: None is not a number"),
        ("gate={like: gpas, activation: tahn}", "gate.activation: unknown value 'tahn'; did you mean 'tanh'?"),
        ("norm={", "norm={: is not YAML: "),
        ("seed=" + "9" * 50, "a number of 50 digits is too long"),
        ("data.path=*.txt", "data.path=*.txt: has no effect with source: stdlib"),
        ("data.path=a\nb", "is more than one line"),
        ("size=9m", "size=9m: optim.lr: is required: size 9m has no recipe; write optim: {lr: ..."),
        ("=2", "unknown setting ''"),
    ],
)
def test_a_wrong_setting_is_reported_as_typed(word: str, message: str) -> None:
    assert message in "\n".join(complaints("quickstart/pre-s1", word))


def test_contradictions_are_reported_together_at_the_position_of_the_other_value() -> None:
    assert complaints("quickstart/pre-s1", "optim.steps=10")[0].endswith("60 is not shorter than the 10 steps")
    assert "e.yaml:" in complaints("quickstart/pre-s1", "optim.steps=10")[0]
    assert len(complaints("quickstart/pre-s1", "sede=2", "optim.lr=-1", "optim.lr=2")) == 3


def test_resources_that_no_longer_fit_are_reported() -> None:
    text = whole(cells(seed="[1]") + "\nresources: {gpus: 4}")
    experiments = read(text)
    with pytest.raises(InvalidExperiments, match="6 rows cannot be shared evenly by 4 processes"):
        vary(experiments, expand(experiments), ["optim.batch=6"])


def test_a_cell_that_no_grid_declares_cannot_be_varied() -> None:
    experiments = read(HEAD + "  g: {base: {size: quickstart, data: quickstart}}\n")
    (entry,) = expand(experiments)
    recorded = Entry(cell=entry.cell, grid="g", name="old", axes=entry.axes)
    with pytest.raises(GpasError, match=r"g/old is not declared in e\.yaml"):
        vary(experiments, [recorded], ["seed=3"])
