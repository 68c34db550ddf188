"""The page of the grid language names every key and choice; the examples at the top of experiments.yaml are valid."""

import dataclasses
import re
from pathlib import Path

import yaml
from documentation import DOCS, hooks

from gpas_cli.grid.claims import _BOUNDS, _COMPARISON_KEYS, _KINDS, _OUTER_KEYS, _SIDES, _TESTS
from gpas_cli.grid.declared import Feature
from gpas_cli.grid.expand import expand
from gpas_cli.grid.include import _LIKE, _OF_EXPERIMENTS, _OF_PACKS
from gpas_cli.grid.load import load
from gpas_cli.grid.packs import known_packs
from gpas_cli.grid.read import _GRID_KEYS, _RULES
from gpas_cli.grid.settings import CELL_PARTS
from gpas_cli.project import packaged
from gpas_cli.report.quantities import DIVERGED, SPIKES
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
