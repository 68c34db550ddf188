"""Plugin schemes: the required contents of a file, its part in the key, and the message for every mistake."""

import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest
from cases import cases, file_text

from gpas_cli import extension
from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.spec import plugins
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.equation import equation
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.plugins import known_schemes, plugin_of

IMPORTS = """\
from __future__ import annotations
from dataclasses import dataclass
from gpas_cli.spec.norm import Factor, Norm, Pre, Scheme, Wiring
"""
CLASS = """\
@dataclass(frozen=True, kw_only=True)
class Weighted(Scheme):
    title = "Weighted"
    weight: float = 0.9

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=self.weight)
"""
SOURCE = f"{IMPORTS}\n{CLASS}\nSCHEMES = {{'weighted': Weighted}}\n"
RECIPE = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9}}
EXPERIMENTS = Template(file_text("experiments/weighted.yaml"))


def catalogue(source: str = SOURCE) -> Catalogue:
    return Catalogue(schemes={**known_schemes(), **plugin_of("mine.py", source).schemes})


def cell(source: str = SOURCE, **values: object) -> Cell:
    return cell_from({**RECIPE, "norm": "weighted", **values}, catalogue(source))


def body(text: str) -> str:
    """Return the plugin file with another body of `wiring`."""
    return SOURCE.replace("return Wiring(in_norm=Norm(), skip=self.weight)", text)


def test_a_scheme_of_a_file_can_be_used_like_a_built_in_one() -> None:
    made = cell(gate="gpas")
    assert (made.model.norm.title, made.model.init.preset) == ("Weighted", "normal")
    assert equation(made.model, 1) == "G(0.9 x + f(N(x)))"
    assert made.model.norm.origin.source == SOURCE
    assert cell_from(made.to_mapping(), catalogue()) == made
    with pytest.raises(InvalidExperiments, match="unknown scheme 'weighted'"):
        cell_from(made.to_mapping())


def test_the_key_contains_the_wiring_and_nothing_else_of_the_file() -> None:
    key = cell().key
    assert cell(f"# A remark.\n{SOURCE}").key == key
    assert cell(SOURCE.replace("Weighted", "Scaled")).key == key
    renamed = cell_from({**RECIPE, "norm": "other"}, catalogue(SOURCE.replace("'weighted'", "'other'")))
    assert renamed.key == key
    assert cell(norm={"scheme": "weighted", "weight": 0.8}).key != key
    assert cell(body("return Wiring(in_norm=Norm(), skip=self.weight + layer / depth)")).key != key
    factors = ("0.9", "Factor(0.9)", "Factor(0.9, wide=True)", "Factor(0.9, shared=True)", "Factor()")
    keys = {cell(body(f"return Wiring(in_norm=Norm(), branch={factor})")).key for factor in factors}
    assert len(keys - {key}) == len(factors)


def test_a_recorded_cell_does_not_run_with_another_wiring() -> None:
    changed = catalogue(body("return Wiring(in_norm=Norm(), skip=2)"))
    with pytest.raises(
        InvalidExperiments, match=r"mine\.py: the wiring of 'weighted' has changed since this cell was recorded"
    ):
        cell_from(cell().to_mapping(), changed)


@cases("spec/cases.yaml", source="", adds=None, old="", new="")
def test_a_file_without_a_usable_scheme_is_refused_with_the_reason(
    source: str, adds: str | None, old: str, new: str, message: str
) -> None:
    assert old in SOURCE
    with pytest.raises(InvalidExperiments, match=message):
        plugin_of("mine.py", source or (SOURCE.replace(old, new) if adds is None else IMPORTS + adds))


@cases("spec/cases.yaml")
def test_an_invalid_wiring_is_reported(text: str, message: str) -> None:
    with pytest.raises(InvalidExperiments, match=message):
        cell(body(text))


def test_experiments_name_their_plugins(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    file = tmp_path / "experiments.yaml"
    file.write_text(EXPERIMENTS.substitute(plugins="mine.py"))
    assert [entry.name for entry in expand(load(file))] == ["pre", "half"]
    (tmp_path / "again.py").write_text(SOURCE)
    file.write_text(EXPERIMENTS.substitute(plugins="absent.py, mine.py, again.py"))
    with pytest.raises(InvalidExperiments) as caught:
        load(file)
    message = str(caught.value)
    assert "experiments.yaml:2:11: plugins: absent.py: No such file or directory" in message
    assert "experiments.yaml:2:31: plugins: again.py: the scheme 'weighted' already exists in mine.py" in message


HEAD = """
from gpas_cli.extension import Extension
EXTENSION = Extension(name="weighted", schemes={"weighted": "stranger:Weighted"})
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a package on the path that declares a scheme as an entry point."""
    (tmp_path / "stranger.py").write_text(SOURCE + HEAD)
    facts = tmp_path / "stranger-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text("[gpas_cli.extensions]\nweighted = stranger:EXTENSION\n")
    monkeypatch.syspath_prepend(tmp_path)
    for read_once in (plugins.installed, extension.installed):
        read_once.cache_clear()
    yield facts
    for read_once in (plugins.installed, extension.installed):
        read_once.cache_clear()
    sys.modules.pop("stranger", None)


def test_an_installed_package_brings_a_scheme(installed: Path) -> None:
    made = cell_from({**RECIPE, "norm": "weighted"})
    assert (made.model.norm.origin.name, made.key) == ("stranger 1.2", cell().key)
    assert "weighted" not in SCHEMES


def test_an_installed_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    (installed / "entry_points.txt").write_text("[gpas_cli.extensions]\nweighted = stranger:Absent\n")
    with pytest.raises(GpasError, match=r"the extension 'weighted' of stranger 1\.2 cannot be loaded: AttributeError"):
        known_schemes()


STAGE = """\
from dataclasses import dataclass
from gpas_cli.spec.stage import Metric, StageKind

@dataclass(frozen=True, kw_only=True)
class Probe:
    depth: int = 1

def run(stage):
    raise NotImplementedError

STAGE_KINDS = {"probe": StageKind(name="probe", parameters=Probe, cost=lambda *_: 1.0, runner=run)}
"""


@pytest.mark.whole
@cases("spec/cases.yaml")
def test_an_unusable_stage_is_refused_with_the_reason(old: str, new: str, message: str) -> None:
    assert old in STAGE
    assert plugin_of("mine.py", STAGE).stage_kinds["probe"].origin.name == "mine.py"
    with pytest.raises(InvalidExperiments, match=message):
        plugin_of("mine.py", STAGE.replace(old, new))
