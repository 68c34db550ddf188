"""Files beside experiments.yaml: added seeds, and tuned settings with a grid of the tuned cells alone."""

from pathlib import Path

import pytest
from cases import cases, file_text
from goldens import compare, golden_cases

from gpas_cli.errors import InvalidExperiments
from gpas_cli.extensions.campaigns.companions import add_seeds, family_of, with_seeds, write_tuned
from gpas_cli.grid.companions import seeds_path, tuned_path
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

GRIDS = file_text("experiments/companions.yaml")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.yaml"
    path.write_text(GRIDS)
    return path


def line(experiments: Experiments, entry: Entry) -> str:
    """Return a cell with its rate, the cell that its seeds are added to, whether its seed was added, and its notes."""
    added = entry.declared is not None and entry.declared.added
    family = ".".join(family_of(experiments, entry) or ())
    words = (entry.id, f"seed {entry.cell.seed}{' (added)' if added else ''}", f"lr {entry.cell.optim.lr}", family)
    return " | ".join((*words, *entry.notes))


@pytest.mark.parametrize("title", golden_cases("companions"))
def test_files_and_cells_are_those_of_the_golden_file(config: Path, title: str) -> None:
    case = golden_cases("companions")[title]
    for best in case.get("tuned", ()):
        write_tuned(config, "varied", "optim.lr", best)
    for seeds in case.get("seeds", ()):
        add_seeds(config, seeds)
    config.write_text(GRIDS.replace("[1, 2]", case.get("declared", "[1, 2]")))
    experiments = load(config)
    found = [path.read_text() for path in (seeds_path(config), tuned_path(config)) if path.exists()]
    for grid in case["grids"]:
        entries = expand(experiments, [grid])
        found += [f"{experiments.grids[grid].table_spec.title}, {len({entry.key for entry in entries})} keys"]
        found += [line(experiments, entry) for entry in entries]
    compare("companions", title, "\n".join(found))


def complaints(config: Path) -> list[str]:
    with pytest.raises(InvalidExperiments) as error:
        expand(load(config), ["varied"])
    return str(error.value).splitlines()


def test_keys_are_those_of_a_declared_seed(config: Path) -> None:
    add_seeds(config, {"varied": {name: [3] for name in ("pre", "pre-gpas", "post", "post-gpas")}})
    added = {entry.name: entry for entry in expand(load(config), ["varied"])}
    seeds_path(config).unlink()
    config.write_text(GRIDS.replace("[1, 2]", "[1, 2, 3]"))
    declared = {entry.name: entry for entry in expand(load(config), ["varied"])}
    assert {name: entry.key for name, entry in added.items()} == {name: entry.key for name, entry in declared.items()}
    assert {name: entry.axes for name, entry in added.items()} == {name: entry.axes for name, entry in declared.items()}


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


@cases("extensions/cases.yaml")
def test_bad_files_name_the_place(config: Path, text: str, complaint: str) -> None:
    seeds_path(config).write_text(text)
    assert any(complaint in line for line in complaints(config)), complaints(config)


def test_a_damaged_file_is_not_overwritten(config: Path) -> None:
    seeds_path(config).write_text("version: 1\nseeds: {varied: {pre: [x]}}")
    with pytest.raises(InvalidExperiments):
        add_seeds(config, {"varied": {"pre": [3]}})
    assert "[x]" in seeds_path(config).read_text()


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
