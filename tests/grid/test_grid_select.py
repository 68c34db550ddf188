"""Selection of entries by conditions, names and keys, and their variants from the command line."""

from functools import cache

import pytest
from cases import cases
from grids import HEAD, cells, grid, read, whole
from shipped import cells_of, excerpt

from gpas_cli.errors import GpasError, InvalidExperiments, UnknownCell
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import Expansion, expand
from gpas_cli.grid.select import conditions, find, run_command, run_words, select
from gpas_cli.grid.variant import vary

ENTRIES = grid(cells(gate="[none, gpas]", seed="[1, 2, 3]", **{"optim.lr": "[1e-3, 2e-3]"}))


@cases("grid/cases.yaml")
def test_select(where: list[str], count: int) -> None:
    chosen = select(ENTRIES, where)
    assert len(chosen) == count
    assert chosen == [entry for entry in ENTRIES if entry in chosen]


@cases("grid/cases.yaml")
def test_select_refuses(where: list[str], message: str) -> None:
    with pytest.raises(GpasError) as caught:
        select(ENTRIES, where)
    assert message in str(caught.value)


def test_an_ambiguous_last_part_of_an_axis_is_refused() -> None:
    entries = grid(
        cells(
            **{
                "gate": "[gpas]", "gate.init": "[0.1]", "init": "[normal]", "data.path": "['']", "size.eps": "[1e-6]",
                "optim.eps": "[1e-8]",
            }
        )
    )  # fmt: skip
    assert select(entries, ["init=normal"]) == entries
    with pytest.raises(GpasError, match=r"'eps' is ambiguous; it could be size.eps or optim.eps"):
        select(entries, ["eps=1e-8"])


def test_a_cell_without_the_axis_matches_only_a_negated_condition() -> None:
    entries = grid(
        cells(gate="[none, gpas]") + "\nwhen: [{where: {gate: gpas}, axes: {gate.site: [home, after-norm]}}]"
    )
    assert [entry.name for entry in select(entries, ["site!=home"])] == ["none", "gpas-after-norm"]


def test_find_by_id_name_and_key() -> None:
    entry = ENTRIES[7]
    for word in (entry.id, entry.name, entry.key, entry.key[:8], entry.key.upper()):
        assert find(ENTRIES, word) is entry


def test_find_refuses_a_word_without_a_match() -> None:
    with pytest.raises(UnknownCell, match=r"no cell 'gpas-s1-lr0.01'; did you mean 'gpas-s1-lr0.001'\?"):
        find(ENTRIES, "gpas-s1-lr0.01")
    with pytest.raises(UnknownCell, match=r"did you mean 'g/s1-lr0.001'\?"):
        find(ENTRIES, "h/s1-lr0.001")
    with pytest.raises(UnknownCell, match="there are no cells"):
        find([], "x")
    with pytest.raises(UnknownCell):
        find(ENTRIES, ENTRIES[0].key[:3])


def test_a_name_in_two_grids_is_ambiguous_unless_it_is_one_cell() -> None:
    base = "base: {size: quickstart, data: quickstart%s}"
    lines = [
        f"  {name}: {{{base % more}, axes: {{seed: [1]}}}}\n"
        for name, more in (("a", ""), ("b", ""), ("c", ", norm: lns"))
    ]
    entries = expand(read(HEAD + "".join(lines)), ["a", "b", "c"])
    assert find(entries[:2], "s1").grid == "a"
    assert find(entries, "c/s1").axes["norm"] == "lns"
    with pytest.raises(UnknownCell, match="'s1' matches 3 cells: a/s1, b/s1, c/s1"):
        find(entries, "s1")


def test_a_key_of_an_earlier_stage_finds_the_cell() -> None:
    (entry,) = grid("base: {size: quickstart, data: quickstart}\nstages: [pretrain, finetune]")
    assert find([entry], entry.cell.stages[0].key[:6]) is entry


