"""The section `texts`: names of texts, and that it changes no key of the training before it."""

from __future__ import annotations

import pytest

from gpas_cli.errors import InvalidExperiments
from gpas_cli.spec.downstream import local_path, text_name
from gpas_cli.spec.parse_cell import cell_from

BASE = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 2}}


def test_scores_on_texts_are_a_stage_of_their_own() -> None:
    plain, scored = cell_from(BASE), cell_from({**BASE, "texts": {"texts": ["wikitext", "own=held-out/*.txt"]}})
    assert [stage.kind for stage in scored.stages] == ["pretrain", "texts"]
    assert scored.stages[0] == plain.stages[0]
    assert scored.key != cell_from({**BASE, "texts": {}}).key != plain.key
    assert cell_from(scored.to_mapping()) == scored
    assert cell_from({**BASE, "texts": {}}).parameters("texts").names == ("wikitext", "lambada_openai")


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("wikitext", "wikitext", ""),
        ("notes=held-out/*.txt", "notes", "held-out/*.txt"),
        ("held-out/*.txt", "held-out/*.txt", "held-out/*.txt"),
        ("held-out.txt", "held-out.txt", "held-out.txt"),
    ],
)
def test_names_and_paths(text: str, name: str, path: str) -> None:
    assert (text_name(text), local_path(text)) == (name, path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"texts": ["wikitxt"]}, "unknown text 'wikitxt'; did you mean 'wikitext'?"),
        ({"texts": []}, "names no text"),
        ({"texts": ["a=x.txt", "a=y.txt"]}, "names 'a' more than once"),
        ({"texts": ["wikitext=own.txt"]}, "is the name of a text of the hub"),
        ({"limit": -1}, "too small"),
    ],
)
def test_problems(section: dict, message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        cell_from({**BASE, "texts": section})
    assert message in str(caught.value)
