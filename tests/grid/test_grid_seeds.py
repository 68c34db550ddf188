"""Seeds added beside experiments.yaml: their cells are those of a grid that declares the seeds."""

from pathlib import Path

import pytest
from grids import HEAD

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.companions import add_seeds, seeds_path, with_seeds
from gpas_cli.grid.declared import Experiments
from gpas_cli.grid.expand import expand, family_of
from gpas_cli.grid.load import load

BASE = "    base: {size: quickstart, data: quickstart}\n"
GRIDS = f"""\
  varied:
{BASE}    axes: {{norm: [pre, post], gate: [none, gpas], seed: [1, 2]}}
    override: [{{where: {{norm: post}}, set: {{optim.lr: 1e-4}}, why: Post-LN diverges}}]
  fixed:
    base: {{size: quickstart, data: quickstart, seed: 42}}
    axes: {{gate: [none, gpas]}}
  together:
{BASE}    axes: {{zip: {{norm: [pre, lns], seed: [5, 6]}}}}
  others:
    include: [{{grid: varied, where: {{gate: gpas}}}}, {{grid: fixed}}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(HEAD + GRIDS)
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
    config.write_text(HEAD + GRIDS.replace("[1, 2]", "[1, 2, 3]"))
    declared = {entry.name: entry for entry in expand(load(config), ["varied"])}
    assert {name: entry.key for name, entry in added.items()} == {name: entry.key for name, entry in declared.items()}
    assert {name: entry.axes for name, entry in added.items()} == {name: entry.axes for name, entry in declared.items()}


def test_a_seed_that_is_declared_later_is_one_cell(config: Path) -> None:
    add_seeds(config, {"varied": {"pre": [3]}})
    config.write_text(HEAD + GRIDS.replace("[1, 2]", "[1, 2, 3]"))
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
        "version: 1",
        "seeds:",
        '  "varied":',
        '    "pre": [3, 4]',
        '    "post": [3]',
        '  "fixed":',
        '    "none": [43]',
    ]
    assert names(load(config), "fixed") == ["none", "gpas", "s43"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "version: 1\nseeds: {varid: {pre: [3]}}",
            "seeds.yaml:2:9: seeds.varid: no grid 'varid'; did you mean 'varied'",
        ),
        (
            "version: 1\nseeds: {varied: {pree: [3]}}",
            "seeds.yaml:2:25: seeds.varied.pree: grid varied has no cell 'pree'",
        ),
        ("version: 1\nseeds: {varied: {pre: [x]}}", "seeds.yaml:2:24: seeds.varied.pre: 'x' is not a seed"),
        ("version: 1\nseeds: {varied: {pre: 3}}", "seeds.yaml:2:23: seeds.varied.pre: '3' is not a list"),
        ("seeds: {varied: {pre: [3]}}", "version: write version: 1"),
        ("version: 2\nseeds: {}", "seeds.yaml:1:10: version: write version: 1"),
        ("version: 1\nseed: {}", "unknown key 'seed'"),
    ],
)
def test_bad_files_name_the_place(config: Path, text: str, complaint: str) -> None:
    seeds_path(config).write_text(text)
    assert any(complaint in line for line in complaints(config)), complaints(config)


def test_a_damaged_file_is_not_overwritten(config: Path) -> None:
    seeds_path(config).write_text("version: 1\nseeds: {varied: {pre: [x]}}")
    with pytest.raises(InvalidExperiments):
        add_seeds(config, {"varied": {"pre": [3]}})
    assert "[x]" in seeds_path(config).read_text()