def test_a_key_prefix_of_two_cells_is_refused() -> None:
    first: dict[str, Entry] = {}
    seeds = "[" + ", ".join(map(str, range(700))) + "]"
    for entry in grid(cells(seed=seeds)):
        other = first.setdefault(entry.key[:4], entry)
        if other is not entry:
            with pytest.raises(UnknownCell, match="matches 2 cells"):
                find([other, entry], entry.key[:4])
            return
    pytest.fail("700 keys without a common prefix of four digits: the birthday paradox says 97 % against")


def test_the_conditions_and_the_command_of_some_cells() -> None:
    declared = [*cells_of("table2"), *cells_of("gpas-readme")]
    own = [one for one in declared if one.grid == "table2"]
    wanted = [one for one in own if one.axes["size"] in ("71m", "1b") and one.axes["norm"] == "lns"]
    assert conditions(wanted, own) == ["norm=lns", "size=71m,1b"]
    assert select(own, conditions(wanted, own)) == wanted
    assert run_command(wanted, declared) == "gpas run grid table2 --where norm=lns --where size=71m,1b"
    assert run_command(own, declared) == "gpas run grid table2"
    assert run_command(declared, declared) == "gpas run grid table2 gpas-readme"
    assert run_command([], declared) == ""


def test_a_label_that_no_condition_expresses_is_left_out_of_the_command() -> None:
    declared = grid(cells(gate='[{name: "a,b", like: gpas}, {name: "c d", like: gpas, init: -1}, none]', seed="[1, 2]"))
    own = [[one for one in declared if one.axes["gate"] == label] for label in ("a,b", "c d")]
    assert conditions(own[0], declared) == []
    assert conditions(own[1], declared) == ["gate=c d"]
    assert run_words(own[1][:1], declared)[-4:] == ["--where", "gate=c d", "--where", "seed=1"]
    assert "--where 'gate=c d'" in run_command(own[1], declared)


def test_a_value_is_found_if_the_grid_does_not_vary_it() -> None:
    text = HEAD + "".join(
        f"  {name}: {{base: {{size: quickstart, data: quickstart, optim.lr: {rate}}}, axes: {axes}}}\n"
        for name, rate, axes in (("a", "1e-3", "{seed: [1]}"), ("b", "1", "{optim.lr: [1e-3, 2e-3]}"))
    )
    entries = expand(read(text), ["a", "b"])
    assert [entry.id for entry in select(entries, ["optim.lr=0.001"])] == ["a/s1", "b/lr0.001"]
    tasks = grid("base: {size: quickstart, data: quickstart, downstream: {tasks: [piqa, boolq]}}")
    assert select(tasks, ["tasks=boolq"]) == tasks


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
    assert varied("quickstart-ablations/pre-s1", "optim.lr=0.001").id == "quickstart-lr/pre-lr0.001-s1"
    assert (
        varied("quickstart-lr/pre-lr0.0015-s1", "gate={like: gpas, activation: tanh}").id
        == "quickstart-ablations/pre-tanh-s1"
    )


def test_the_grids_are_expanded_once_for_many_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    varied("quickstart/pre-s1", "optim.lr=5e-3")
    monkeypatch.setattr(Expansion, "own_cells", None)
    assert varied("quickstart/pre-s1", "optim.lr=6e-3").name == "pre-s1+lr0.006"


def test_defaults_that_depend_on_the_size_follow_it() -> None:
    small = varied("table2/350m-pre", "size=71m", "norm=peri")
    assert (small.cell.optim.steps, small.resources.gpus) == (10_000, 1)
    assert small.name == "350m-pre+71m+peri"
    assert varied("table4-activation/350m-pre", "seed=7").id == "table4-activation/350m-pre+s7"


@cases("grid/cases.yaml")
def test_a_wrong_setting_is_reported_as_typed(word: str, message: str) -> None:
    assert message in "\n".join(complaints("quickstart/pre-s1", word))


def test_contradictions_are_reported_together_at_the_position_of_the_other_value() -> None:
    assert complaints("quickstart/pre-s1", "optim.steps=10")[0].endswith("40 is not shorter than the 10 steps")
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
