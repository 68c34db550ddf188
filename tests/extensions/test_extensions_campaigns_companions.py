"""Files beside experiments.yaml: added seeds, and tuned settings with a grid of the tuned cells alone."""

from pathlib import Path

import pytest
from cases import cases, file_text

from gpas_cli.errors import InvalidExperiments
from gpas_cli.extensions.campaigns.companions import add_seeds, family_of, with_seeds, write_tuned
from gpas_cli.grid.companions import seeds_path, tuned_path
from gpas_cli.grid.declared import Experiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

GRIDS = file_text("experiments/companions.yaml")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(GRIDS)
    return path


def names(experiments: Experiments, grid: str) -> list[str]:
    return [entry.name for entry in expand(experiments, [grid])]


def complaints(config: Path) -> list[str]:
    with pytest.raises(InvalidExperiments) as error:
        expand(load(config), ["varied"])
    return str(error.value).splitlines()


def test_added_seeds_are_cells_of_the_grid(config: Path) -> None:
    add_seeds(config, {"varied": {"pre": [3], "post-gpas": [4, 3]}})
    experiments = load(config)
    assert names(experiments, "varied")[8:] == ["pre-s3", "post-gpas-s3", "post-gpas-s4"]
    added = expand(experiments, ["varied"])[8:]
    assert [entry.axes["seed"] for entry in added] == [3, 3, 4]
    assert all(entry.declared is not None and entry.declared.added for entry in added)
    assert "Post-LN diverges" in added[1].notes
    assert "seed added to decide a claim" in added[1].notes[0]


def test_keys_are_those_of_a_declared_seed(config: Path) -> None:
    add_seeds(config, {"varied": {name: [3] for name in ("pre", "pre-gpas", "post", "post-gpas")}})
    added = {entry.name: entry for entry in expand(load(config), ["varied"])}
    seeds_path(config).unlink()
    config.write_text(GRIDS.replace("[1, 2]", "[1, 2, 3]"))
    declared = {entry.name: entry for entry in expand(load(config), ["varied"])}
    assert {name: entry.key for name, entry in added.items()} == {name: entry.key for name, entry in declared.items()}
    assert {name: entry.axes for name, entry in added.items()} == {name: entry.axes for name, entry in declared.items()}


def test_a_seed_that_is_declared_later_is_one_cell(config: Path) -> None:
    add_seeds(config, {"varied": {"pre": [3]}})
    config.write_text(GRIDS.replace("[1, 2]", "[1, 2, 3]"))
    found = names(load(config), "varied")
    assert found.count("pre-s3") == 1
    assert len(found) == 12


def test_a_grid_with_one_seed_or_with_seeds_that_vary_with_another_axis(config: Path) -> None:
    add_seeds(config, {"fixed": {"gpas": [43]}, "together": {"lns": [7]}})
    experiments = load(config)
    assert names(experiments, "fixed") == ["none", "gpas", "gpas-s43"]
    assert names(experiments, "together") == ["pre-s5", "lns-s6", "lns-s7"]
    assert expand(experiments, ["fixed"])[2].cell.seed == 43


def test_grids_that_include_the_grid_have_its_added_seeds(config: Path) -> None:
    add_seeds(config, {"varied": {"pre-gpas": [3], "pre": [3]}, "fixed": {"gpas": [43]}})
    experiments = load(config)
    entries = {entry.name: entry for entry in expand(experiments, ["others"])}
    assert "pre-gpas-s3" in entries
    assert "gpas-s43" in entries
    assert "pre-s3" not in entries
    assert family_of(experiments, entries["pre-gpas-s3"]) == ("varied", "pre-gpas")
    assert family_of(experiments, entries["gpas-s43"]) == ("fixed", "gpas")


def test_in_memory_as_on_disk(config: Path) -> None:
    new = {"varied": {"pre": [4, 3]}}
    ahead = expand(with_seeds(load(config), new), ["varied"])
    add_seeds(config, new)
    assert ahead == expand(load(config), ["varied"])
    # Seeds that are there already are not added twice, in memory or on disk.
    assert expand(with_seeds(load(config), new), ["varied"]) == ahead
    written = seeds_path(config).stat().st_mtime_ns
    add_seeds(config, new)
    assert seeds_path(config).stat().st_mtime_ns == written


