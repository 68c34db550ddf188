"""Packs in folders, with their mistakes; the page of the grid language names every key and choice."""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import yaml
from cases import cases
from documentation import DOCS, hooks
from faded_plugin import PLUGIN
from named_papers import PACKS

from gpas_cli.errors import InvalidExperiments
from gpas_cli.extensions.claims.declared import select_claims
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.figures.paper_figures import figures_of, named
from gpas_cli.grid.claims import _BOUNDS, _COMPARISON_KEYS, _KINDS, _OUTER_KEYS, _SIDES, _TESTS
from gpas_cli.grid.declared import Experiments, Feature
from gpas_cli.grid.expand import expand
from gpas_cli.grid.include import _LIKE, _OF_EXPERIMENTS, _OF_PACKS
from gpas_cli.grid.load import load
from gpas_cli.grid.packs import known_packs
from gpas_cli.grid.read import _GRID_KEYS, _RULES
from gpas_cli.grid.settings import CELL_PARTS
from gpas_cli.project import packaged
from gpas_cli.report.checks import report_problems
from gpas_cli.report.papers import published
from gpas_cli.report.quantities import DIVERGED, SPIKES
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.shapes import checked
from gpas_cli.spec.cell import NETWORK
from gpas_cli.spec.cost import PRECISIONS
from gpas_cli.spec.data import CORPORA, Data
from gpas_cli.spec.depth import DEPTHS, Depth
from gpas_cli.spec.extensions import metrics, stage_kinds
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.gate import Gate
from gpas_cli.spec.model import EMBEDS, FAMILIES, SIZES, Embed, Family, Init, Size
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.objective import OBJECTIVES, Masked, Spans
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import own_fields, setting_classes
from gpas_cli.spec.run import Cadence, Monitoring


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the pack."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(Path(__file__).with_name("paper"), tmp_path / "paper")
    for path in (tmp_path / "paper", *(tmp_path / "paper").iterdir()):
        path.chmod(path.stat().st_mode & ~0o022)  # a checkout may be writable by its group; a plugin in one is not run
    Path("paper/faded.py").write_text(PLUGIN.format(trace="executed"))
    return tmp_path


def including(text: str) -> Experiments:
    Path("experiments.yaml").write_text(f"version: 1\ninclude: {text}\n")
    return load(Path("experiments.yaml"), check=report_problems)


def message(text: str = "[./paper]") -> str:
    with pytest.raises(InvalidExperiments) as caught:
        including(text)
    return str(caught.value)


def edit(name: str, old: str, new: str, pack: str = "paper") -> None:
    path = Path(pack, name)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_plugin_of_a_pack_has_published_numbers() -> None:
    experiments = including("[./paper]")
    pack = experiments.packs["paper"]
    assert [entry.id for entry in expand(experiments, ["first"])] == ["first/pre", "first/faded"]
    assert published(pack, "one").rows[1].values == (10,)
    assert [claim.name for claim in select_claims(experiments)] == ["lower"]


@cases("grid/cases.yaml")
def test_mistakes_have_the_file_and_line_of_the_pack(name: str, old: str, new: str, expected: str) -> None:
    edit(name, old, new)
    said = message()
    assert len(said.splitlines()) == 1
    assert said.startswith(f"paper/{name}:")
    assert expected in said


@cases("grid/cases.yaml")
def test_what_cannot_be_included_is_one_message(text: str, expected: str) -> None:
    said = message(text)
    assert expected in said
    assert said.startswith("experiments.yaml:2:")
    assert len(said.splitlines()) == 1


def test_a_misnamed_file_is_not_ignored() -> None:
    Path("paper/claims.yaml").rename("paper/claim.yml")
    assert message().endswith("paper/claim.yml is not read; did you mean claims.yaml?")


def test_a_plugin_that_others_can_write_to_is_not_executed() -> None:
    Path("paper/faded.py").chmod(0o666)
    assert "paper/grids.yaml:2:11: plugins: faded.py was not executed" in message()


def test_with_as_all_names_have_it_in_front() -> None:
    experiments = including("[./paper, {pack: ./paper, as: theirs}]")
    theirs = experiments.packs["theirs"]
    assert list(experiments.grids) == ["first", "theirs.first"]
    assert experiments.grids["theirs.first"].table_spec.published == {theirs: "one"}
    (claim,) = select_claims(experiments, ["theirs.lower"])
    assert (claim.grids, claim.source.paper) == (("theirs.first",), "theirs")
    (figure,) = named(["theirs.paper-1"], experiments.packs)
    assert figure.grid == "theirs.first"
    assert {entry.cell.key for entry in expand(experiments, ["first", "theirs.first"])} == {
        entry.cell.key for entry in expand(experiments, ["first"])
    }


def test_two_packs_with_the_same_names_are_an_error() -> None:
    shutil.copytree("paper", "other")
    for name in ("grids.yaml", "claims.yaml"):
        edit(name, "{paper: one}", "{other: one}", "other")
    said = message("[./paper, ./other]")
    assert "experiments.yaml:2:" in said
    assert "the grid 'first' is also declared in other (other/grids.yaml:8:3); include one of them as" in said
    assert "theirs.first" in including("[./paper, {pack: ./other, as: theirs}]").grids
    for name in ("grids.yaml", "claims.yaml"):
        edit(name, "first", "second", "other")
    edit("grids.yaml", "tiny", "tinier", "other")
    edit("grids.yaml", "  tiny:", "  tinier:", "other")
    edit("grids.yaml", "size: tiny", "size: tinier", "other")
    said = message("[./paper, ./other]")
    assert "other/claims.yaml: claims.lower: paper has it as well; include one of them as" in said
    assert "other/figures.yaml: figures.paper-1: paper has it as well" in said


