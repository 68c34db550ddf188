"""Tuned settings beside experiments.yaml: a grid of the tuned cells alone, each with its own setting."""

from pathlib import Path

import pytest
from grids import HEAD

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.companions import add_seeds, tuned_path, write_tuned
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

GRIDS = """\
  varied:
    title: Two schemes
    base: {size: quickstart, data: quickstart}
    axes: {norm: [pre, post], gate: [none, gpas], seed: [1, 2]}
    override: [{where: {norm: post}, set: {optim.lr: 1e-4}, why: Post-LN diverges}]
    table: {rows: [norm, gate]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(HEAD + GRIDS)
    return path


def test_the_grid_has_the_tuned_cells_with_their_settings_over_all_others(config: Path) -> None:
    write_tuned(config, "varied", "optim.lr", {"pre": 0.003, "post-gpas": 2e-5})
    experiments = load(config)
    found = {entry.name: entry for entry in expand(experiments, ["varied-tuned"])}
    rates = {name: entry.cell.optim.lr for name, entry in found.items()}
    assert rates == {"pre-s1": 0.003, "pre-s2": 0.003, "post-gpas-s1": 2e-5, "post-gpas-s2": 2e-5}
    assert found["post-gpas-s1"].notes == (
        "Post-LN diverges", "the best setting of this method alone, found by `gpas run tuned`",
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tuned: {varid: {pre: {optim.lr: 1}}}", "tuned.yaml:2:9: tuned.varid: no grid 'varid'; did you mean 'varied'"),
        ("tuned: {varied: {per: {optim.lr: 1}}}", "has no cell 'per'; did you mean 'pre'"),
        ("tuned: {varied: {pre: {optim.rate: 1}}}", "tuned.yaml:2:24: optim.rate: unknown key 'rate'"),
        ("tuned: {varied: {pre: 3}}", "tuned.yaml:2:23: tuned.varied.pre: '3' is not a mapping"),
        ("tuned: {varied: {pre: {optim.lr: -1}}}", "tuned.yaml:2:34: optim.lr: -1.0 is too small"),
    ],
)
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