def test_additions_are_merged_and_the_file_stays_readable(config: Path) -> None:
    add_seeds(config, {"varied": {"pre": [4]}})
    add_seeds(config, {"varied": {"pre": [3], "post": [3]}, "fixed": {"none": [43]}})
    text = seeds_path(config).read_text()
    assert text.splitlines()[1:] == [
        "version: 1", "seeds:", '  "varied":', '    "pre": [3, 4]', '    "post": [3]', '  "fixed":', '    "none": [43]',
    ]  # fmt: skip
    assert names(load(config), "fixed") == ["none", "gpas", "s43"]


@cases("extensions/cases.yaml")
def test_bad_files_name_the_place(config: Path, text: str, complaint: str) -> None:
    seeds_path(config).write_text(text)
    assert any(complaint in line for line in complaints(config)), complaints(config)


def test_a_damaged_file_is_not_overwritten(config: Path) -> None:
    seeds_path(config).write_text("version: 1\nseeds: {varied: {pre: [x]}}")
    with pytest.raises(InvalidExperiments):
        add_seeds(config, {"varied": {"pre": [3]}})
    assert "[x]" in seeds_path(config).read_text()


def test_the_grid_has_the_tuned_cells_with_their_settings_over_all_others(config: Path) -> None:
    write_tuned(config, "varied", "optim.lr", {"pre": 0.003, "post-gpas": 2e-5})
    experiments = load(config)
    found = {entry.name: entry for entry in expand(experiments, ["varied-tuned"])}
    rates = {name: entry.cell.optim.lr for name, entry in found.items()}
    assert rates == {"pre-s1": 0.003, "pre-s2": 0.003, "post-gpas-s1": 2e-5, "post-gpas-s2": 2e-5}
    assert found["post-gpas-s1"].notes == (
        "Post-LN diverges", "the best setting of this method alone, which `gpas run tuned` found with the first seed",
    )  # fmt: skip
    assert experiments.grids["varied-tuned"].table_spec.title == "Two schemes, each method tuned"
    plain = {entry.name: entry for entry in expand(experiments, ["varied"])}
    assert len(plain) == 8
    assert plain["pre-s1"].key != found["pre-s1"].key


def test_seeds_are_added_to_tuned_cells(config: Path) -> None:
    write_tuned(config, "varied", "optim.lr", {"pre": 0.003})
    add_seeds(config, {"varied-tuned": {"pre": [7]}})
    names = {entry.name: entry.cell.optim.lr for entry in expand(load(config), ["varied-tuned"])}
    assert names == {"pre-s1": 0.003, "pre-s2": 0.003, "pre-s7": 0.003}
    assert len(expand(load(config), ["varied"])) == 8


def test_what_was_tuned_before_stays(config: Path) -> None:
    write_tuned(config, "varied", "optim.lr", {"pre": 0.003, "post": 0.1})
    write_tuned(config, "varied", "optim.lr", {"post": 0.2})
    assert tuned_path(config).read_text().splitlines()[1:] == [
        "version: 1", "tuned:", '  "varied":', '    "pre": {optim.lr: 0.003}', '    "post": {optim.lr: 0.2}',
    ]  # fmt: skip


@cases("extensions/cases.yaml")
def test_mistakes_in_the_file_are_reported_with_their_places(config: Path, text: str, expected: str) -> None:
    tuned_path(config).write_text(f"version: 1\n{text}\n")
    with pytest.raises(InvalidExperiments) as error:
        expand(load(config), ["varied-tuned"])
    assert expected in str(error.value)


def test_a_declared_grid_may_not_have_the_name(config: Path) -> None:
    config.write_text(config.read_text() + "  varied-tuned:\n    base: {size: quickstart, data: quickstart}\n")
    write_tuned(config, "varied", "optim.lr", {"pre": 0.003})
    with pytest.raises(InvalidExperiments, match="varied-tuned is also a grid of the experiments file"):
        load(config)