def test_packs_that_include_each_other_are_an_error() -> None:
    Path("other").mkdir()
    Path("other/grids.yaml").write_text("version: 1\ninclude: [../paper]\n")
    edit("grids.yaml", "version: 1\n", "version: 1\ninclude: [../other]\n")
    assert "other/grids.yaml:2:11: include: paper includes this file, which includes it in turn" in message()


@pytest.mark.parametrize("name", PACKS)
def test_the_numbers_and_figures_of_the_package_have_the_shape(name: str) -> None:
    assert bool(checked(PACKS[name], "numbers").value) is PACKS[name].has("numbers")
    assert bool(figures_of(PACKS[name])) is PACKS[name].has("figures")


@pytest.mark.parametrize("name", [name for name in PACKS if PACKS[name].has("grids")])
def test_each_pack_of_the_package_can_be_included_alone(name: str) -> None:
    experiments = including(f"[{name.replace('_', '-')}]")
    for grid in experiments.grids:
        assert expand(experiments, [grid])
    claims = [claim for claim in select_claims(experiments) if claim.source.paper == name]
    assert bool(claims) is PACKS[name].has("claims")
    for claim in claims:
        found = evaluate(claim, Recorded(expand(experiments, claim.grids)))
        assert found.missing


TEXT = packaged("experiments.yaml").read_text()
HEAD = TEXT[: TEXT.index("\nversion:")]
WORDS = set(re.findall(r"[A-Za-z0-9_-]+", hooks().on_page_markdown((DOCS / "reference/grid.md").read_text("utf-8"))))
SECTIONS = (Size, Gate, Embed, Init, Family, Data, Masked, Spans, Optim, Depth, Finetune, Cadence, Monitoring, Feature)
UNTOLD = {"profile", "kind"}  # `gpas train --profile`; the kind of an objective or a depth is its name
NAMES = {
    "top level": {*_OF_EXPERIMENTS, *_OF_PACKS, "pack", "as"},
    "like": {"like", *_LIKE},
    "grid": set(_GRID_KEYS),
    "settings": {*CELL_PARTS, *(name for name, kind in stage_kinds().items() if kind.parameters), NETWORK},
    "axes": {*_RULES, *_RULES.values(), "zip", "name"},
    "table": {"title", "rows", "columns", "value", "over", "against", "published", "task"},
    "claim": {*_OUTER_KEYS, *_COMPARISON_KEYS, "says", "curve", "take", "layers", "updates", "paper", "where", "quote"},
    "words of claims": {*_KINDS, *_SIDES, *_BOUNDS, *_TESTS, *SPIKES, DIVERGED},
    "metrics": set(metrics()),
    "papers": set(known_packs()),
    "precision": set(PRECISIONS),
    **{named.__name__: {field.name for field in own_fields(named)} - UNTOLD for named in SECTIONS},
    "settings of schedules and optimizers": {name for named in SECTIONS for name in setting_classes(named)},
    "sizes": set(SIZES),
    "schemes": set(SCHEMES),
    "embeddings": set(EMBEDS),
    "families": set(FAMILIES),
    "depths": set(DEPTHS),
    "texts": set(CORPORA),
    "objectives": set(OBJECTIVES),
}
# A schedule or an optimizer may have settings of its own.
DEPENDENT = tuple(dict.fromkeys(part for section in SECTIONS for _, part in setting_classes(section).values()))
CHOICES = [
    (section.__name__, field.name, choice)
    for section in (*SECTIONS, *DEPENDENT)
    for field in dataclasses.fields(section)
    for choice in field.metadata.get("choices", ())
]


def test_the_page_has_every_name() -> None:
    absent = {part: names - WORDS for part, names in NAMES.items() if names - WORDS}
    assert not absent


def test_the_page_has_every_choice() -> None:
    assert [name for name in CHOICES if name[-1] not in WORDS] == []


def test_the_head_of_the_file_is_comment_and_the_rest_plain_yaml() -> None:
    assert all(line.startswith("#") for line in HEAD.splitlines())
    assert set(yaml.safe_load(TEXT)) <= set(_OF_EXPERIMENTS)


TRANSLATOR = {
    "family": "encoder-decoder", "objective": "translation", "data": '{source: pairs, path: "train.{en,de}"}',
}  # fmt: skip


def test_the_examples_at_the_top_of_the_file_are_valid(tmp_path: Path) -> None:
    settings, _, grid = HEAD.replace("\n#", "\n").partition(" A grid of your own\n")
    sections = re.findall(r"^   (\w+) .*?(\{(?:[^{}]|\{[^{}]*\})*\})", settings, re.MULTILINE)
    assert len(sections) >= 14
    text = TEXT + grid.rpartition("\n")[0].replace("\n   ", "\n  ")[1:] + "\n"
    for name, example in sections:
        rest = {"size": "71m", "data": "quickstart"} | {name: example}
        rest |= {"objective": "mlm"} if name == "glue" else {}
        rest |= TRANSLATOR if name == "translation" else {}
        text += f"  {name}-head: {{base: {{{', '.join(f'{key}: {value}' for key, value in rest.items())}}}}}\n"
    config = tmp_path / "experiments.yaml"
    config.write_text(text)
    experiments = load(config)
    assert len(expand(experiments, ["mine"])) > 20
    assert all(expand(experiments, [f"{name}-head"]) for name, _ in sections)
